"""Bytes that single nodes allocate for themselves while they run, found without values.

    graph's shapes ──► tensors without data ──► forward and backward, node by node from the last one
       bytes, as metered on a CPU ◄──┤
           how each gradient lies ◄──┘

Nodes with the same call, on tensors and gradients of the same kinds, are run once.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from copy import copy
from typing import TypeAlias

import torch
from torch import Tensor, nn

from netsplit.graph.arguments import Reference, read_by, renamed, storage_bytes
from netsplit.graph.ir import CALL, MOVE, Graph, Initializer, Node, Variable, once_of
from netsplit.graph.recording.stand_ins import StandInMode
from netsplit.profile.costs import NodeBytes
from netsplit.profile.measure.bench import ForwardResult, LiveValues, NodeBench, random_like
from netsplit.profile.measure.clock import Clock, worker_conditions
from netsplit.profile.measure.memory_meter import MemoryMeter

__all__ = ["predicted_transients", "transient_bytes"]

log = logging.getLogger(__name__)

_NONE = NodeBytes()

Strides: TypeAlias = Mapping[str, tuple[int, ...]]
"""Strides of variables' gradients, with the whole step on one device, where it is known what makes them."""
_Gradients: TypeAlias = dict[Reference, Tensor]
_Kind: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]  # sizes, strides
_Metered: TypeAlias = tuple[NodeBytes, dict[int, Tensor]]  # and the gradients, by what is read


def predicted_transients(graph: Graph) -> dict[str, NodeBytes]:
    """Bytes of the nodes that allocate any, as `transient_bytes` meters them on a CPU; Python code and
    operators that torch does not have count none."""
    return _walked(graph)[0]


@once_of
def _walked(graph: Graph) -> tuple[dict[str, NodeBytes], Strides]:
    with StandInMode():
        walk = _WithoutValues(graph)
        walked = (node for node in reversed(graph.nodes.values()) if not node.op.startswith(MOVE))
        unknown = {node.op for node in walked if not walk.run(node)}
    if unknown:
        log.info("Scratch memory is not predicted for %s.", ", ".join(sorted(unknown)))
    transients = {node.name: walk.transients.get(node.name, _NONE) for node in graph}
    return {name: each for name, each in transients.items() if each != _NONE}, walk.strides


class _WithoutValues:
    """A walk from the last node to the first, each on tensors that lie as its variables do."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.own = storage_bytes(graph)
        batch = tuple(_like(self._kind(("var", k))) for k in graph.input_variables)
        self.live = LiveValues(graph, batch, {}, torch.device("cpu"))
        self.metered: dict[Hashable, _Metered] = {}
        self.transients: dict[str, NodeBytes] = {}
        self.strides: dict[str, tuple[int, ...]] = {}

    def run(self, node: Node) -> bool:
        """Meter a node; False if it cannot be run without values."""
        if node.op.startswith(CALL) or node.op.count(".") != 2:
            return False
        read = {each: self._kind(each) for each in dict.fromkeys(read_by(node))}
        come = {k: self.strides[k] for k in node.outputs if k in self.strides}
        key = self._key(node, read, come)
        if key not in self.metered:
            live = copy(self.live)
            live.tensors = {reference: _like(kind) for reference, kind in read.items()}
            needs_backward = any(k in self.graph.requires_backward for k in node.outputs)
            bench = NodeBench(self.graph, node, Clock(live.device), needs_backward, nn.Module())
            try:
                transient, gradients = _node_transient(bench, live, self.own, come)
            except Exception as error:  # torch's own of any kind, where sizes depend on values
                log.debug("%s cannot be run without values: %s", node.name, error)
                return False
            self.metered[key] = transient, {i: gradients[r] for i, r in enumerate(read) if r in gradients}
        self.transients[node.name], handed_on = self.metered[key]
        for i, (tag, k) in enumerate(read):
            if tag != "var" or i not in handed_on or k in node.blocked:
                continue
            if handed_on[i].layout is torch.strided:
                self.strides.setdefault(k, handed_on[i].stride())  # a sum lies as its first term does
        return True

    def _key(self, node: Node, read: Mapping[Reference, _Kind], come: Strides) -> Hashable:
        """What its bytes depend on: the call with its tensors numbered, and the kind of each."""
        numbers: dict[Reference, Reference] = {each: ("var", str(i)) for i, each in enumerate(read)}
        kinds = tuple((kind, self._known(each).requires_grad) for each, kind in read.items())
        carrying = tuple(
            (k in self.graph.requires_backward, ("var", k) in self.live.last_reader, come.get(k))
            for k in node.outputs
        )
        modes = (node.no_grad, node.autocast, node.blocked)
        return node.op, repr(renamed(node, numbers)), kinds, carrying, modes

    def _known(self, reference: Reference) -> Variable | Initializer:
        tag, k = reference
        return self.graph.variables[k] if tag == "var" else self.graph.initializers[k]

    def _kind(self, reference: Reference) -> _Kind:
        known = self._known(reference)
        dtype: torch.dtype = getattr(torch, known.dtype)
        if isinstance(known, Initializer):
            return known.shape, torch.empty(known.shape, device="meta").stride(), dtype
        strides = enumerate(known.strides)
        return known.shape, tuple(0 if d in known.repeated else step for d, step in strides), dtype


def _like(kind: _Kind) -> Tensor:
    sizes, strides, dtype = kind
    return torch.empty_strided(sizes, strides, dtype=dtype)


def transient_bytes(
    graph: Graph, batch: tuple[Tensor, ...], values: Mapping[str, Tensor], torch_device: torch.device | str
) -> dict[str, NodeBytes]:
    """Bytes of the nodes that have any; arguments as of `Profiler`."""
    device = torch.device(torch_device)
    clock = Clock(device)
    live = LiveValues(graph, batch, values, device)
    own, strides, transients = storage_bytes(graph), _walked(graph)[1], {}
    with worker_conditions(device):
        for node in graph:
            needs_backward = any(k in graph.requires_backward for k in node.outputs)
            bench = NodeBench(graph, node, clock, needs_backward, nn.Module())
            come = {k: strides[k] for k in node.outputs if k in strides}
            each, _ = _node_transient(bench, live, own, come)
            if each != NodeBytes():
                transients[node.name] = each
    return transients


def _node_transient(
    bench: NodeBench, live: LiveValues, own: Mapping[str, int], strides: Strides
) -> tuple[NodeBytes, _Gradients]:
    """Bytes of one node, whose outputs `live` has afterwards; and the gradients that it hands on.

    Args:
        own: `storage_bytes` of the graph.
        strides: of gradients that come to its outputs; if none is known, all come, laid out as their outputs.
    """
    meter = MemoryMeter(live.device)
    read = [live[reference] for reference in bench.read]  # alive until all of the backward is done
    context = bench.run_forward(live, meter)
    forward = meter.risen_bytes - sum(own[k] for k in bench.node.outputs if k)
    backward, gradients = _backward(meter, context, strides) if context.outputs else (0, {})
    del read
    return NodeBytes(max(forward, 0), backward), gradients


def _backward(meter: MemoryMeter, context: ForwardResult, strides: Strides) -> tuple[int, _Gradients]:
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
    """A gradient of these strides, in which elements may share memory."""
    if not like.numel():
        return random_like(like)
    places = 1 + sum((n - 1) * step for n, step in zip(like.shape, strides, strict=True))
    return like.new_empty(places).uniform_(-1.0, 1.0).as_strided(like.shape, strides)
