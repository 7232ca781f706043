"""What copies to the host and back cost: by hand on small graphs."""

from __future__ import annotations

import pytest

from netsplit.graph.ir import Graph
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds, Offload, offloaded, saved_bytes
from netsplit.profile.memory import lifetimes_model
from tests.simulate.test_memory import chain_of, node_of


def graph() -> Graph:
    """x -> a -> b -> c: b and c save what a makes, c beside it 7 bytes, a the batch, which stays."""
    return chain_of(
        node_of("a", "x", saved=("x",), initializers=("w",)),
        node_of("b", "k_a", saved=("k_a",)),
        node_of("c", "k_b", saved=("k_a",), saved_bytes=7),
        weights={"w": 5000},
    )


def costs(alpha: int = 4) -> Costs:
    node = NodeSeconds(1.0, 2.0, 0.5)
    return Costs({"gpu": DeviceCosts(dict.fromkeys("abc", node), 1e-3, host_s_per_byte=0.01)}, alpha)


def test_a_storage_leaves_once_and_comes_back_once() -> None:
    """With the first that saves it, in the forward; with the last, whose backward is first."""
    assert saved_bytes(graph()) == ({"a": 0, "b": 100, "c": 7}, {"a": 0, "b": 0, "c": 107})


def test_copies_are_added_to_what_makes_them() -> None:
    both = offloaded(costs(), graph(), "both")
    assert both.offload == Offload(optimizer=True, activations=True)
    on = both.devices["gpu"]
    assert on.nodes["a"] == NodeSeconds(1.0, 2.0, 0.5)
    assert on.nodes["b"] == NodeSeconds(2.0, 2.0, 0.5)
    assert on.nodes["c"] == NodeSeconds(pytest.approx(1.07), pytest.approx(3.07), 0.5)  # type: ignore[arg-type]
    assert on.step_s_per_byte == pytest.approx(1e-3 + 2 * 2 * 0.01)  # two moments, out and back
    assert offloaded(costs(), graph(), "optimizer").devices["gpu"].nodes == costs().devices["gpu"].nodes
    activations = offloaded(costs(), graph(), "activations").devices["gpu"]
    assert activations.step_s_per_byte == 1e-3


def test_what_stays_on_the_device_is_what_methods_count() -> None:
    """Neither moments, nor more than one micro-batch's saved tensors."""
    both = offloaded(costs(), graph(), "both")
    assert (both.alpha, both.device_alpha, costs().device_alpha) == (4, 2, 4)
    plain, less = lifetimes_model(graph(), 4, 3), lifetimes_model(graph(), both.device_alpha, 1)
    assert plain.total_bytes - less.total_bytes == 2 * 5000 + 2 * (100 + 100 + 7)
