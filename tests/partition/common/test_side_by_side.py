"""Replicas side by side: each device has its part of everything, and copies of weights that are its own."""

from __future__ import annotations

import pytest

from netsplit.partition.common.side_by_side import side_by_side
from netsplit.rewrite import applied, replicate
from tests.builders import cpus
from tests.rewrite.models import STEPS


@pytest.mark.parametrize("name", ["mlp", "transformer", "recurrent"])
def test_no_weight_is_sent_to_a_replica(name: str) -> None:
    """Nor is one that two operators share, which a node of its own hands on to both."""
    graph = STEPS[name].graph()
    graph = applied(graph, replicate(graph, 3))
    device_of = side_by_side(graph, cpus(3))
    assert set(device_of.values()) == {"cpu:0", "cpu:1", "cpu:2"}
    for node in graph:
        if node.initializers and not node.inputs and "~" in node.name:
            assert {device_of[v] for v in graph.successors[node.name]} == {device_of[node.name]}, node
    for group in graph.colocated:
        assert len({device_of[v] for v in group}) == 1
