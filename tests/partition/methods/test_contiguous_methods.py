"""`layerwise` and `balanced`: consecutive layers of equal bytes, or of equal time."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from netsplit.errors import InfeasibleError
from netsplit.partition import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.methods.balanced import Balanced
from netsplit.partition.methods.layerwise import Layerwise
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from tests.builders import chain, cluster_of, costs_of
from tests.partition.builders import large_problem, problems, with_capacities


def where(placement) -> list[str]:
    return list(placement.device_of.values())


def test_layerwise_gives_equal_bytes():
    graph = chain([0, 0, 0, 0], {"n0": 10, "n1": 10, "n2": 40, "n3": 40, "n4": 100})
    problem = Problem(graph, costs_of(graph), cluster_of([10**6] * 2))
    assert where(Layerwise().partition(problem)) == ["d0", "d0", "d0", "d0", "d1"]


def test_layerwise_fills_in_order_where_equal_parts_do_not_fit():
    graph = chain([0, 0, 0], {"n0": 30, "n1": 10, "n2": 10, "n3": 30})
    problem = Problem(graph, costs_of(graph), cluster_of([120, 60]))
    placement = Layerwise().partition(problem)
    assert where(placement) == ["d0", "d0", "d0", "d1"]
    assert placement.report.notes == {"fallback": "fill in order"}


def test_balanced_gives_equal_time_and_heeds_speeds():
    graph = chain([0, 0, 0])
    each = DeviceCosts({f"n{i}": NodeSeconds(1.0, 0.0) for i in range(4)})
    fast = DeviceCosts({f"n{i}": NodeSeconds(0.3, 0.0) for i in range(4)})
    alike = Problem(graph, Costs({"cpu": each}, 2), cluster_of([10] * 2))
    assert where(Balanced().partition(alike)) == ["d0", "d0", "d1", "d1"]
    mixed = Problem(graph, Costs({"cpu": each, "gpu": fast}, 2), cluster_of([10] * 2, kinds=["cpu", "gpu"]))
    placement = Balanced().partition(mixed)
    assert placement.report.objective == pytest.approx(1.0)
    assert where(placement) == ["d0", "d1", "d1", "d1"]


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


@pytest.mark.parametrize("method", [Layerwise(), Balanced()], ids=lambda method: method.name)
def test_a_tight_memory_limit_is_heeded(method):
    problem = large_problem(200, 4)
    instance = Instance.of(problem)
    assert instance.fits(instance.encode(method.partition(problem).device_of))
    with pytest.raises(InfeasibleError, match="are missing"):
        method.partition(with_capacities(problem, [1000] * 4))
