"""How the backward of a segment goes through it: gradients from operator to operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from netsplit.graph.ir import Node
from netsplit.simulate.lifetimes.gradient_strides import (
    NO_GRADIENT,
    PART_OF_GRADIENT,
    SHAPED_AS,
    Strides,
    gives_gradient_on,
    lies_in,
    packed_strides,
    strides_of_new,
    strides_through,
)
from netsplit.simulate.lifetimes.segment_storages import SegmentStorages, operand_of_weight

__all__ = ["BackwardWalk", "PutOff", "Walk"]


@dataclass(frozen=True)
class Walk:
    """What one segment's backward adds to the bytes alive when it starts."""

    peak: tuple[int, int]  # of activations, of parameters' gradients
    parameters: frozenset[str]  # that have a gradient now and had none
    leaves: tuple[str, ...] = ()  # inputs that got a gradient
    deferred_bytes: int = 0  # of the segment's own that stay for its weight part
    deferred_roots: tuple[str, ...] = ()  # storages of its inputs and outputs that stay for it


@dataclass(eq=False)
class _Gradient:
    """A storage that gradients of variables live in."""

    nbytes: int
    holders: int = 1


@dataclass(frozen=True, eq=False)
class PutOff:
    """A node whose weight gradient is still to be computed, and what stays alive for it."""

    node: str
    parameters: tuple[str, ...]
    roots: frozenset[str]  # storages it saved
    gradient: _Gradient  # of its output


