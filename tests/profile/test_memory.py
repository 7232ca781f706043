"""Static bytes: what is trained counts alpha times, what is frozen once."""

from __future__ import annotations

import torch
from torch import nn

from netsplit.cluster.cluster import Cluster, Device
from netsplit.graph import capture
from netsplit.partition import Problem, Single
from netsplit.planning.verify import recompute_used_bytes
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.profile.memory import memory_of, node_state_bytes, node_weight_bytes, static_bytes


def test_frozen_parameters_and_buffers_count_once() -> None:
    body, head = nn.Linear(64, 64), nn.Linear(64, 4)
    model = nn.Sequential(body.requires_grad_(False), nn.BatchNorm1d(64, affine=False), head)
    graph = capture(model, nn.CrossEntropyLoss(), (torch.randn(8, 64), torch.arange(8) % 4))
    frozen = sum(t.nbytes for t in (*body.parameters(), *model[1].buffers()))
    trained = sum(t.nbytes for t in head.parameters())
    assert sum(node_weight_bytes(graph).values()) == frozen + trained
    assert sum(node_state_bytes(graph, 4).values()) == frozen + 4 * trained
    variables = sum(variable.nbytes for variable in graph.variables.values())
    need = frozen + 4 * trained + 2 * variables
    assert memory_of(graph, graph.nodes, 4) == need
    assert static_bytes(graph, dict.fromkeys(graph.nodes, "d"), 4) == {"d": need}
    costs = Costs({"cpu": DeviceCosts(dict.fromkeys(graph.nodes, NodeSeconds(1.0, 1.0)))}, alpha=4)
    problem = Problem(graph, costs, Cluster("one", (Device("d", "cpu", need),), {}))
    assert recompute_used_bytes(problem, set(graph.nodes)) == need
    assert set(Single().partition(problem).device_of.values()) == {"d"}
