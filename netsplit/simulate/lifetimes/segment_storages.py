"""The storages of a segment: what its forward makes, saves and writes; what its gradients pass through."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
from netsplit.simulate.lifetimes.gradient_strides import NO_GRADIENT
from netsplit.simulate.lifetimes.own_checkpoints import CheckpointRun, checkpoint_runs

__all__ = ["SegmentStorages", "operand_of_weight"]

_NONE = NodeBytes()
_COUNTED_LOSSES = frozenset({"cross_entropy_loss", "nll_loss", "nll_loss2d", "nll_loss_nd"})
_COUNT_BYTES = 8  # of the targets that count, which the runtime notes of every micro-batch


class SegmentStorages:
    """What a segment's bytes are counted over; arguments as of `SegmentMemory`."""

    def __init__(
        self,
        graph: Graph,
        training: bool,
        segment: Segment,
        own: dict[str, int],
        deferred: frozenset[str] = frozenset(),
        transients: Mapping[str, NodeBytes] = MappingProxyType({}),
        offloaded: bool = False,
    ) -> None:
        self.graph = graph
        self._written_bases = written_bases(graph)
        self.segment = segment
        self.own = own
        self.transients = transients
        self.offloaded = offloaded
        self.nodes = [graph.nodes[name] for name in segment.nodes]
        self.produced = {storage_of(graph, k) for node in self.nodes for k in node.outputs if k}
        self.produced -= {storage_of(graph, k) for k in segment.inputs}
        self.outputs = {storage_of(graph, k) for k in segment.outputs}
        requires_backward = [k for k in segment.outputs if graph.variables[k].requires_grad]
        self.requires_backward = tuple(requires_backward) if training else ()
        self.checkpoint_runs = checkpoint_runs(graph, self.nodes, segment.outputs, own, transients)
        self.own_checkpoint = {node.name: run for run in self.checkpoint_runs for node in run.nodes}
        self.saving = {node.name: self._saved(node) for node in self.nodes}
        saved = {root for roots in self.saving.values() for root in roots}
        self.kept = (saved & self.produced) - self.outputs
        self.extra = {node.name: node.saved_bytes if self.requires_backward else 0 for node in self.nodes}
        self.kept_bytes = sum(own[root] for root in self.kept) + sum(self.extra.values())
        self.context = self._context(saved) if self.requires_backward else ()
        counted = sum(node.kind in _COUNTED_LOSSES for node in self.nodes)
        self.noted_bytes = _COUNT_BYTES * counted if training else 0
        self.parameters = frozenset[str]().union(*map(self._trainable, self.nodes))
        fixed = (node for node in self.nodes if not self._trainable(node).issuperset(node.initializers))
        self.written = frozenset(written_initializers(graph, (v for v in fixed if is_here(graph, v))))
        self.snapshot_bytes = sum(graph.initializers[k].nbytes for k in self.written)  # see `runtime.pieces`
        self.made_again = {storage_of(graph, k) for k in self.requires_backward} & self.produced
        # Outputs leave too while it is not known that they stay.
        leaving = sum(own[root] for root in saved & self.produced & self.outputs)
        self.leaving_bytes = self.kept_bytes + leaving if offloaded else 0
        self.deferred = {
            node.name: parameters
            for node in self.nodes
            if node.name in deferred and (parameters := _put_off(graph, node, segment.nodes))
        }
        self.carrying = {k for node in self.nodes for k in node.inputs if graph.variables[k].requires_grad}
        self.first_writes: dict[str, str] = {}  # base of a view that is written -> what writes first
        for node in self.nodes:
            if (base := self.written_base(node)) is not None:
                self.first_writes.setdefault(base, node.name)
        self.carrying |= self.first_writes.keys()
        self.bases = frozenset(base for base in self.first_writes if is_view(graph, base))

    def transient(self, node: str) -> NodeBytes:
        return self.transients.get(node, _NONE)

    def written_base(self, node: Node) -> str | None:
        """As `written_bases` has it."""
        return self._written_bases.get(node.name)

    def wants_what_was_before(self, node: Node, base: str) -> bool:
        """Whether there is a gradient of what a write into a view finds in its memory: of new zeros not."""
        producer = self.graph.variables[base].producer
        if self.first_writes[base] != node.name or producer is None:
            return True
        made = self.graph.nodes[producer]
        return made.kind not in NO_GRADIENT and bool(
            self._trainable(made) or any(self.graph.variables[k].requires_grad for k in made.inputs)
        )

    def _trainable(self, node: Node) -> set[str]:
        return {k for k in node.initializers if self.graph.initializers[k].requires_grad}

    def _saved(self, node: Node) -> frozenset[str]:
        if not self.requires_backward:
            return frozenset()
        run: CheckpointRun | None = self.own_checkpoint.get(node.name)
        if run is not None:
            return run.arguments if node.name == run.last_back else frozenset()
        return frozenset(storage_of(self.graph, k) for k in node.saved)

    def _context(self, saved: Collection[str]) -> tuple[str, ...]:
        """Inputs and outputs that live until the backward is over."""
        inputs = [
            k
            for k in self.segment.inputs
            if self.graph.variables[k].requires_grad or storage_of(self.graph, k) in saved
        ]
        return (*self.requires_backward, *inputs)


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
    """Node -> the variable whose memory its write into a view of it changes: its gradient is copied where a
    part is changed (autograd's CopySlices)."""
    read = ((node.name, _overwritten(graph, node)) for node in graph)
    return {name: storage_of(graph, k) for name, k in read if k is not None and is_view(graph, k)}


@once_of
def is_view(graph: Graph, k: str) -> bool:
    """Whether autograd takes a variable for a view."""
    producer = graph.variables[k].producer
    if producer is None:
        return False
    node = graph.nodes[producer]
    if node.kind.endswith("_"):  # it answers what it wrote into
        return bool(node.inputs) and is_view(graph, node.inputs[0])
    run = stand_in_run(graph, producer)
    return storage_of(graph, k) != k or (run is not None and k in run.views)


def _overwritten(graph: Graph, node: Node) -> str | None:
    """The variable that the node writes into and returns, where a gradient comes to it."""
    made, read = (next(filter(None, ks), None) for ks in (node.outputs, node.inputs))
    if made is None or read is None or not node.kind.endswith("_"):
        return None
    root = storage_of(graph, read)
    returned = root in graph.variables and storage_of(graph, made) == root
    return read if returned and graph.variables[made].requires_grad else None
