"""`single`, `random`, `round_robin`, `layerwise` and `balanced`."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings

from netsplit.errors import ConfigError, InfeasibleError
from netsplit.partition import Problem, Random, Single
from netsplit.partition.common.instance import Instance
from netsplit.partition.methods.baselines import Balanced, Layerwise, RoundRobin
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program import ZBV
from tests.builders import chain, cluster_of, compile_placed, costs_of
from tests.partition.builders import large_problem, problems, with_capacities


def test_single_takes_the_first_device_or_the_one_it_is_told():
    graph = chain([4, 4])
    problem = Problem(graph, costs_of(graph), cluster_of([0, 0]))
    assert set(Single().partition(problem).device_of.values()) == {"d0"}
    assert set(Single(device="d1").partition(problem).device_of.values()) == {"d1"}


def test_single_refuses_a_device_that_the_cluster_lacks():
    graph = chain([4])
    with pytest.raises(ConfigError, match="no device 'd7'"):
        Single(device="d7").partition(Problem(graph, costs_of(graph), cluster_of([0])))
    with pytest.raises(ConfigError, match=r"single\.device is empty"):
        Single(device="")


def test_random_uses_every_device_about_equally_and_its_seed_matters():
    problem = large_problem(600)
    first = Random().partition(problem).device_of
    other = Random().partition(replace(problem, seed=1)).device_of
    counts = [list(first.values()).count(f"d{p}") for p in range(3)]
    assert min(counts) > 150
    assert first != other


def test_nodes_go_to_the_devices_in_turn():
    graph = chain([1, 1, 1, 1])
    placement = RoundRobin().partition(Problem(graph, costs_of(graph), cluster_of([1, 1])))
    assert list(placement.device_of.values()) == ["d0", "d1", "d0", "d1", "d0"]


def test_a_colocated_set_is_one_turn():
    graph = chain([1, 1, 1], colocated=[["n0", "n2"]])
    placement = RoundRobin().partition(Problem(graph, costs_of(graph), cluster_of([1, 1, 1])))
    assert placement.device_of == {"n0": "d0", "n1": "d1", "n2": "d0", "n3": "d2"}


def where(placement) -> list[str]:
    return list(placement.device_of.values())


def test_layerwise_gives_equal_bytes():
    graph = chain([0, 0, 0, 0], {"n0": 10, "n1": 10, "n2": 40, "n3": 40, "n4": 100})
    problem = Problem(graph, costs_of(graph), cluster_of([10**6] * 2))
    assert where(Layerwise().partition(problem)) == ["d0", "d0", "d0", "d0", "d1"]


@settings(max_examples=80, deadline=None)
@given(problem=problems())
def test_balanced_is_the_best_of_all_runs_that_fit(problem):
    instance = Instance.of(problem)
    count, devices = len(instance.atoms), len(instance.devices)
    total = instance.forward_s + instance.backward_s
    least = np.inf
    for cuts in itertools.combinations_with_replacement(range(count + 1), devices - 1):
        runs = np.searchsorted(np.array(cuts), np.arange(count), side="right")
        own = runs[instance.atom_of]
        if instance.fits(own):
            loads = np.bincount(own, weights=total[np.arange(instance.n), own], minlength=devices)
            least = min(least, loads.max())
    if least == np.inf:
        with pytest.raises(InfeasibleError):
            Balanced().partition(problem)
        return
    placement = Balanced().partition(problem)
    assert placement.report.objective == pytest.approx(least)
    where = instance.encode(placement.device_of)
    loads = np.bincount(where, weights=total[np.arange(instance.n), where], minlength=devices)
    assert loads.max() == pytest.approx(least)
    assert instance.fits(where)


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
    assert [s.nodes[0] for s in compile_placed(*args, cuts=placement.cuts).segments] == [
        "n0",
        "n2",
        "n4",
        "n6",
    ]
    assert len(compile_placed(*args).segments) == 3


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
