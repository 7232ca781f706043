"""A plan under a schedule that is given, told as one that was decided with it is."""

from __future__ import annotations

from netsplit.graph.checks.replicated import require_replicable
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.decide import decide
from netsplit.planning.whole.frontier import frontier_of
from netsplit.planning.whole.judge import Judge
from netsplit.planning.whole.notes import notes_of
from netsplit.planning.whole.whole_plan import WholePlan

__all__ = ["plan_under"]


def plan_under(
    problem: Problem, method: Partitioner, batch_size: int, told: tuple[str, ...] = ()
) -> WholePlan:
    """What a method decides for a simulated problem, which has its schedule.

    Args:
        batch_size: samples of a whole batch.
        told: what there is to be said of its micro-batches.

    Raises:
        InfeasibleError: nothing fits under this schedule.
        NetSplitError: the answer breaks a rule, or has replicas that would train something else.
    """
    plan = decide(problem, method)
    require_replicable(problem.graph, plan.placement.replicated)
    judge = Judge(lambda microbatches: plan.problem, recompute=False)
    chosen = judge.judge(plan.placement.method, problem.the_simulator.schedule, plan.placement)
    assert chosen is not None, "the first of its kind"
    rows, notes = frontier_of(judge, chosen, batch_size), (*told, *notes_of(problem, plan.placement))
    bound_s, parts = plan.bound_s or 0.0, bool(plan.placement.rewrites)
    return WholePlan(plan, batch_size, bound_s, parts, rows, (), notes, plan.seconds, len(rows))
