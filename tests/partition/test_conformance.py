"""What holds for every partitioner, on random problems."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsplit.errors import InfeasibleError
from netsplit.partition import (
    METHODS,
    Auto,
    NetSplit,
    NetSplitExact,
    Partitioner,
    Pesto,
    Placement,
    Problem,
)
from netsplit.planning.verify import verify
from netsplit.profile.memory import static_model
from tests.builders import chain, cluster_of, costs_of
from tests.examples import tried
from tests.partition.builders import problems, trained, with_capacities

SET = {
    "auto": Auto(time_limit_s=10.0, starts=4),
    "netsplit_exact": NetSplitExact(time_limit_s=20.0),
    "netsplit": NetSplit(engine="highs"),
    "pesto": Pesto(engine="highs"),
}
EVERY = [*(SET.get(name) or kind() for name, kind in METHODS.items()), NetSplit(exclusive=True)]
SEARCHING = ("auto", "netsplit_exact", "pesto_full")
HEURISTICS = [method for method in EVERY if method.name not in SEARCHING]
SEARCHES = [method for method in EVERY if method.name in SEARCHING]

drawn = st.one_of(problems(), problems().map(trained))
quiet = settings(deadline=None, suppress_health_check=list(HealthCheck))


def by_name(method: Partitioner) -> str:
    return f"{method.name}_exclusive" if getattr(method, "exclusive", False) else method.name


@pytest.mark.parametrize("method", HEURISTICS, ids=by_name)
@settings(quiet, max_examples=tried(40))
@given(problem=drawn)
def test_answers_keep_the_rules(method: Partitioner, problem: Problem) -> None:
    check(method, problem)


@pytest.mark.usefixtures("few_moves")
@pytest.mark.parametrize("method", SEARCHES, ids=by_name)
@settings(quiet, max_examples=6)
@given(problem=drawn)
def test_answers_of_searches_keep_the_rules(method: Partitioner, problem: Problem) -> None:
    check(method, problem)


def check(method: Partitioner, problem: Problem) -> None:
    placement = placed(method, problem)
    again = placed(method, problem)
    assert (placement is None) == (again is None)
    if placement is None or again is None:
        return
    assert placement.method == method.name
    assert verify(problem, placement, capacity=method.respects_capacity).violations == ()
    assert placement.device_of == again.device_of
    assert list(placement.priority.items()) == list(again.priority.items())
    report = placement.report
    if report.bound is not None and report.objective is not None:
        assert report.bound <= report.objective * (1 + 1e-9)


def placed(method: Partitioner, problem: Problem) -> Placement | None:
    """The placement, or None where a method that heeds capacities finds none."""
    try:
        return method.partition(problem)
    except InfeasibleError:
        assert method.respects_capacity
        return None


@pytest.mark.parametrize("method", [m for m in HEURISTICS if m.respects_capacity], ids=by_name)
@settings(quiet, max_examples=tried(25))
@given(problem=problems())
def test_an_infeasible_problem_is_told_capacities_that_are_enough(
    method: Partitioner, problem: Problem
) -> None:
    try:
        placement = method.partition(problem)
    except InfeasibleError as error:
        text = str(error)
        assert re.search(r"\d bytes\)? are missing (in total|there|on (the largest,|device) 'd\d')", text)
        cure = text.rpartition(";")[2]
        enough = re.search(r"(\d+) bytes", cure)
        assert enough is not None
        devices = problem.cluster.devices
        more = "more on each device" in cure
        problem = with_capacities(problem, [d.capacity_bytes * more + int(enough[1]) for d in devices])
        placement = method.partition(problem)
    used = static_model(problem.graph, problem.costs.alpha, problem.copies).by_device(placement.device_of)
    for name, nbytes in used.items():
        assert nbytes <= problem.cluster.device(name).capacity_bytes


@pytest.mark.usefixtures("few_moves")
@pytest.mark.parametrize("method", EVERY, ids=by_name)
def test_a_report_has_a_summary_and_a_method_says_what_it_optimises(method: Partitioner) -> None:
    graph = chain([4, 4])
    report = method.partition(Problem(graph, costs_of(graph), cluster_of([1000, 1000]))).report
    assert report.seconds >= 0
    assert report.summary().startswith(report.status)
    assert method.optimises
    assert report.optimises == method.optimises
    assert (method.optimises in report.summary()) is (report.status == "optimal")
