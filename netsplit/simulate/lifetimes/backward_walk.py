"""How the backward of a segment goes through it: gradients from operator to operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from netsplit.graph.ir import Node
from netsplit.simulate.lifetimes.segment import SegmentMemory, operand_of_weight, written_bases

__all__ = ["BackwardWalk", "PutOff", "Walk", "backward_walk", "weights_walk"]

_SAME_GRADIENT = frozenset(
    {"add", "add_", "alias", "clone", "contiguous", "detach", "expand", "expand_as", "flatten", "movedim"}
    | {"permute", "reshape", "reshape_as", "squeeze", "swapaxes", "t", "transpose", "unflatten", "unsqueeze"}
    | {"T", "mT", "numpy_T", "view", "view_as"}
)
"""Operators whose backward returns the output's gradient itself, if sizes are equal."""
_SAME_FOR_FIRST = frozenset({"addcdiv", "addcmul", "index_add", "scatter_add", "sub", "sub_"})
"""Those that do so for their first operand only; `copy_` for all others."""
_PART_OF_GRADIENT = frozenset({"cat", "concat", "concatenate", "stack"})
"""Operators whose backward returns views of the output's gradient."""
_SHAPED_AS = frozenset({"expand_as", "reshape_as", "view_as"})
"""Operators that read only the shape of all operands but the first."""
_NO_GRADIENT = frozenset({"empty_like", "full_like", "new_zeros", "new_ones", "ones_like", "zeros_like"})
"""Operators that read only a tensor's shape."""


@dataclass(frozen=True)
class Walk:
    """Bytes that one segment's backward adds to those alive at its start."""

    peak: int
    parameters: frozenset[str]  # with their first gradient
    leaves: tuple[str, ...] = ()  # inputs that got a gradient
    put_off: tuple[PutOff, ...] = ()  # for the weight part
    deferred_bytes: int = 0  # own bytes kept for it
    deferred_roots: tuple[str, ...] = ()  # input and output storages kept for it


