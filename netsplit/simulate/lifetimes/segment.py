"""The bytes of one segment: what its forward makes, saves and writes, and what stays for its backward."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any

from netsplit.graph.arguments import argument
from netsplit.graph.deferral.deferrable import weight_operand
from netsplit.graph.ir import Graph, Node, once_of
from netsplit.graph.operators import is_here, written_initializers
from netsplit.graph.storage import storage_of
from netsplit.profile.costs import NodeBytes
from netsplit.program.instructions import Segment
from netsplit.rewrite.layouts import stand_in_run

__all__ = ["CheckpointRun", "OfSize", "OfSizes", "SegmentMemory", "operand_of_weight", "written_bases"]

_NONE = NodeBytes()


class SegmentMemory:
    """A segment's own bytes, the same for every micro-batch.

    Args:
        own: `storage_bytes` of the graph.
        deferred: nodes whose weight gradients a backward in two parts puts off.
        transients: what nodes allocate for themselves.
        offloaded: what it keeps lies in the host's memory, and comes back storage by storage as its backward
            reads it.
        kept_results: nodes whose results stay where the segment is computed again.
    """

    def __init__(
        self,
        graph: Graph,
        training: bool,
        segment: Segment,
        own: Mapping[str, int],
        deferred: Collection[str] = (),
        transients: Mapping[str, NodeBytes] = MappingProxyType({}),
        offloaded: bool = False,
        kept_results: Collection[str] = (),
    ) -> None:
        self.graph, self.segment, self.own = graph, segment, own
        self.transients, self.offloaded = transients, offloaded
        self.walks: dict[Hashable, Any] = {}  # see `backward_walk`
        self.nodes = [graph.nodes[name] for name in segment.nodes]
        self.produced = _roots(graph, (k for node in self.nodes for k in node.outputs))
        self.produced -= _roots(graph, segment.inputs)
        self.outputs = _roots(graph, segment.outputs)
        requires_backward = [k for k in segment.outputs if graph.variables[k].requires_grad]
        self.requires_backward = tuple(requires_backward) if training else ()
        groups = groupby(self.nodes, lambda node: node.checkpoint)
        runs = [_checkpoint_run(graph, tuple(group), own, transients) for name, group in groups if name]
        self.own_checkpoint = {node.name: run for run in runs for node in run.nodes}
        self.saving = {node.name: self._saved(node) for node in self.nodes}
        saved = frozenset[str]().union(*self.saving.values())
        self.kept = (saved & self.produced) - self.outputs
        self.extra = {node.name: node.saved_bytes if self.requires_backward else 0 for node in self.nodes}
        self.kept_bytes = sum(own[root] for root in self.kept) + sum(self.extra.values())
        self.context = self._context(saved) if self.requires_backward else ()
        self.parameters = frozenset[str]().union(*map(self._trainable, self.nodes))
        fixed = (node for node in self.nodes if not self._trainable(node).issuperset(node.initializers))
        self.written = frozenset(written_initializers(graph, (v for v in fixed if is_here(graph, v))))
        self.snapshot_bytes = sum(graph.initializers[k].nbytes for k in self.written)  # see `runtime.pieces`
        self.made_again = _roots(graph, self.requires_backward) & self.produced
        # Outputs leave too while it is not known that they stay.
        leaving = sum(own[root] for root in saved & self.produced & self.outputs)
        self.leaving_bytes = self.kept_bytes + leaving if offloaded else 0
        self.deferred = {
            node.name: parameters
            for node in self.nodes
            if node.name in deferred and (parameters := _put_off(graph, node, segment.nodes))
        }
        self.carrying = {k for node in self.nodes for k in node.inputs if graph.variables[k].requires_grad}
        held = {run.nodes[-1].name: run.arguments for run in runs}
        kept = self.outputs if offloaded else self.outputs | self.kept
        self.forward_peak = _forward_peak(
            graph, self.nodes, self.produced, kept, own, self.extra, transients, held, offloaded
        )
        results = [node for node in self.nodes if node.name in kept_results]
        self.results = _roots(graph, (k for node in results for k in node.outputs)) & self.produced
        self.forward_peak_unsaved = _forward_peak(
            graph, self.nodes, self.produced, self.outputs | self.results, own, {}, transients, held
        )

    def transient(self, node: str) -> NodeBytes:
        return self.transients.get(node, _NONE)

    def _trainable(self, node: Node) -> set[str]:
        return {k for k in node.initializers if self.graph.initializers[k].requires_grad}

    def _saved(self, node: Node) -> frozenset[str]:
        if not self.requires_backward:
            return frozenset()
        run = self.own_checkpoint.get(node.name)
        if run is not None:
            return run.arguments if node.name == run.last_back else frozenset()
        return _roots(self.graph, node.saved)

    def _context(self, saved: Collection[str]) -> tuple[str, ...]:
        """Inputs and outputs that live until the backward is over."""
        inputs = [
            k
            for k in self.segment.inputs
            if self.graph.variables[k].requires_grad or storage_of(self.graph, k) in saved
        ]
        return (*self.requires_backward, *inputs)


@dataclass(frozen=True)
class CheckpointRun:
    """Consecutive nodes of one activation checkpoint of the model's own, within a segment.

    The runtime computes them as one function, of which the arguments stay (`graph.module`). It is made again,
    up to the last node that saves anything, where that goes back. What is saved then goes as the nodes go
    back; the arguments go after the last of those that save anything.
    """

    nodes: tuple[Node, ...]
    arguments: frozenset[str]  # storages that come from outside
    saving: Mapping[str, frozenset[str]]  # nodes that save anything, in order -> storages that are made again
    extra: Mapping[str, int]  # of these, bytes of what else they save
    peak: int  # bytes, beside all that is there, while it is made again

    @property
    def last_back(self) -> str:
        """The node that goes back last of those that save anything, the first of them; "" if none does."""
        return next(iter(self.saving), "")


def _checkpoint_run(
    graph: Graph, nodes: tuple[Node, ...], own: Mapping[str, int], transients: Mapping[str, NodeBytes]
) -> CheckpointRun:
    made, inside = {k for node in nodes for k in node.outputs if k}, {node.name for node in nodes}
    arguments = _roots(graph, (k for node in nodes for k in node.inputs if k not in made))
    produced = _roots(graph, made) - arguments
    saving: dict[str, frozenset[str]] = {}
    extra: dict[str, int] = {}
    for node in nodes:
        run = stand_in_run(graph, node.name)
        if run is None:  # all that can be
            saving[node.name] = _roots(graph, (*node.inputs, *node.outputs)) & produced
        elif run.saves:
            saving[node.name], extra[node.name] = _roots(graph, run.saved) & produced, run.saved_bytes
    last = max((i for i, node in enumerate(nodes) if node.name in saving), default=-1)
    if last >= 0 and not extra.get(nodes[last].name):  # torch stops once all is there that is saved
        produced -= _roots(graph, nodes[last].outputs) - saving[nodes[last].name]
    leaving = (k for k in made if not inside.issuperset(graph.variables[k].consumers))
    staying = _roots(graph, leaving).union(*saving.values())
    peak = _forward_peak(graph, nodes[: last + 1], produced, staying, own, extra, transients)
    return CheckpointRun(nodes, arguments, saving, extra, peak)


def _forward_peak(
    graph: Graph,
    nodes: Sequence[Node],
    produced: Collection[str],
    staying: Collection[str],
    own: Mapping[str, int],
    extra: Mapping[str, int],
    transients: Mapping[str, NodeBytes],
    held: Mapping[str, Collection[str]] = MappingProxyType({}),
    leaving: bool = False,
) -> int:
    """Bytes of storages that the nodes make, beside all that is there before.

    Args:
        nodes: in order.
        produced: the storages that count.
        staying: those among them that do not go after the last node that reads them.
        extra: of nodes, bytes of what else they save.
        transients: what they allocate for themselves, with that.
        held: node -> storages that are read until it is over, too.
        leaving: what else a node saves goes with it.
    """
    last = {
        root: node.name
        for node in nodes
        for root in _roots(graph, (*node.inputs, *node.outputs)).union(held.get(node.name, ()))
    }
    dying: dict[str, list[str]] = {}
    for root in last.keys() & (set(produced) - set(staying)):
        dying.setdefault(last[root], []).append(root)
    seen: set[str] = set()
    now = peak = 0
    for node in nodes:
        made = _roots(graph, node.outputs).intersection(produced) - seen
        seen |= made
        saved = extra.get(node.name, 0)
        now += sum(own[root] for root in made) + saved
        peak = max(peak, now, now - saved + transients.get(node.name, _NONE).forward)
        now -= sum(own[root] for root in dying.get(node.name, ()))
        now -= saved if leaving else 0
    return peak


def _roots(graph: Graph, variables: Iterable[str]) -> frozenset[str]:
    return frozenset(storage_of(graph, k) for k in variables if k)


def operand_of_weight(graph: Graph, node: Node, nodes: Collection[str]) -> Any:
    i = weight_operand(graph, node, nodes)
    return None if i is None else argument(node, i, "weight")


def _put_off(graph: Graph, node: Node, nodes: Collection[str]) -> tuple[str, ...]:
    """Parameters whose gradients a node puts off: its weight, through views, and a convolution's bias."""
    template = operand_of_weight(graph, node, nodes)
    while isinstance(template, dict) and "var" in template:
        producer = graph.variables[template["var"]].producer
        template = graph.nodes[producer].args[0] if producer is not None else None
    if not isinstance(template, dict) or "init" not in template:
        return ()
    names = [template["init"]]
    if "conv" in node.kind:
        names += [k for k in node.initializers if k not in names]
    return tuple(k for k in names if graph.initializers[k].requires_grad)


