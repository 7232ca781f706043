"""Which plans a training may change to: those that train the same."""

from __future__ import annotations

from dataclasses import replace

from netsplit.errors import NetSplitError
from netsplit.graph.checks.replicated import replicated_statistics, why_unreplicable
from netsplit.graph.ir import Graph
from netsplit.graph.recording.whole import GradientHook, ModuleCall
from netsplit.placement.placement import Placement
from netsplit.planning.plan import Plan
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.program.schedules import Schedule
from netsplit.rewrite.records import folded
from netsplit.rewrite.tasks import OperatorTasks

__all__ = ["changeable", "check_adaptable", "require_adaptable", "require_switchable", "why_unswitchable"]

_OF_ONE_REPLICA = "running statistics would no longer come from a stage's first replica alone"
_STEPPING = "under a schedule that steps within a batch, the result depends on where operators run"


def require_switchable(plan: Plan, other: Plan) -> None:
    reason = why_unswitchable(plan, other)
    if reason is not None:
        raise NetSplitError(f"training cannot change to this plan: {reason}.")


def check_adaptable(backend: str | None, schedule: Schedule | AutoSchedule) -> None:
    """Refuse configurations in which the plan could never change."""
    if backend is not None:
        raise NetSplitError(
            f"adapt cannot be combined with compile_backend ({backend}), as every new plan would be "
            "recompiled: leave one of them out."
        )
    if isinstance(schedule, Schedule) and schedule.update_every is not None:
        raise _unadaptable(_STEPPING)


def require_adaptable(plan: Plan, backend: str | None) -> None:
    check_adaptable(backend, plan.compiler.schedule)
    reason = why_unswitchable(plan, plan)
    if reason is None and replicated_statistics(plan.problem.graph, plan.placement.replicated):
        reason = _OF_ONE_REPLICA
    if reason is not None:
        raise _unadaptable(reason)


def _unadaptable(reason: str) -> NetSplitError:
    return NetSplitError(f"adapt cannot change the plan of this training: {reason}; leave adapt out.")


def changeable(auto: AutoSchedule, graph: Graph) -> tuple[AutoSchedule, tuple[str, ...]]:
    """The search space without replicas of statistics, which cannot change plans, and a remark."""
    statistics = replicated_statistics(graph, graph.nodes)
    if not (auto.replicas and statistics):
        return auto, ()
    more = f" and {len(statistics) - 1} more" if len(statistics) > 1 else ""
    why = "adapt could not change such a plan"
    remark = (
        f"no stage has replicas, as {why}: '{statistics[0]}'{more} would be updated by other micro-batches"
    )
    return replace(auto, replicas=False, no_replicas=why), (remark,)


def why_unswitchable(plan: Plan, other: Plan) -> str | None:
    """Why training cannot change to the other plan; None if it can."""
    graph, ours, theirs = plan.problem.graph, plan.simulated[0], other.simulated[0]
    if ours.devices != theirs.devices:
        return f"it is for the devices {', '.join(theirs.devices)}, not {', '.join(ours.devices)}"
    if set(graph.wholes) != set(other.problem.graph.wholes):
        return "it is for another model"
    if not (graph.rewrites or other.problem.graph.rewrites) and _training(graph) != _training(
        other.problem.graph
    ):
        return "it is for another model, another loss or other trained parameters"
    if plan.compiler.shared_norm != other.compiler.shared_norm:
        return "gradients are clipped or scaled under only one of the plans"
    if _operators(plan.placement) != _operators(other.placement):
        return "its operators are cut into other parts"
    if set(ours.graph.initializers) != set(theirs.graph.initializers):
        return "its parameters are cut into other parts"
    cut = plan.compiler.schedule.microbatches, graph.batch_size
    if cut != (other.compiler.schedule.microbatches, other.problem.graph.batch_size):
        return "it cuts a batch into other micro-batches, which would train differently"
    if ours.asynchronous or theirs.asynchronous:
        return _STEPPING
    for op in graph.calls.values():
        if isinstance(op, ModuleCall | GradientHook):
            name = getattr(op, "__name__", type(op).__name__)
            return f"the model has uncaptured Python code, whose attributes would be lost ({name})"
    if (reason := why_unreplicable(graph, other.placement.replicated)) is not None:
        return reason
    copied = replicated_statistics(graph, other.placement.replicated)
    if copied and (plan.placement.replicas, set(plan.placement.replicated)) != (
        other.placement.replicas,
        set(other.placement.replicated),
    ):
        return f"'{copied[0]}' would become one for each replica"
    if set(replicated_statistics(graph, plan.placement.replicated)) - set(copied):
        return _OF_ONE_REPLICA
    return None


def _training(graph: Graph) -> tuple[object, ...]:
    nodes = [(each.name, each.op, each.args, each.kwargs, each.no_grad, each.autocast) for each in graph]
    trained = {k: each.requires_grad for k, each in graph.initializers.items()}
    return nodes, trained, graph.autocast


def _operators(placement: Placement) -> dict[str, OperatorTasks]:
    """Operators, with copies of weights under the parameter's name."""
    tasks = folded(placement.rewrites).values()
    read = (
        replace(own, weights=tuple(each if each == "home" else 0 for each in own.weights)) for own in tasks
    )
    return {own.node: own for own in read if own.cuts or own.copies or "home" in own.weights}
