"""Bytes that one node allocates for itself while it runs, as metered."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Tensor

from netsplit.graph.arguments import Reference
from netsplit.profile.costs import NodeBytes
from netsplit.profile.measure.bench import ForwardResult, NodeBench, random_like
from netsplit.profile.measure.live_values import LiveValues
from netsplit.profile.measure.memory_meter import MemoryMeter

__all__ = ["Strides", "node_transient"]

Strides: TypeAlias = Mapping[str, tuple[int, ...]]  # of variables' gradients
Gradients: TypeAlias = dict[Reference, Tensor]

_NONE: Strides = MappingProxyType({})


def node_transient(
    bench: NodeBench, live: LiveValues, own: Mapping[str, int], strides: Strides = _NONE
) -> tuple[NodeBytes, Gradients]:
    """Bytes of one node, whose outputs `live` has afterwards; and the gradients that it hands on.

    Args:
        own: `storage_bytes` of the graph.
        strides: of the gradients that come to its outputs; where none is known all come, each as its output
            lies.
    """
    meter = MemoryMeter(live.device)
    read = [live[reference] for reference in bench.read]  # alive until all of the backward is done
    context = bench.run_forward(live, meter)
    forward = meter.risen_bytes - sum(own[k] for k in bench.node.outputs if k)
    backward, gradients = _backward(meter, context, strides) if context.outputs else (0, {})
    del read
    return NodeBytes(max(forward, 0), backward), gradients


def _backward(meter: MemoryMeter, context: ForwardResult, strides: Strides) -> tuple[int, Gradients]:
    reached = context.outputs.keys() & strides.keys()
    outputs = {k: t for k, t in context.outputs.items() if not reached or k in reached}
    seeds = [_laid_out(t, strides[k]) if k in strides else random_like(t) for k, t in outputs.items()]
    meter.count(seeds)
    meter.restart()
    with meter:
        gradients = torch.autograd.grad(
            list(outputs.values()), list(context.leaves.values()), seeds, allow_unused=True
        )
    storages = [t.untyped_storage() for t in gradients if t is not None and t.layout is torch.strided]
    own = {storage._cdata: storage.nbytes() for storage in storages}
    handed_on = {t.untyped_storage()._cdata for t in seeds}
    beyond = meter.risen_bytes - sum(own[key] for key in own.keys() - handed_on)
    known = zip(context.leaves, gradients, strict=True)
    return max(beyond, 0), {leaf: gradient for leaf, gradient in known if gradient is not None}


def _laid_out(like: Tensor, strides: tuple[int, ...]) -> Tensor:
    """A gradient of these strides, of which several elements may be one place of memory."""
    if not like.numel():
        return random_like(like)
    places = 1 + sum((n - 1) * step for n, step in zip(like.shape, strides, strict=True))
    return like.new_empty(places).uniform_(-1.0, 1.0).as_strided(like.shape, strides)
