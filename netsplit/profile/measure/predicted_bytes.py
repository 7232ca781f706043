"""Bytes that single nodes allocate for themselves while they run, found without values.

    graph's shapes ──► tensors without data ──► forward, node by node ──► how each value lies in memory
       bytes, as metered on a CPU ◄── forward and backward, from the last node on ◄──┘
                     how each gradient lies ◄──┘

Nodes that call the same on tensors of the same kinds, for gradients that lie alike, are run once; none where
two other sizes of the graph say its bytes (`with_line`).
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from copy import copy
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from netsplit.graph.arguments import Reference, read_by, renamed
from netsplit.graph.ir import CALL, Graph, Initializer, Node, Variable, once_of
from netsplit.graph.recording.stand_ins import StandInMode
from netsplit.graph.storage import storage_bytes
from netsplit.profile.costs import NodeBytes
from netsplit.profile.measure.bench import ForwardResult, LiveValues, NodeBench, random_like
from netsplit.profile.measure.clock import Clock, worker_conditions
from netsplit.profile.measure.memory_meter import MemoryMeter

__all__ = ["predicted_transients", "transient_bytes", "with_line"]

log = logging.getLogger(__name__)

_LINE = "line of predicted transients"  # key of `Graph.derived`
_NONE = NodeBytes()

Strides: TypeAlias = Mapping[str, tuple[int, ...]]
"""Of variables' gradients, where the whole step is on one device, as far as it is known what makes them."""
_Gradients: TypeAlias = dict[Reference, Tensor]
_Kind: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]  # sizes, strides
_Metered: TypeAlias = tuple[NodeBytes, dict[int, Tensor]]  # and the gradients, by what is read


@once_of
def predicted_transients(graph: Graph) -> dict[str, NodeBytes]:
    """Bytes of the nodes that have any, as `measure.transients.transient_bytes` meters them on a CPU.

    Pieces of Python, which stay whole as they need values, and operators that torch does not have count none.
    """
    if _LINE in graph.derived:
        return _on_line(graph.batch_size, *graph.derived[_LINE])
    return _walked(graph)[0]


@once_of
def _walked(graph: Graph) -> tuple[dict[str, NodeBytes], Strides]:
    with StandInMode():
        walk = _WithoutValues(graph)
        unknown = {node.op for node in graph if not walk.forward(node)}
        unknown |= {node.op for node in reversed(graph.nodes.values()) if not walk.run(node)}
    if unknown:
        log.info("Scratch memory is not predicted for %s.", ", ".join(sorted(unknown)))
    transients = {node.name: walk.transients.get(node.name, _NONE) for node in graph}
    return {name: each for name, each in transients.items() if each != _NONE}, walk.strides


def with_line(graph: Graph, few: Graph, many: Graph) -> Graph:
    """The graph, whose bytes are taken to lie on the line through those of two other sizes of it."""
    graph.derived[_LINE] = few, many
    return graph


def _on_line(samples: int, few: Graph, many: Graph) -> dict[str, NodeBytes]:
    low, high = predicted_transients(few), predicted_transients(many)
    part = (samples - few.batch_size) / (many.batch_size - few.batch_size)

    def at(first: int, last: int) -> int:
        return round(first + part * (last - first))

    ends = {name: (low.get(name, _NONE), high.get(name, _NONE)) for name in {**low, **high}}
    return {k: NodeBytes(at(a.forward, b.forward), at(a.backward, b.backward)) for k, (a, b) in ends.items()}


@dataclass(frozen=True)
class _ForwardCall:
    """A node's forward: what its bytes depend on but for the gradients that come, and what it reads."""

    key: Hashable
    read: dict[Reference, _Kind]


