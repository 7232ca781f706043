"""Baechi's m-ETF on examples worked out by hand. A byte takes a second to move."""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings

from netsplit.errors import InfeasibleError
from netsplit.partition.methods.baechi.baechi import StaticMemory, memory_for
from netsplit.partition.methods.baechi.etf import EtfLoop, MEtf
from tests.examples import tried
from tests.partition.baechi_cases import problem_of, tasks_of
from tests.partition.builders import problems, with_capacities

FORK = {"a": 2, "b": 4, "c": 5}


def devices(problem, **options) -> str:
    placement = MEtf(tick_s=1.0, **options).partition(problem)
    return "".join(placement.device_of[name][1:] for name in problem.graph.nodes)


def loop_of(problem) -> EtfLoop:
    tasks = tasks_of(problem)
    loop = EtfLoop(tasks, memory_for(tasks, "static"))
    assert loop.run()
    return loop


@pytest.mark.parametrize(
    ("nbytes", "where", "seconds"),
    [
        (3, "001", 10),  # d1 could start c at 5, d0 is busy with b until 6
        (5, "000", 11),  # d1 could start c at 7, d0 at 6
    ],
)
def test_an_operator_goes_where_it_can_start_first(nbytes, where, seconds):
    problem = problem_of(FORK, [("a", nbytes, "bc")])
    assert devices(problem) == where
    assert MEtf(tick_s=1.0).partition(problem).report.objective == seconds


def test_the_estimate_takes_each_edge_alone_and_the_decision_sends_one_after_the_other():
    """x, y and w run on d0, d1, d2 until 2; z must go to w. Both tensors could be there at 5, not both."""
    problem = problem_of(
        {"x": 2, "y": 2, "w": 2, "z": 1}, [("x", 3, "z"), ("y", 3, "z")], devices=3, colocated=["wz"]
    )
    loop = loop_of(problem)
    assert loop.where.tolist() == [0, 1, 2, 2]
    assert loop.start.tolist() == [0, 0, 0, 8]


def test_kept_outputs_take_room() -> None:
    """Each makes 10 bytes."""
    chain = problem_of({"a": 1, "b": 1, "c": 1}, [("a", 10, "b"), ("b", 10, "c"), ("c", 10, "")], 1)
    for memory in ("kept", "static"):
        with pytest.raises(InfeasibleError, match="are missing"):
            devices(with_capacities(chain, [20]), memory=memory)
    assert devices(with_capacities(chain, [30]), memory="kept") == "000"


def test_a_dead_end_names_the_node_and_the_device() -> None:
    """a and b take a device each, though both would fit on one; c finds 7 bytes on either."""
    problem = problem_of(
        {"a": 1, "b": 1, "c": 1}, [], capacities=[14, 14], weights={"a": 7, "b": 7, "c": 10}, copies=0
    )
    with pytest.raises(
        InfeasibleError, match=r"'c': 3 bytes are missing on device 'd0'; 10 bytes more on each"
    ):
        devices(problem)
    devices(with_capacities(problem, [24] * 2))


@settings(max_examples=tried(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(roomy=True))
def test_the_schedule_is_one_exclusive_devices_and_precedence(problem):
    tasks = tasks_of(problem)
    loop = EtfLoop(tasks, StaticMemory(tasks, tasks.instance.capacity + 10**6))
    assert loop.run()
    for v in range(tasks.n):
        assert loop.end[v] == loop.start[v] + tasks.compute[v, loop.where[v]]
        for i, _, variables in tasks.inward[v]:
            p, q = loop.where[i], loop.where[v]
            hop = sum(tasks.transfer(u, p)[q] for u in variables) if len(variables) == 1 else 0
            cached = any(
                loop.where[w] == q and loop.start[w] <= loop.start[v]
                for u in variables
                for w in tasks.instance.consumers[u]
                if w != v
            )
            assert loop.start[v] >= loop.end[i] + (0 if cached else hop)
    for q in range(tasks.devices):
        spans = sorted((loop.start[v], loop.end[v]) for v in range(tasks.n) if loop.where[v] == q)
        assert all(first[1] <= second[0] for first, second in pairwise(spans))
