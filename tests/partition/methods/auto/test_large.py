"""`auto` on many nodes: groups of nodes, and never worse than what it asked."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.scaling.drawn import drawn_problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.methods.auto import auto
from netsplit.partition.methods.auto.large import CoarseProblem, intervals, most_instructions
from netsplit.partition.methods.baechi.etf import MEtf
from netsplit.partition.methods.baselines import Balanced, RoundRobin
from netsplit.partition.methods.list_schedulers import Heft
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.decide import decide
from netsplit.program.instructions import Recv, Send


@pytest.mark.parametrize("graph", ["blocks", "layered"])
def test_groups_follow_one_another_and_hold_what_the_nodes_do(graph: str) -> None:
    """Every node once, edges forward, and of any placement of groups the same bytes and compute."""
    whole = Instance.of(drawn_problem(graph, "two_kinds", 600, 4, "latency", None))
    groups = intervals(whole, 60)
    assert sorted(v for group in groups for v in group) == list(range(whole.n))
    assert len(groups) <= 90
    coarse = CoarseProblem.of(whole, groups)
    small = Instance.of(coarse.problem)
    assert all(small.producer[u] < v for u in range(len(small.producer)) for v in small.consumers[u])
    where = np.random.default_rng(0).integers(4, size=small.n)
    refined = coarse.refined(where)
    assert small.used_bytes(where).tolist() == whole.used_bytes(refined).tolist()
    seconds, summed = whole.forward_s + whole.backward_s, small.forward_s + small.backward_s
    assert summed[np.arange(small.n), where].sum() == pytest.approx(
        seconds[np.arange(whole.n), refined].sum()
    )


@pytest.mark.parametrize(
    "drawing", [("blocks", "uniform", 200, 4, "simulated"), ("layered", "hosts", 150, 16, "latency")]
)
def test_a_large_problem_s_answer_is_verified_and_no_worse_than_its_methods(
    drawing: tuple[str, str, int, int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exchanges between hosts included."""
    monkeypatch.setattr(auto, "LARGE", 100)
    problem = drawn_problem(*drawing, None)
    plan = decide(replace(problem, time_limit_s=5.0), auto.Auto(starts=2))
    for method in (Balanced(), Heft(), MEtf()):
        assert plan.objective_s <= decide(problem, method).objective_s * (1 + 1e-9)
    assert plan.placement.report.notes["groups"]["count"] > 1


@pytest.mark.parametrize("objective", ["latency", "simulated"])
@pytest.mark.parametrize("method", [Balanced(), RoundRobin()])
def test_a_program_has_no_more_instructions_than_were_counted(objective: str, method: Partitioner) -> None:
    """Its transfers are those counted; what computes is less where nodes share segments."""
    problem = drawn_problem("layered", "uniform", 150, 4, objective, None)  # type: ignore[arg-type]
    plan = decide(problem, method)
    assert plan.program is not None
    instructions = [ins for each in plan.program.instructions.values() for ins in each]
    instance = Instance.of(problem)
    where = instance.encode(plan.placement.device_of)
    microbatches = plan.program.microbatches
    counted = most_instructions(instance, where, microbatches)
    moved = sum(isinstance(ins, Send | Recv) for ins in instructions)
    assert counted == moved + 2 * microbatches * instance.n
    assert len(instructions) <= counted + len(instance.devices)  # a step each
