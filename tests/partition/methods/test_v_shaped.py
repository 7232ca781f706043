"""`balanced` with `v`: two runs of layers a device, over the devices and back."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings

from netsplit.partition import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.methods.balanced import Balanced
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program import ZBV, compile_program
from tests.builders import chain, cluster_of
from tests.partition.builders import problems, with_capacities


def on_two(seconds: dict[str, float], capacity: int = 10**6) -> Problem:
    """A chain of eight nodes on a device of each kind, with so many seconds a node."""
    graph = chain([0] * 7)
    costs = {
        kind: DeviceCosts({f"n{i}": NodeSeconds(each, 0.0) for i in range(8)})
        for kind, each in seconds.items()
    }
    return Problem(graph, Costs(costs, 2), cluster_of([capacity] * 2, kinds=list(seconds)))


def test_runs_go_over_the_devices_and_back_and_the_turn_is_cut() -> None:
    problem = on_two({"a": 1.0, "b": 1.0})
    placement = Balanced(v=True).partition(problem)
    assert [placement.device_of[f"n{i}"] for i in range(8)] == [
        "d0",
        "d0",
        "d1",
        "d1",
        "d1",
        "d1",
        "d0",
        "d0",
    ]
    assert placement.cuts == ("n4",)
    assert placement.report.objective == pytest.approx(4.0)
    args = problem.graph, placement.device_of, placement.priority, problem.cluster, ZBV(4)
    assert [s.nodes[0] for s in compile_program(*args, cuts=placement.cuts).segments] == [
        "n0",
        "n2",
        "n4",
        "n6",
    ]
    assert len(compile_program(*args).segments) == 3


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_the_slowest_run_is_the_fastest_there_is_where_memory_is_ample(problem: Problem) -> None:
    problem = with_capacities(problem, [2**40] * len(problem.cluster.devices))
    instance = Instance.of(problem)
    count, devices = len(instance.atoms), len(instance.devices)
    assume(count + 2 * devices < 14)
    lane = np.array([*range(devices), *reversed(range(devices))])
    total = instance.forward_s + instance.backward_s

    def slowest(runs: np.ndarray) -> float:
        return float(np.bincount(runs, total[np.arange(instance.n), lane[runs]], 2 * devices).max())

    least = min(
        slowest(np.searchsorted(np.array(cuts), np.arange(count), side="right")[instance.atom_of])
        for cuts in itertools.combinations_with_replacement(range(count + 1), 2 * devices - 1)
    )
    placement = Balanced(v=True).partition(problem)
    where = instance.encode(placement.device_of)
    load = np.bincount(where, total[np.arange(instance.n), where], devices)
    assert load.max() <= 2 * least + 1e-9
    assert placement.report.objective == pytest.approx(load.max())
