"""Measured bytes that single nodes allocate for themselves while they run.

    live values ──► forward, metered ──► backward at once, metered ──► bytes beyond what the graph tells
         ▲                 │
         └──── outputs ◄───┘

One walk over the graph, node by node. On a GPU the allocator's peaks are read, so that workspaces of kernels
count; on a CPU what an operator made of several makes between them (see `MemoryMeter`). The gradients that
come to a node are laid out as those of the whole step are.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from netsplit.graph.ir import Graph
from netsplit.graph.storage import storage_bytes
from netsplit.profile.costs import NodeBytes
from netsplit.profile.measure.bench import NodeBench
from netsplit.profile.measure.clock import Clock, worker_conditions
from netsplit.profile.measure.live_values import LiveValues
from netsplit.profile.measure.node_transient import node_transient
from netsplit.profile.measure.predicted_bytes import gradient_strides

__all__ = ["transient_bytes"]


def transient_bytes(
    graph: Graph, batch: tuple[Tensor, ...], values: Mapping[str, Tensor], torch_device: torch.device | str
) -> dict[str, NodeBytes]:
    """Of the nodes that have any; arguments as of `Profiler`."""
    device = torch.device(torch_device)
    clock = Clock(device, 1)
    live = LiveValues(graph, batch, values, device)
    own, strides, transients = storage_bytes(graph), gradient_strides(graph), {}
    with worker_conditions(device, 1):
        for node in graph:
            needs_backward = any(k in graph.requires_backward for k in node.outputs)
            bench = NodeBench(graph, node, clock, needs_backward, nn.Module())
            come = {k: strides[k] for k in node.outputs if k in strides}
            each, _ = node_transient(bench, live, own, come)
            if each != NodeBytes():
                transients[node.name] = each
    return transients
