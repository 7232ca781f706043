"""The simulation that Baechi's methods share, on examples worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from netsplit.partition.common.instance import Instance
from netsplit.partition.methods.baechi.baechi import (
    AuthorsMemory,
    BaechiProblem,
    StaticMemory,
    virtual_makespan_s,
)
from tests.partition.baechi_cases import problem_of, tasks_of
from tests.partition.builders import problems

FORK = {"a": 2, "b": 4, "c": 5}


def makespan(problem, where: str) -> float:
    device_of = {name: f"d{p}" for name, p in zip(problem.graph.nodes, where, strict=True)}
    return virtual_makespan_s(tasks_of(problem), device_of)


@pytest.mark.parametrize(
    ("where", "seconds"),
    [
        ("000", 11),  # 2 + 4 + 5
        ("001", 10),  # a to 2, on the way to 5, c to 10
        ("011", 14),  # sent once: b from 5 to 9, c to 14
        ("012", 13),  # sent twice, one after the other: to d1 until 5, to d2 until 8
    ],
)
def test_a_tensor_is_sent_once_to_a_device_and_a_device_sends_one_at_a_time(where, seconds):
    assert makespan(problem_of(FORK, [("a", 3, "bc")], devices=3), where) == seconds


def test_training_adds_the_backward_computation_and_the_way_back_of_gradients():
    problem = problem_of(FORK, [("", 9, "a"), ("a", 3, "b"), ("b", 1, "c"), ("c", 1, "")])
    graph = problem.graph
    grown = {k: replace(v, requires_grad=k != "t0") for k, v in graph.variables.items()}
    problem = replace(problem, graph=replace(graph, variables=grown, output_variables=("t3",)))
    tasks = BaechiProblem.of(problem, "training", tick_s=1.0)
    assert tasks.compute[:, 0].tolist() == [6, 12, 15]
    assert tasks.transfer(np.arange(2), 0)[:, 1].tolist() == [6, 2]


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_static_memory_is_5_18_at_every_step(problem):
    """However atoms are spread, what is left is the capacity less the static bytes."""
    tasks = BaechiProblem.of(problem)
    instance = Instance.of(problem)
    memory = StaticMemory(tasks, instance.capacity)
    where = instance.atom_of % len(instance.devices)
    for v in range(tasks.n):
        memory.run(v, where)
    assert (instance.capacity - memory.left).tolist() == instance.used_bytes(where).tolist()


def test_the_authors_count_what_an_operator_makes_and_its_state() -> None:
    problem = problem_of(FORK, [("a", 10, "bc"), ("b", 4, ""), ("c", 5, "")], weights={"a": 7})
    memory = AuthorsMemory(tasks_of(problem), np.array([100, 100]))
    for v in range(3):
        memory.run(v, np.array([0, 0, 1]))
    assert memory.left.tolist() == [79, 95]