@once_of
def written_bases(graph: Graph) -> dict[str, str]:
    """Node that writes into a view -> the variable that owns the memory.

    Autograd copies the gradient of that, and of the part that was written once more (CopySlices).
    """
    bases = {}
    for node in graph:
        made = [graph.variables[k] for k in node.outputs if k]
        if node.kind.endswith("_") and node.inputs and any(each.requires_grad for each in made):
            k = node.inputs[0]
            if storage_of(graph, k) in graph.variables and _is_view(graph, k):
                bases[node.name] = storage_of(graph, k)
    return bases


def _is_view(graph: Graph, k: str) -> bool:
    producer = graph.variables[k].producer
    while producer is not None and graph.nodes[producer].kind.endswith("_") and graph.nodes[producer].inputs:
        k = graph.nodes[producer].inputs[0]  # it answers what it wrote into
        producer = graph.variables[k].producer
    if producer is None or storage_of(graph, k) != k:
        return producer is not None
    run = stand_in_run(graph, producer)
    return run is not None and k in run.views


@dataclass(frozen=True)
class OfSize:
    """What micro-batches of one size take."""

    graph: Graph
    own: Mapping[str, int]  # bytes of storages
    shapes: Mapping[int, SegmentMemory]


@dataclass(frozen=True)
class OfSizes:
    """What micro-batches take, of which the last may be smaller."""

    usual: OfSize
    last: OfSize
    microbatches: int

    def at(self, i: int) -> OfSize:
        """What a micro-batch takes."""
        return self.last if i == self.microbatches - 1 else self.usual

    def bytes_of(self, k: str, i: int) -> int:
        """Bytes of a variable in it."""
        return self.at(i).graph.variables[k].nbytes
