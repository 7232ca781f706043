"""Bytes inside one segment: what its forward makes and keeps, and how its backward goes through it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from netsplit.graph.ir import Node
from netsplit.graph.storage import storage_of
from netsplit.program.instructions import Program, Segment

__all__ = ["Key", "SegmentMemory", "Walk"]

Key = tuple[str, int, int]  # variable, micro-batch, number (0 for its value, others for gradients)

_SAME_GRADIENT = frozenset(
    {"add", "add_", "alias", "clone", "contiguous", "detach", "flatten", "permute", "reshape", "squeeze"}
    | {"t", "transpose", "unflatten", "unsqueeze", "view"}
)
"""Operators whose backward hands on the output's gradient itself, where the sizes are equal."""
_PART_OF_GRADIENT = frozenset({"cat", "concat", "concatenate"})
"""Operators whose backward hands on views of the output's gradient."""


@dataclass(frozen=True)
class Walk:
    """What one segment's backward adds to the bytes alive when it starts."""

    peak: tuple[int, int]  # of activations, of parameters' gradients
    parameters: frozenset[str]  # that have a gradient now and had none
    gradients: int  # their bytes
    leaves: tuple[str, ...]  # inputs that got a gradient


class SegmentMemory:
    """A segment's own bytes in forward and backward, the same for every micro-batch."""

    def __init__(self, program: Program, segment: Segment, own: dict[str, int]) -> None:
        graph = self.graph = program.graph
        self.segment = segment
        self.own = own
        self.nodes = [graph.nodes[name] for name in segment.nodes]
        self.produced = {storage_of(graph, k) for node in self.nodes for k in node.outputs if k}
        self.produced -= {storage_of(graph, k) for k in segment.inputs}
        self.outputs = {storage_of(graph, k) for k in segment.outputs}
        carrying = [k for k in segment.outputs if graph.variables[k].requires_grad]
        self.carrying = tuple(carrying) if program.training else ()
        self.saving = {node.name: self._saved(node) for node in self.nodes}
        saved = {root for roots in self.saving.values() for root in roots}
        self.kept = (saved & self.produced) - self.outputs
        self.extra = {node.name: node.saved_bytes if self.carrying else 0 for node in self.nodes}
        self.kept_bytes = sum(own[root] for root in self.kept) + sum(self.extra.values())
        self.context = self._context(saved) if self.carrying else ()
        trainable = (
            k for node in self.nodes for k in node.initializers if graph.initializers[k].requires_grad
        )
        self.parameters = frozenset(trainable)
        self.forward_peak = self._forward_peak()
        self._walks: dict[tuple[frozenset[str], frozenset[str]], Walk] = {}

    def kept_key(self, i: int) -> Key:
        return (f"kept by segment {self.segment.index}", i, 0)

    def backward(self, seeds: frozenset[str], fresh: frozenset[str]) -> Walk:
        """Backward from gradients of the outputs `seeds`, to parameters of which `fresh` have none yet."""
        if (seeds, fresh) not in self._walks:
            self._walks[seeds, fresh] = _BackwardWalk(self, seeds, fresh).run()
        return self._walks[seeds, fresh]

    def _saved(self, node: Node) -> frozenset[str]:
        return frozenset(storage_of(self.graph, k) for k in node.saved) if self.carrying else frozenset()

    def _context(self, saved: Collection[str]) -> tuple[str, ...]:
        """Inputs and outputs that live until the backward is over."""
        inputs = [
            k
            for k in self.segment.inputs
            if self.graph.variables[k].requires_grad or storage_of(self.graph, k) in saved
        ]
        return (*self.carrying, *inputs)

    def _forward_peak(self) -> int:
        last = {
            storage_of(self.graph, k): node.name
            for node in self.nodes
            for k in (*node.inputs, *filter(None, node.outputs))
        }
        dying: dict[str, list[str]] = {}
        for root in self.produced - self.outputs - self.kept:
            dying.setdefault(last[root], []).append(root)
        seen: set[str] = set()
        now = peak = 0
        for node in self.nodes:
            made = {storage_of(self.graph, k) for k in node.outputs if k} & self.produced - seen
            seen |= made
            now += sum(self.own[root] for root in made) + self.extra[node.name]
            peak = max(peak, now)
            now -= sum(self.own[root] for root in dying.get(node.name, ()))
        return peak


@dataclass(eq=False)
class _Gradient:
    """A storage that gradients of variables live in."""

    nbytes: int
    holders: int = 1


