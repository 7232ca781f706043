"""What an instruction costs beside its operators."""

from __future__ import annotations

import statistics
import time

import torch
from torch import fx

__all__ = ["instruction_seconds"]


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
