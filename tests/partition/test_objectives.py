"""What a placement scores under each objective, which solver and which bounds go with it."""

from dataclasses import dataclass, replace

import pytest

from netsplit.partition import (
    Latency,
    MaxLoad,
    NetSplitExact,
    Objective,
    PipeDream,
    Problem,
    SimulatedIteration,
    Single,
    SolverReport,
    StageTime,
)
from netsplit.placement.placement import Stage
from tests.builders import chain, costs_of
from tests.partition.stage_problems import chain_problem, devices

EVERY: list[Objective] = [
    Latency(),
    SimulatedIteration(),
    MaxLoad(),
    MaxLoad(contiguous=True),
    StageTime(),
    StageTime(contiguous=True),
]


@dataclass(frozen=True)
class Predicted:
    iteration_s: float


def pipeline() -> Problem:
    """Two nodes of 3 s each, 1000 bytes apart over 1000 bytes per second."""
    graph = chain([1000])
    return Problem(graph, costs_of(graph, 3.0, 0.0), devices(2, 1000.0), objective=StageTime())


def test_a_placement_scores_by_the_objective_not_by_its_method() -> None:
    problem = replace(pipeline(), simulator=lambda placement: Predicted(7.0))  # type: ignore[arg-type]
    alone = Single().partition(problem)
    apart = replace(alone, device_of={"n0": "d0", "n1": "d1"})
    scores = [[objective.score_s(problem, each) for each in (alone, apart)] for objective in EVERY]
    assert scores[:2] == [[7.0, 7.0]] * 2
    assert scores[2:4] == [[6.0, 3.0 + 1.0]] * 2  # both ends pay for the variable
    assert scores[4:] == [[6.0, 3.0]] * 2  # transfers go on beside


@pytest.mark.parametrize("levels", [(), ((2, 500.0), (2, 100.0))], ids=["one level", "two levels"])
def test_every_replica_has_the_load_of_its_stage(levels: tuple[tuple[int, float], ...]) -> None:
    problem = chain_problem([4.0, 2.0, 7.0], [100, 300], [50, 10, 5], devices(4, 100.0, levels))
    placement = PipeDream().partition(problem)
    loads = StageTime().loads(problem, placement)
    assert loads.seconds.max() == placement.report.objective
    rank = {device.name: p for p, device in enumerate(problem.cluster.devices)}
    for stage in placement.stages:
        assert len({loads.seconds[rank[name]] for name in stage.devices}) == 1
    by_hand = (
        Stage(("n0", "n1"), ("d0", "d1"), 2), Stage(("n2",), ("d2", "d3"), 1),
    )  # fmt: skip
    apart = replace(placement, device_of={"n0": "d0", "n1": "d0", "n2": "d2"}, stages=by_hand)
    loads = StageTime().loads(problem, apart)
    assert loads.receive_s.tolist()[:2] == [0.0, 0.0]
    assert loads.receive_s[2] == loads.receive_s[3] > 0


@pytest.mark.parametrize("objective", EVERY, ids=str)
def test_a_bound_counts_only_for_what_it_was_proven_for(objective: Objective) -> None:
    def holds(**notes: str) -> bool:
        return objective.bound_s(SolverReport("optimal", 0.0, bound=1.0, notes=dict(notes))) == 1.0

    assert not holds()
    assert not holds(bound_for="")
    keys = {key for key in ("latency", "max_load", "stage_time") if holds(bound_for=key)}
    assert keys == ({objective.bound_key} - {""})


def test_a_bound_of_the_largest_load_is_none_of_the_stage_time() -> None:
    """Transfers are beside the compute there: no load below 4 s is no stage below 4 s, as 3 s shows."""
    problem = pipeline()
    placement = NetSplitExact(time_limit_s=5.0).partition(problem)
    assert placement.report.objective == pytest.approx(4.0)
    assert problem.objective.score_s(problem, placement) == pytest.approx(3.0)
    assert placement.report.bound is not None
    assert problem.objective.bound_s(placement.report) is None
    assert MaxLoad().bound_s(placement.report) == placement.report.bound
