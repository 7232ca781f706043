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
from tests.builders import chain, cluster_of, costs_of
from tests.partition.builders import problems


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