@dataclass(eq=False)
class _Gradient:
    """A storage of gradients."""

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
    """Autograd's way back through a segment, bytes by bytes, from gradients of the outputs `seeds`.

    A gradient that an operator hands on unchanged is one storage with more holders. A second gradient
    of a variable is added in place where nobody else sees the first; an input of the segment gets a copy
    where its gradient is shared, or lies in another order. A parameter with several users gets its
    gradient from the last of them; `fresh` ones have none yet, those of `deferred` nodes come later.
    """

    shape: SegmentMemory
    seeds: frozenset[str]
    fresh: frozenset[str]
    deferred: frozenset[str] = frozenset()
    now: int = 0
    gradients: int = 0  # of parameters
    passing: int = 0  # of these, bytes freed after the operator
    peak: int = 0
    held: dict[str, tuple[_Gradient, bool]] = field(default_factory=dict)  # variable -> in what, all of it?
    apart: set[str] = field(default_factory=set)  # parameters
    leaves: list[str] = field(default_factory=list)
    put_off: list[PutOff] = field(default_factory=list)
    back: set[str] = field(default_factory=set)  # storages that came from the host
    again: Counter[str] = field(default_factory=Counter)
    """What checkpoints of the model's own have made again -> those that save it and have not gone back."""
    made_again: set[str] = field(default_factory=set)  # such checkpoints, by what goes back last of them

    def run(self) -> Walk:
        shape, written = self.shape, written_bases(self.shape.graph)
        for k in self.seeds:
            self.held[k] = (_Gradient(self._nbytes(k), holders=2), True)
        nodes = self._reached()
        self.savers = Counter(root for roots in shape.saving.values() for root in roots & shape.kept)
        self.first_reader = {k: node.name for node in nodes for k in self._wanted(node)}
        self.users = Counter(k for node in nodes for k in self._own(node))
        reached = {node.name for node in nodes}
        for node in reversed(shape.nodes):
            if (base := written.get(node.name)) is not None:
                self._see_write(node, base)
            if node.name in reached:
                self._node(node)
        roots = {root for each in self.put_off for root in each.roots}
        gradients = {id(each.gradient): each.gradient.nbytes for each in self.put_off}
        return Walk(
            self.peak,
            self.fresh & self.users.keys(),
            tuple(self.leaves),
            tuple(self.put_off),
            sum(gradients.values()) + sum(shape.own[root] for root in roots & shape.kept),
            tuple(sorted(roots - shape.kept)),
        )

    def _nbytes(self, k: str) -> int:
        return self.shape.graph.variables[k].nbytes

    def _reached(self) -> list[Node]:
        """Nodes that a gradient reaches, last first."""
        requires_backward = set(self.seeds)
        nodes = []
        for node in reversed(self.shape.nodes):
            if not requires_backward.isdisjoint(node.outputs):
                nodes.append(node)
                requires_backward.update(self._wanted(node))
        return nodes

    def _wanted(self, node: Node) -> list[str]:
        """Inputs whose gradient the node computes, but for a view of a weight with a deferred gradient."""
        if node.kind in _NO_GRADIENT:
            return []
        read = node.inputs[:1] if node.kind in _SHAPED_AS else node.inputs
        wanted = [k for k in read if k in self.shape.carrying]
        if node.name in self.deferred:
            weight = operand_of_weight(self.shape.graph, node, self.shape.segment.nodes)
            wanted = [k for k in wanted if weight != {"var": k}]
        return wanted

    def _own(self, node: Node) -> list[str]:
        later = self.shape.deferred[node.name] if node.name in self.deferred else ()
        return [k for k in node.initializers if k not in later]

    def _node(self, node: Node) -> None:
        shape, wanted = self.shape, self._wanted(node)
        arrived = [self.held.pop(k) for k in node.outputs if k in self.held]
        self._make_again(node)
        if shape.offloaded:
            self._bring(node.name)
            self.now += shape.extra[node.name]
        made = {k: self._made(node, k, arrived) for k in wanted}
        self._train(node)
        if node.name in self.deferred:
            gradient = arrived[0][0]
            gradient.holders += 1
            self.put_off.append(
                PutOff(node.name, shape.deferred[node.name], shape.saving[node.name], gradient)
            )
        for gradient, _ in arrived:
            self._drop(gradient)
        self._drop_saved(node)
        for k in wanted:
            self._add(k, *made[k])
        for k in wanted:  # after all sums, as unshared gradients need no copy
            if k in shape.segment.inputs and self.first_reader[k] == node.name:
                self._keep(k, *self.held.pop(k))
        self.gradients -= self.passing
        self.passing = 0

    def _see_write(self, node: Node, base: str) -> None:
        """A write into a view of `base` (CopySlices) copies the gradient of the whole storage."""
        come = [self.held[k][0].holders for k in (base, *node.outputs) if k in self.held]
        if come:
            copies = 2 if sum(come) > 1 else 1
            self._see(copies * self._nbytes(base) + 2 * self._nbytes(node.inputs[0]))

    def _bring(self, node: str) -> None:
        missing = (self.shape.saving[node] & self.shape.kept) - self.back
        self.back |= missing
        self.now += sum(self.shape.own[root] for root in missing)

    def _make_again(self, node: Node) -> None:
        """Recompute the model's own checkpoint, once the backward reaches a node that saved anything."""
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
        """Gradients of the operator's parameters: new ones, or temporary ones to add."""
        initializers = self.shape.graph.initializers
        for k in self._own(node):
            if not initializers[k].requires_grad:
                continue
            nbytes = initializers[k].nbytes
            self.users[k] -= 1
            if node.kind == "alias" and k not in self.apart | self.fresh and not self.users[k]:
                continue  # the arriving gradient itself is added
            self.gradients += nbytes
            if k in self.apart:
                self.passing += nbytes
            elif self.users[k]:
                self.apart.add(k)
            if not self.users[k] and k not in self.fresh:
                self.passing += nbytes
        self._see(self.shape.transient(node.name).backward)

    def _made(self, node: Node, k: str, arrived: list[tuple[_Gradient, bool]]) -> tuple[_Gradient, bool]:
        """The gradient of an input: the output's, a view of it, or a new one."""
        read, output = self.shape.graph.variables[k], self.shape.graph.variables[node.outputs[0]]
        gradient, whole = arrived[0]
        part = node.kind in _PART_OF_GRADIENT
        if not part and not (_hands_on(node, k) and read.nbytes == output.nbytes):
            return self._new(read.nbytes), True
        gradient.holders += 1
        return gradient, whole and not part

    def _add(self, k: str, gradient: _Gradient, whole: bool) -> None:
        if k not in self.held:
            self.held[k] = (gradient, whole)
            return
        before, all_of_it = self.held[k]
        if before.holders > 1 or not all_of_it:
            self.held[k] = (self._new(self._nbytes(k)), True)
            self._see()
            self._drop(before)
        self._drop(gradient)

    def _keep(self, k: str, gradient: _Gradient, whole: bool) -> None:
        """Copy the gradient of a segment's input if it is shared."""
        if gradient.holders > 1 or not whole:
            self._new(self._nbytes(k))
            self._see()
            self._drop(gradient)
        self.leaves.append(k)

    def _drop_saved(self, node: Node) -> None:
        self.now -= self.shape.extra[node.name]
        run = self.shape.own_checkpoint.get(node.name)
        if run is not None and node.name in run.saving:
            self.now -= run.extra.get(node.name, 0)
            self._let_go(run.saving[node.name], self.again)
        if node.name not in self.deferred:
            self._let_go(self.shape.saving[node.name] & self.shape.kept, self.savers)

    def _let_go(self, roots: frozenset[str], savers: Counter[str]) -> None:
        for root in roots:
            savers[root] -= 1
            if not savers[root]:
                self.now -= self.shape.own[root]

    def _new(self, nbytes: int) -> _Gradient:
        self.now += nbytes
        return _Gradient(nbytes)

    def _drop(self, gradient: _Gradient) -> None:
        gradient.holders -= 1
        if not gradient.holders:
            self.now -= gradient.nbytes

    def _see(self, transient: int = 0) -> None:
        self.peak = max(self.peak, self.now + self.gradients + transient)


