"""Measured bytes that single nodes allocate for themselves while they run.

    live values ──► forward, metered ──► backward at once, metered ──► bytes beyond what the graph tells
         ▲                 │
         └──── outputs ◄───┘

One walk over the graph, node by node. On a GPU the allocator's peaks are read, so that workspaces of kernels
count; on a CPU what an operator made of several makes between them (see `MemoryMeter`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from netsplit.graph.ir import Graph
from netsplit.graph.storage import storage_bytes
from netsplit.profile.costs import NodeBytes
from netsplit.profile.measure.bench import ForwardResult, NodeBench, random_like
from netsplit.profile.measure.clock import Clock, worker_conditions
from netsplit.profile.measure.live_values import LiveValues
from netsplit.profile.measure.memory_meter import MemoryMeter

__all__ = ["node_transient", "transient_bytes"]


def transient_bytes(
    graph: Graph, batch: tuple[Tensor, ...], values: Mapping[str, Tensor], torch_device: torch.device | str
) -> dict[str, NodeBytes]:
    """Of the nodes that have any; arguments as of `Profiler`."""
    device = torch.device(torch_device)
    clock = Clock(device, 1)
    live = LiveValues(graph, batch, values, device)
    own, transients = storage_bytes(graph), {}
    with worker_conditions(device, 1):
        for node in graph:
            needs_backward = any(k in graph.requires_backward for k in node.outputs)
            each = node_transient(NodeBench(graph, node, clock, needs_backward, nn.Module()), live, own)
            if each != NodeBytes():
                transients[node.name] = each
    return transients


def node_transient(bench: NodeBench, live: LiveValues, own: Mapping[str, int]) -> NodeBytes:
    """Of one node, whose outputs `live` has afterwards; `own` is `storage_bytes` of the graph."""
    meter = MemoryMeter(live.device)
    read = [live[reference] for reference in bench.read]  # alive until all of the backward is done
    context = bench.run_forward(live, meter)
    forward = meter.risen_bytes - sum(own[k] for k in bench.node.outputs if k)
    backward = _backward(meter, context) if context.outputs else 0
    del read
    return NodeBytes(max(forward, 0), backward)


def _backward(meter: MemoryMeter, context: ForwardResult) -> int:
    seeds = [random_like(t) for t in context.outputs.values()]
    meter.count(seeds)
    meter.restart()
    with meter:
        gradients = torch.autograd.grad(
            list(context.outputs.values()), list(context.leaves.values()), seeds, allow_unused=True
        )
    made = [t.untyped_storage() for t in gradients if t is not None and t.layout is torch.strided]
    own = {storage._cdata: storage.nbytes() for storage in made}
    handed_on = {t.untyped_storage()._cdata for t in seeds}
    return max(meter.risen_bytes - sum(own[key] for key in own.keys() - handed_on), 0)
