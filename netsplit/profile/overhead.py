"""What an instruction costs beside its operators."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

import torch
from torch import fx

from netsplit.cluster.cluster import Cluster

__all__ = ["instruction_seconds", "with_messages"]


def instruction_seconds(torch_device: torch.device | str, repeats: int = 200) -> float:
    """Seconds to begin and end one computation: half of forward and backward of a segment that does nothing.

    The segment's only operator is a view, so what is timed is the call of an ``fx.GraphModule``, the
    making of a leaf, and the start of autograd's engine. Median of `repeats`.
    """
    graph = fx.Graph()
    graph.output((graph.call_function(torch.ops.aten.alias.default, (graph.placeholder("x"),)),))
    module = fx.GraphModule(torch.nn.Module(), graph)
    value = torch.ones(1, device=torch_device)
    seed = torch.ones(1, device=torch_device)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        leaf = value.detach().requires_grad_()
        (result,) = module(leaf)
        torch.autograd.backward([result], [seed])
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) / 2


def with_messages(instruction_s: Mapping[str, float], cluster: Cluster) -> dict[str, float]:
    """Device kind to seconds of an instruction, where most instructions send or receive.

    Between processes on CPUs the latency of a message is software: the seconds that its two ends compute,
    which their operators then lack. There an instruction costs at least the mean latency of the links.
    """
    kinds = {device.name: device.kind for device in cluster.devices if device.torch_device == "cpu"}
    latencies: dict[str, list[float]] = {}
    for (source, target), link in cluster.links.items():
        if source in kinds and target in kinds:
            for end in (source, target):
                latencies.setdefault(kinds[end], []).append(link.latency_s)
    return {
        kind: max(seconds, statistics.mean(latencies.get(kind, [0.0])))
        for kind, seconds in instruction_s.items()
    }
