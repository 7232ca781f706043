"""Columns priced by dynamic programming, and the bounds that follow from them, against brute force."""

from __future__ import annotations

import time
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsplit.partition import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.max_load import column_generation
from netsplit.partition.max_load.model import Hypergraph
from netsplit.partition.max_load.pricing.dynamic import DynamicPricing
from tests.examples import tried
from tests.partition.builders import problems

FEW = settings(max_examples=tried(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def plain_column(model: Hypergraph, chosen: np.ndarray, device: int) -> float:
    """Seconds of a device with the chosen groups, net by net."""
    total = float(model.weight[chosen, device].sum())
    for e in range(len(model.pins)):
        inside = chosen[model.pins[e]]
        total += float(model.hop[e, device]) * bool(inside.any() and not inside.all())
    return total


def subsets(model: Hypergraph, device: int) -> list[np.ndarray]:
    """Every set of groups that the device may have, as [G] bits."""
    every = [np.array(bits, bool) for bits in product((False, True), repeat=model.count)]
    return [bits for bits in every if model.allowed[bits, device].all()]


@FEW
@given(problems(max_nodes=7), st.data())
def test_price_equals_brute_force(problem: Problem, data: st.DataObject) -> None:
    model = Hypergraph.of(Instance.of(problem))
    device = data.draw(st.integers(0, model.devices - 1))
    order = np.array(data.draw(st.permutations(range(model.count))), np.int64)
    drawn = st.lists(st.floats(-1, 4), min_size=model.count, max_size=model.count)
    prices = np.array(data.draw(drawn))
    loads = [
        (plain_column(model, bits, device), float(prices[bits].sum())) for bits in subsets(model, device)
    ]
    limit = data.draw(st.floats(0.05, 1.2)) * max(load for load, _ in loads) + 1e-6
    best = max(price for load, price in loads if load <= limit * (1 + 1e-9))
    pricing = DynamicPricing.of(model, device, order)
    assert pricing is not None
    top, columns = pricing.most(prices, limit, 0.0, 100_000)
    assert top == pytest.approx(max(best, 0.0), abs=1e-9)
    for groups in columns:
        bits = np.isin(np.arange(model.count), groups)
        assert plain_column(model, bits, device) <= limit * (1 + 2e-9)
        assert prices[groups].sum() <= top + 1e-9
    if best > 1e-9:
        assert prices[columns[0]].sum() == pytest.approx(best, abs=1e-9)
    for floor, labels in ((0.0, 1), (0.0, 2), (0.5 * best, 1), (2 * best + 1, 100)):  # never too little
        assert pricing.most(prices, limit, floor, labels)[0] >= best - 1e-9


@settings(FEW, max_examples=20)
@given(problems(max_nodes=6), st.floats(0.6, 1.4))
@pytest.mark.parametrize("by_solver", [False, True])
def test_what_is_excluded_is_not_there(by_solver: bool, problem: Problem, factor: float) -> None:
    model = Hypergraph.of(Instance.of(problem))
    choices = product(range(model.devices), repeat=model.count)
    loads = [
        float(model.loads(np.array(where)).max(initial=0.0))
        for where in choices
        if model.allowed[np.arange(model.count), list(where)].all()
    ]
    if not loads:
        return
    target = factor * min(loads) + 1e-6
    orders = [] if by_solver else [np.arange(model.count)]
    bound, columns, _ = column_generation.excluded(model, target, time.perf_counter() + 2.0, [], orders)
    assert bound <= target
    assert min(loads) >= bound * (1 - 1e-9)
    for c, groups in columns:
        bits = np.isin(np.arange(model.count), groups)
        assert plain_column(model, bits, model.classes[c][0]) <= target * (1 + 1e-6)


def test_one_group_too_dear_is_excluded() -> None:
    """Two devices, groups of 3, 3 and 2 seconds, no hops: 5 is the least, and 4.9 can be ruled out."""
    model = free_groups([3.0, 3.0, 2.0], devices=2)
    assert column_generation.excluded(model, 4.9, time.perf_counter() + 5, [], [np.arange(3)])[0] == 4.9
    assert column_generation.excluded(model, 5.0, time.perf_counter() + 5, [], [np.arange(3)])[0] < 5.0


def free_groups(seconds: list[float], devices: int) -> Hypergraph:
    count = len(seconds)
    return Hypergraph._merged(
        np.arange(count),
        np.repeat(np.array(seconds)[:, None], devices, axis=1),
        [],
        np.zeros((0, devices)),
        np.zeros(count, np.int64),
        [],
        np.zeros(0, np.int64),
        np.full(devices, 1 << 40),
    )
