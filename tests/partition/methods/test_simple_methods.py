"""`single`, `random`, `round_robin`, `layerwise` and `balanced`."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from netsplit.errors import ConfigError, InfeasibleError
from netsplit.partition import Problem, Random, Single
from netsplit.partition.common.instance import Instance
from netsplit.partition.methods.baselines import Balanced, Layerwise, RoundRobin
from tests.builders import chain, cluster_of, costs_of
from tests.partition.builders import large_problem, problems


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