@dataclass
class BackwardWalk:
    """Autograd's way back through a segment, bytes by bytes.

    A gradient that an operator hands on unchanged is one storage with more holders. A second gradient
    of a variable is added in place where nobody else sees the first, else into a new storage; an input
    of the segment gets a copy of its own where its gradient is shared (as AccumulateGrad does). A
    parameter with several users gets its gradient from the last of them; until then it is kept apart.
    Nodes in `deferred` leave their weights' gradients, and what they need for them, to the weight part.
    """

    shape: SegmentStorages
    seeds: frozenset[str]
    fresh: frozenset[str]
    deferred: frozenset[str] = frozenset()
    now: int = 0
    gradients: int = 0  # of parameters
    passing: int = 0  # of these, bytes that go once the operator's gradients are handed on
    peak: tuple[int, int] = (0, 0)
    held: dict[str, tuple[_Gradient, bool]] = field(default_factory=dict)  # variable -> in what, all of it?
    apart: set[str] = field(default_factory=set)  # parameters
    leaves: list[str] = field(default_factory=list)
    put_off: list[PutOff] = field(default_factory=list)
    back: set[str] = field(default_factory=set)  # storages that came from the host
    again: Counter[str] = field(default_factory=Counter)
    """What checkpoints of the model's own have made again -> those that save it and have not gone back."""
    made_again: set[str] = field(default_factory=set)  # such checkpoints, by what goes back last of them
    read_written: set[str] = field(
        default_factory=set
    )  # views that are read after a write into a part of them
    strides: dict[str, Strides] = field(default_factory=dict)  # of gradients

    def run(self) -> Walk:
        shape = self.shape
        for k in self.seeds:
            self.held[k] = (_Gradient(shape.graph.variables[k].nbytes, holders=2), True)
            self.strides[k] = shape.graph.variables[k].strides
        nodes = self._reached()
        self.savers = Counter(root for roots in shape.saving.values() for root in roots & shape.kept)
        self.first_reader = {k: node.name for node in nodes for k in self._wanted(node)}
        self.users = Counter(k for node in nodes for k in self._own(node))
        ready = self.fresh & self.users.keys()
        for node in nodes:
            arrived = [self.held.pop(k) for k in node.outputs if k in self.held]
            base = shape.written_base(node)
            if base is not None:
                self._written(node, base, arrived)
                continue
            self._node(node, arrived)
        roots = {root for each in self.put_off for root in each.roots}
        gradients = {id(each.gradient): each.gradient.nbytes for each in self.put_off}
        return Walk(
            self.peak,
            ready,
            tuple(self.leaves),
            sum(gradients.values()) + sum(shape.own[root] for root in roots & shape.kept),
            tuple(sorted(roots - shape.kept)),
        )

    def _reached(self) -> list[Node]:
        """The nodes that a gradient gets to, last first."""
        requires_backward = set(self.seeds)
        nodes = []
        for node in reversed(self.shape.nodes):
            written = self.shape.written_base(node)
            if not requires_backward.isdisjoint((*node.outputs, *filter(None, [written]))):
                nodes.append(node)
                requires_backward.update(self._wanted(node))
        return nodes

    def _wanted(self, node: Node) -> list[str]:
        """What the node makes a gradient of; not of the view of a weight whose gradient it puts off."""
        base = self.shape.written_base(node)
        written = node.inputs[0] if base is not None else None
        if node.kind in NO_GRADIENT:
            return []
        read = node.inputs[:1] if node.kind in SHAPED_AS else node.inputs
        wanted = [base if base is not None and k == written else k for k in read if k in self.shape.carrying]
        if node.name in self.deferred:
            weight = operand_of_weight(self.shape.graph, node, self.shape.segment.nodes)
            wanted = [k for k in wanted if weight != {"var": k}]
        return wanted

    def _own(self, node: Node) -> list[str]:
        """The initializers that get a gradient from the node now."""
        later = self.shape.deferred[node.name] if node.name in self.deferred else ()
        return [k for k in node.initializers if k not in later]

    def _node(self, node: Node, arrived: list[tuple[_Gradient, bool]]) -> None:
        wanted = self._wanted(node)
        self._fetch(node)
        made = {k: self._made(node, k, arrived) for k in wanted}
        self._train(node)
        if node.name in self.deferred:
            arrived[0][0].holders += 1
            self.put_off.append(
                PutOff(node.name, self.shape.deferred[node.name], self.shape.saving[node.name], arrived[0][0])
            )
        for gradient, _ in arrived:
            self._drop(gradient)
        self._drop_saved(node)
        for k in wanted:
            self._add(k, *made[k])
        self.read_written.update(self.shape.bases.intersection(wanted))
        self._leave(node, wanted)

    def _written(self, node: Node, base: str, arrived: list[tuple[_Gradient, bool]]) -> None:
        """A write into a view (CopySlices): the gradient of all the memory is copied, and that of the part
        that was written once more, for the operator's backward to be written over.

        What is read later through the view comes to the whole memory first, in zeros; so does what is read
        of the whole where that is itself a view.
        """
        nbytes = self.shape.graph.variables[base].nbytes
        if base in self.held and base in self.read_written:
            arrived = [*arrived, self.held.pop(base)]
        if arrived:
            spread = self._new(nbytes)
            self._see()
            for gradient, _ in arrived:
                self._drop(gradient)
            self._add(base, spread, True)
        self.read_written.discard(base)
        come, _ = self.held.pop(base)
        self._fetch(node)
        whole, part = self._new(nbytes), self._new(self.shape.graph.variables[node.inputs[0]].nbytes)
        others = {k: self._made(node, k, [(part, True)]) for k in self._wanted(node) if k != base}
        before = self.shape.wants_what_was_before(node, base)
        own = [self._made(node, node.inputs[0], [(part, True)])[0]] if before else []
        self._train(node)
        for gradient in (come, part, *own):
            self._drop(gradient)
        self._drop_saved(node)
        if before:
            self._add(base, whole, True)
        else:
            self._drop(whole)
        for k, made in others.items():
            self._add(k, *made)
        self._leave(node, [base, *others] if before else [*others])

    def _leave(self, node: Node, wanted: Sequence[str]) -> None:
        """After all sums: what no other shares any more need not be copied."""
        for k in wanted:
            if k in self.shape.segment.inputs and self.first_reader[k] == node.name:
                self._keep(k, *self.held.pop(k))
        self.gradients -= self.passing
        self.passing = 0

    def _fetch(self, node: Node) -> None:
        """What the node saved: made again, or from the host."""
        self._make_again(node)
        if self.shape.offloaded:
            self._bring(node.name)
            self.now += self.shape.extra[node.name]

    def _bring(self, node: str) -> None:
        """From the host, with all that it is in, once."""
        missing = (self.shape.saving[node] & self.shape.kept) - self.back
        self.back |= missing
        self.now += sum(self.shape.own[root] for root in missing)

    def _make_again(self, node: Node) -> None:
        """A checkpoint of the model's own, once the first that saves anything goes back."""
        run = self.shape.own_checkpoint.get(node.name)
        if run is None or node.name not in run.saving or run.last_back in self.made_again:
            return
        self.made_again.add(run.last_back)
        if self.shape.offloaded:
            self._bring(run.last_back)
        self._see(run.peak)
        saved = Counter(root for roots in run.saving.values() for root in roots)
        self.again += saved
        self.now += sum(run.extra.values()) + sum(self.shape.own[root] for root in saved)

    def _train(self, node: Node) -> None:
        """Gradients of the operator's parameters: new ones, some of which are only added to others."""
        initializers = self.shape.graph.initializers
        for k in self._own(node):
            if not initializers[k].requires_grad:
                continue
            nbytes = initializers[k].nbytes
            self.users[k] -= 1
            if node.kind == "alias" and k not in self.apart | self.fresh and not self.users[k]:
                continue  # what arrived is itself added to what is there
            self.gradients += nbytes
            if k in self.apart:
                self.passing += nbytes
            elif self.users[k]:
                self.apart.add(k)
            if not self.users[k] and k not in self.fresh:
                self.passing += nbytes
        self._see(self.shape.transient(node.name).backward)

    def _made(self, node: Node, k: str, arrived: list[tuple[_Gradient, bool]]) -> tuple[_Gradient, bool]:
        variables = self.shape.graph.variables
        read, made = variables[k], variables[node.outputs[0]]
        gradient, whole = arrived[0]
        part, come = node.kind in PART_OF_GRADIENT, self._strides(node.outputs[0])
        if part or (gives_gradient_on(node, k) and read.nbytes == made.nbytes):
            strides, copied = strides_through(node, come, made.shape, read.shape)
            self._lies(k, strides)
            if copied:
                return self._new(read.nbytes), True
            gradient.holders += 1
            return gradient, whole and not part
        self._lies(k, strides_of_new(node, come, made, read))
        return self._new(read.nbytes), True

    def _strides(self, k: str) -> Strides:
        return self.strides.get(k) or packed_strides(self.shape.graph.variables[k].shape)

    def _lies(self, k: str, strides: Strides) -> None:
        """A sum lies in the order of its first term."""
        if k not in self.held:
            self.strides[k] = strides

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
        """What an input of the segment gets: a copy where others have it, too, or it lies otherwise."""
        variable = self.shape.graph.variables[k]
        in_order = lies_in(variable.shape, self._strides(k), variable.strides)
        if gradient.holders > 1 or not whole or not in_order:
            self._new(variable.nbytes)
            self._see()
            self._drop(gradient)
        self.leaves.append(k)

    def _drop_saved(self, node: Node) -> None:
        self.now -= self.shape.extra[node.name]
        self._drop_made_again(node)
        if node.name in self.deferred:
            return
        for root in self.shape.saving[node.name] & self.shape.kept:
            self.savers[root] -= 1
            if not self.savers[root]:
                self.now -= self.shape.own[root]

    def _drop_made_again(self, node: Node) -> None:
        run = self.shape.own_checkpoint.get(node.name)
        if run is None or node.name not in run.saving:
            return
        self.now -= run.extra[node.name]
        for root in run.saving[node.name]:
            self.again[root] -= 1
            if not self.again[root]:
                self.now -= self.shape.own[root]

    def _new(self, nbytes: int) -> _Gradient:
        self.now += nbytes
        return _Gradient(nbytes)

    def _drop(self, gradient: _Gradient) -> None:
        gradient.holders -= 1
        if not gradient.holders:
            self.now -= gradient.nbytes

    def _see(self, transient: int = 0) -> None:
        self.peak = max(self.peak, (self.now + transient, self.gradients), key=sum)
