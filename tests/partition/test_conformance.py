"""What holds for every partitioner, on random problems."""

import re

import pytest
from hypothesis import HealthCheck, given, settings

from netsplit.errors import InfeasibleError
from netsplit.partition import MTopo, NetSplit, Partitioner, Placement, Problem, Random, Single
from netsplit.profile.memory import static_bytes
from tests.partition.builders import chain, cluster_of, costs_of, problems, with_capacities

METHODS = [NetSplit(engine="highs"), MTopo(), Single(), Random()]
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
examples = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


def placed(method: Partitioner, problem: Problem) -> Placement | None:
    """The placement, or None where a method that heeds capacities proves that it has none."""
    try:
        return method.partition(problem)
    except InfeasibleError:
        assert method.respects_capacity
        return None


@every_method
@examples
@given(problem=problems())
def test_every_node_has_one_device_and_one_rank_in_topological_order(method, problem):
    placement = placed(method, problem)
    if placement is None:
        return
    names = {device.name for device in problem.cluster.devices}
    assert placement.method == method.name
    assert placement.device_of.keys() == problem.graph.nodes.keys()
    assert set(placement.device_of.values()) <= names
    assert sorted(placement.priority.values()) == list(range(len(problem.graph)))
    assert placement.priority.keys() == problem.graph.nodes.keys()
    for u, v, _ in problem.graph.edges:
        assert placement.priority[u] < placement.priority[v]


@every_method
@examples
@given(problem=problems())
def test_colocated_nodes_share_a_device(method, problem):
    placement = placed(method, problem)
    for group in problem.graph.colocated if placement else ():
        assert len({placement.device_of[name] for name in group}) == 1


@every_method
@settings(examples, max_examples=20)
@given(problem=problems())
def test_same_problem_and_seed_give_the_same_placement(method, problem):
    first, second = placed(method, problem), placed(method, problem)
    assert (first is None) == (second is None)
    if first and second:
        assert first.device_of == second.device_of
        assert list(first.priority.items()) == list(second.priority.items())


@pytest.mark.parametrize("method", [m for m in METHODS if m.respects_capacity], ids=lambda m: m.name)
@examples
@given(problem=problems())
def test_static_bytes_are_within_capacity_or_the_error_gives_capacities_that_are_enough(method, problem):
    try:
        placement = method.partition(problem)
    except InfeasibleError as error:
        text = str(error)
        assert re.search(r"\d bytes\)? are missing (in total|there|on the largest, 'd\d')", text)
        cure = text.rpartition(";")[2]
        enough = int(re.search(r"(\d+) bytes", cure)[1])
        devices = problem.cluster.devices
        more = "more on each device" in cure
        problem = with_capacities(problem, [d.capacity_bytes * more + enough for d in devices])
        placement = method.partition(problem)
    used = static_bytes(problem.graph, placement.device_of, problem.costs.alpha, problem.copies)
    for name, nbytes in used.items():
        assert nbytes <= problem.cluster.device(name).capacity_bytes


@every_method
def test_a_report_has_a_summary(method):
    graph = chain([4, 4])
    report = method.partition(Problem(graph, costs_of(graph), cluster_of([1000, 1000]))).report
    assert report.seconds >= 0
    assert report.summary().startswith(report.status)