class _WithoutValues:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.own = storage_bytes(graph)
        self.device = torch.device("cpu")
        batch = tuple(_empty(graph.variables[k]) for k in graph.input_variables)
        values = {k: _empty(init) for k, init in graph.initializers.items()}
        self.live = LiveValues(graph, batch, values, self.device)
        self.clock = Clock(self.device)
        self.calls: dict[str, _ForwardCall] = {}
        self.known: dict[Hashable, dict[int, _Kind]] = {}  # call -> what each output is like that is read
        self.metered: dict[Hashable, _Metered] = {}
        self.transients: dict[str, NodeBytes] = {}
        self.strides: dict[str, tuple[int, ...]] = {}

    def forward(self, node: Node) -> bool:
        """Go on past a node; whether it can be run so."""
        if node.op.startswith(CALL) or node.op.count(".") != 2:
            return self._pass_over(node)
        call = self._call(node)
        if call.key in self.known:
            kinds = self.known[call.key].items()
            self.live.adopt(node, {node.outputs[i]: _like(kind) for i, kind in kinds})
        else:
            try:
                self._bench(node).run_forward(self.live, MemoryMeter(self.device))
            except Exception as error:  # torch's own of any kind, where sizes depend on values
                log.debug("%s cannot be run without values: %s", node.name, error)
                return self._pass_over(node)
            outputs = {i: self.live.tensors.get(("var", k)) for i, k in enumerate(node.outputs)}
            self.known[call.key] = {i: _kind(tensor) for i, tensor in outputs.items() if tensor is not None}
        self.calls[node.name] = call
        return True

    def run(self, node: Node) -> bool:
        """Meter a node, and go on before it; whether it can be run so."""
        call = self.calls.get(node.name)
        if call is None:
            return True
        come = {k: self.strides[k] for k in node.outputs if k in self.strides}
        key = (call.key, tuple(come.get(k) for k in node.outputs))
        if key not in self.metered:
            live = copy(self.live)
            live.tensors = {reference: _like(kind) for reference, kind in call.read.items()}
            try:
                transient, gradients = _node_transient(self._bench(node), live, self.own, come)
            except Exception as error:
                log.debug("%s cannot be run without values: %s", node.name, error)
                return False
            self.metered[key] = (
                transient,
                {i: gradients[r] for i, r in enumerate(call.read) if r in gradients},
            )
        self.transients[node.name], handed_on = self.metered[key]
        for i, (tag, k) in enumerate(call.read):
            if tag == "var" and i in handed_on and k not in node.blocked:
                self._add(k, handed_on[i])
        return True

    def _add(self, k: str, gradient: Tensor) -> None:
        """A sum lies as its first term does."""
        if gradient.layout is torch.strided:
            self.strides.setdefault(k, gradient.stride())

    def _bench(self, node: Node) -> NodeBench:
        needs_backward = any(k in self.graph.requires_backward for k in node.outputs)
        return NodeBench(self.graph, node, self.clock, needs_backward, nn.Module())

    def _pass_over(self, node: Node) -> bool:
        self.live.adopt(node, {k: _empty(self.graph.variables[k]) for k in node.outputs if k})
        return False

    def _call(self, node: Node) -> _ForwardCall:
        """What its bytes depend on: the call with its tensors numbered, and what each is like."""
        read = list(dict.fromkeys(read_by(node)))
        numbers: dict[Reference, Reference] = {each: ("var", str(i)) for i, each in enumerate(read)}
        leaves = [self.live.leaf(each) for each in read]
        kinds = tuple((_kind(leaf), leaf.requires_grad) for leaf in leaves)
        carrying = tuple(
            (k in self.graph.requires_backward, ("var", k) in self.live.last_reader) for k in node.outputs
        )
        modes = (node.no_grad, node.autocast, node.default_dtype, node.blocked)
        key = (node.op, repr(renamed(node, numbers)), kinds, carrying, modes)
        return _ForwardCall(key, dict(zip(read, map(_kind, leaves), strict=True)))


def _kind(tensor: Tensor) -> _Kind:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def _like(kind: _Kind) -> Tensor:
    sizes, strides, dtype = kind
    return torch.empty_strided(sizes, strides, dtype=dtype)


def _empty(like: Variable | Initializer) -> Tensor:
    return torch.empty(like.shape, dtype=getattr(torch, like.dtype), device="cpu")


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
    """A gradient of these strides, of which several elements may be one place of memory."""
    if not like.numel():
        return random_like(like)
    places = 1 + sum((n - 1) * step for n, step in zip(like.shape, strides, strict=True))
    return like.new_empty(places).uniform_(-1.0, 1.0).as_strided(like.shape, strides)