def backward_walk(
    shape: SegmentMemory, seeds: frozenset[str], fresh: frozenset[str], split: bool = False
) -> Walk:
    """Backward of a segment, made once; with `split` the input part alone."""
    key = (seeds, fresh, split)
    if key not in shape.walks:
        shape.walks[key] = BackwardWalk(shape, seeds, fresh, frozenset(shape.deferred if split else ())).run()
    walk: Walk = shape.walks[key]
    return walk


def weights_walk(shape: SegmentMemory, queue: Sequence[PutOff], fresh: frozenset[str]) -> Walk:
    """The weight part of a backward with these nodes put off; `peak` is beside all that was put off."""
    initializers = shape.graph.initializers
    savers = Counter(root for each in queue for root in each.roots & shape.kept)
    users = Counter(k for each in queue for k in each.parameters)
    waiting = Counter(id(each.gradient) for each in queue)
    ready = fresh & users.keys()
    apart: set[str] = set()
    now = gradients = peak = 0
    for each in queue:
        sizes = {k: initializers[k].nbytes for k in each.parameters}
        again = sum(nbytes for k, nbytes in sizes.items() if k in apart)  # a new sum, of two
        gradients += sum(sizes.values()) + again
        peak = max(peak, now + gradients + shape.transient(each.node).backward)
        gradients -= 2 * again
        for k, nbytes in sizes.items():
            users[k] -= 1
            apart.add(k)
            if not users[k] and k not in fresh:  # added to what is there
                gradients -= nbytes
        for root in each.roots & shape.kept:
            savers[root] -= 1
            now -= 0 if savers[root] else shape.own[root]
        waiting[id(each.gradient)] -= 1
        now -= 0 if waiting[id(each.gradient)] else each.gradient.nbytes
    return Walk(peak, ready)


def _hands_on(node: Node, k: str) -> bool:
    """Whether the gradient of k is the output's own, if sizes are equal."""
    first = [i for i, each in enumerate(node.args) if each == {"var": k}] == [0]
    return (
        node.kind in _SAME_GRADIENT
        or (node.kind in _SAME_FOR_FIRST and first)
        or (node.kind == "copy_" and not first)
    )