@dataclass
class _BackwardWalk:
    """Autograd's way back through a segment, bytes by bytes.

    A gradient that an operator hands on unchanged is one storage with more holders. A second gradient
    of a variable is added in place where nobody else sees the first, else into a new storage; an input
    of the segment gets a copy of its own where its gradient is shared (as AccumulateGrad does). A
    parameter with several users gets its gradient from the last of them; until then it is kept apart.
    """

    shape: SegmentMemory
    seeds: frozenset[str]
    fresh: frozenset[str]
    now: int = 0
    gradients: int = 0  # of parameters
    passing: int = 0  # of these, bytes that go once the operator's gradients are handed on
    peak: tuple[int, int] = (0, 0)
    held: dict[str, tuple[_Gradient, bool]] = field(default_factory=dict)  # variable -> in what, all of it?
    apart: set[str] = field(default_factory=set)  # parameters
    leaves: list[str] = field(default_factory=list)

    def run(self) -> Walk:
        shape = self.shape
        for k in self.seeds:
            self.held[k] = (_Gradient(shape.graph.variables[k].nbytes, holders=2), True)
        nodes = self._reached()
        self.savers = Counter(root for roots in shape.saving.values() for root in roots & shape.kept)
        self.first_reader = {k: node.name for node in nodes for k in node.inputs}
        self.users = Counter(k for node in nodes for k in node.initializers)
        found = self.fresh & self.users.keys()
        for node in nodes:
            self._node(node, [self.held.pop(k) for k in node.outputs if k in self.held])
        initializers = shape.graph.initializers
        return Walk(self.peak, found, sum(initializers[k].nbytes for k in found), tuple(self.leaves))

    def _reached(self) -> list[Node]:
        """The nodes that a gradient gets to, last first."""
        carrying = set(self.seeds)
        found = []
        for node in reversed(self.shape.nodes):
            if not carrying.isdisjoint(node.outputs):
                found.append(node)
                carrying.update(k for k in node.inputs if self.shape.graph.variables[k].requires_grad)
        return found

    def _node(self, node: Node, arrived: list[tuple[_Gradient, bool]]) -> None:
        variables = self.shape.graph.variables
        wanted = [k for k in node.inputs if variables[k].requires_grad]
        made = {k: self._made(node, k, arrived) for k in wanted}
        self._train(node)
        for gradient, _ in arrived:
            self._drop(gradient)
        self._drop_saved(node)
        for k in wanted:
            self._add(k, *made[k])
            if k in self.shape.segment.inputs and self.first_reader[k] == node.name:
                self._keep(k, *self.held.pop(k))
        self.gradients -= self.passing
        self.passing = 0

    def _train(self, node: Node) -> None:
        """Gradients of the operator's parameters: new ones, some of which are only added to others."""
        initializers = self.shape.graph.initializers
        for k in node.initializers:
            if not initializers[k].requires_grad:
                continue
            nbytes = initializers[k].nbytes
            self.gradients += nbytes
            self.users[k] -= 1
            if k in self.apart:
                self.passing += nbytes
            elif self.users[k]:
                self.apart.add(k)
            if not self.users[k] and k not in self.fresh:
                self.passing += nbytes
        self._see()

    def _made(self, node: Node, k: str, arrived: list[tuple[_Gradient, bool]]) -> tuple[_Gradient, bool]:
        variables = self.shape.graph.variables
        same_size = variables[k].nbytes == variables[node.outputs[0]].nbytes
        gradient, whole = arrived[0]
        if node.kind in _PART_OF_GRADIENT or (node.kind in _SAME_GRADIENT and same_size):
            gradient.holders += 1
            return gradient, whole and node.kind in _SAME_GRADIENT
        return self._new(variables[k].nbytes), True

    def _add(self, k: str, gradient: _Gradient, whole: bool) -> None:
        if k not in self.held:
            self.held[k] = (gradient, whole)
            return
        before, all_of_it = self.held[k]
        if before.holders > 1 or not all_of_it:
            self.held[k] = (self._new(self.shape.graph.variables[k].nbytes), True)
            self._see()
            self._drop(before)
        self._drop(gradient)

    def _keep(self, k: str, gradient: _Gradient, whole: bool) -> None:
        if gradient.holders > 1 or not whole:
            self._new(self.shape.graph.variables[k].nbytes)
            self._see()
            self._drop(gradient)
        self.leaves.append(k)

    def _drop_saved(self, node: Node) -> None:
        self.now -= self.shape.extra[node.name]
        for root in self.shape.saving[node.name] & self.shape.kept:
            self.savers[root] -= 1
            if not self.savers[root]:
                self.now -= self.shape.own[root]

    def _new(self, nbytes: int) -> _Gradient:
        self.now += nbytes
        return _Gradient(nbytes)

    def _drop(self, gradient: _Gradient) -> None:
        gradient.holders -= 1
        if not gradient.holders:
            self.now -= gradient.nbytes

    def _see(self) -> None:
        self.peak = max(self.peak, (self.now, self.gradients), key=sum)
