"""Orders along which few nets are open."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsplit.partition import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.max_load.model import Hypergraph
from netsplit.partition.max_load.pricing.dynamic import DynamicPricing
from netsplit.partition.max_load.pricing.orders import expected_states, narrowest
from tests.builders import cluster_of, costs_of, graph_of
from tests.examples import tried
from tests.partition.builders import problems

FEW = settings(max_examples=tried(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@FEW
@given(problems(max_nodes=8), st.data())
def test_no_order_has_more_states_than_counted(problem: Problem, data: st.DataObject) -> None:
    model = Hypergraph.of(Instance.of(problem))
    order = np.array(data.draw(st.permutations(range(model.count))), np.int64)
    for device in range(model.devices):
        pricing = DynamicPricing.of(model, device, order)
        assert pricing is not None
        nets = [model.pins[e].tolist() for e in np.flatnonzero(model.hop[:, device] > 0)]
        assert pricing.states <= expected_states(order, nets) * (1 + 1e-9) + 1


@FEW
@given(problems(max_nodes=8), st.data())
def test_the_narrowest_is_an_order_and_no_wider_than_those_known(
    problem: Problem, data: st.DataObject
) -> None:
    model = Hypergraph.of(Instance.of(problem))
    known = [np.array(data.draw(st.permutations(range(model.count))), np.int64) for _ in range(2)]
    for device in range(model.devices):
        order = narrowest(model, device, known)
        assert sorted(order.tolist()) == list(range(model.count))
        nets = [model.pins[e].tolist() for e in np.flatnonzero(model.hop[:, device] > 0)]
        assert expected_states(order, nets) <= min(expected_states(each, nets) for each in known)


def states_of_layers(layers: int) -> tuple[int, int]:
    """States along a topological order and along the narrowest, of layers with two weights and a mask."""
    names, tensors = ["mask"], [("mask", 1, [f"b{k}" for k in range(layers)])]
    for k in range(layers):
        names += [f"v{k}", f"w{k}"]
        tensors += [(f"v{k}", 1, [f"a{k}"]), (f"w{k}", 1, [f"b{k}"])]
    for k in range(layers):
        names += [f"a{k}", f"b{k}"]
        tensors += [(f"a{k}", 1, [f"b{k}"])] + ([(f"b{k}", 1, [f"a{k + 1}"])] if k + 1 < layers else [])
    graph = graph_of(names, tensors)
    problem = Problem(graph, costs_of(graph), cluster_of([10**6] * 2))
    model = Hypergraph.of(Instance.of(problem))
    written = np.arange(model.count)
    both = []
    for order in (written, narrowest(model, 0, [written])):
        pricing = DynamicPricing.of(model, 0, order, states=1 << 20)
        assert pricing is not None
        both.append(pricing.states)
    return both[0], both[1]


def test_layers_with_weights_stay_narrow() -> None:
    """In a topological order all weights come first: states double with each. They need not."""
    few, many = states_of_layers(3), states_of_layers(6)
    assert many[0] > 30 * few[0]
    assert many[1] < 3 * few[1]
