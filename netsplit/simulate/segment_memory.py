"""Bytes inside one segment: what its forward makes and keeps, and how its backward goes through it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from netsplit.graph.arguments import argument
from netsplit.graph.deferral.deferrable import weight_operand
from netsplit.graph.ir import Graph, Node
from netsplit.graph.operators import is_here, written_initializers
from netsplit.graph.storage import storage_of
from netsplit.profile.costs import NodeBytes
from netsplit.program.instructions import Segment

__all__ = ["Key", "SegmentMemory", "Walk"]

Key = tuple[str, int, int]  # variable, micro-batch, number (0 for its value, others for gradients)

_NONE = NodeBytes()
_SAME_GRADIENT = frozenset(
    {"add", "add_", "alias", "clone", "contiguous", "detach", "expand", "expand_as", "flatten", "movedim"}
    | {"permute", "reshape", "reshape_as", "squeeze", "swapaxes", "t", "transpose", "unflatten", "unsqueeze"}
    | {"view", "view_as"}
)
"""Operators whose backward hands on the output's gradient itself, where the sizes are equal."""
_SAME_FOR_FIRST = frozenset({"addcdiv", "addcmul", "index_add", "scatter_add", "sub", "sub_"})
"""Those that do so to their first operand alone."""
_SAME_FOR_OTHERS = frozenset({"copy_"})
"""Those that do so to all but their first operand."""
_PART_OF_GRADIENT = frozenset({"cat", "concat", "concatenate", "stack"})
"""Operators whose backward hands on views of the output's gradient."""
_SHAPED_AS = frozenset({"expand_as", "reshape_as", "view_as"})
"""Operators that read of all but their first operand what it is like."""
_IN_PLAIN_ORDER = frozenset({"group_norm", "linear", "native_group_norm"})
"""Operators whose backward copies a gradient of more than two dimensions that does not lie in their order."""
_NO_GRADIENT = frozenset({"empty_like", "full_like", "new_zeros", "new_ones", "ones_like", "zeros_like"})
"""Operators that read of a tensor what it is like."""
_PUTS_TOGETHER = frozenset({"chunk", "select", "split", "unbind"})
"""Operators whose backward puts the gradients of parts into a new one, in the plain order."""
_COUNTED_LOSSES = frozenset({"cross_entropy_loss", "nll_loss", "nll_loss2d", "nll_loss_nd"})
_COUNT_BYTES = 8  # of the targets that count, which the runtime notes of every micro-batch


@dataclass(frozen=True)
class Walk:
    """What one segment's backward adds to the bytes alive when it starts."""

    peak: tuple[int, int]  # of activations, of parameters' gradients
    parameters: frozenset[str]  # that have a gradient now and had none
    leaves: tuple[str, ...] = ()  # inputs that got a gradient
    deferred_bytes: int = 0  # of the segment's own that stay for its weight part
    deferred_roots: tuple[str, ...] = ()  # storages of its inputs and outputs that stay for it


class SegmentMemory:
    """A segment's own bytes in forward and backward, the same for every micro-batch.

    `deferred`: nodes whose weight gradients a backward in two parts puts off; `transients`: what nodes
    allocate for themselves; `offloaded`: what it keeps lies in the host's memory, and comes back storage by
    storage as its backward reads it.
    """

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
        self.forward_peak = self._forward_peak(frozenset() if offloaded else self.kept, self.extra)
        self.forward_peak_unsaved = self._forward_peak(frozenset(), dict.fromkeys(self.extra, 0))
        self.deferred = {
            node.name: parameters
            for node in self.nodes
            if node.name in deferred and (parameters := _put_off(graph, node, segment.nodes))
        }
        self.carrying = {k for node in self.nodes for k in node.inputs if graph.variables[k].requires_grad}
        self.carrying |= {base for node in self.nodes if (base := self.written_base(node)) is not None}
        self.made_in_checkpoints = self._made_in_checkpoints()
        self._walks: dict[tuple[frozenset[str], frozenset[str], bool], Walk] = {}
        self._queues: dict[frozenset[str], list[_PutOff]] = {}

    def transient(self, node: str) -> NodeBytes:
        return self.transients.get(node, _NONE)

    def written_base(self, node: Node) -> str | None:
        """The variable whose memory a write into a view of it changes: its gradient is copied where a part is
        changed (autograd's CopySlices). `linear` answers a view, too, where it has a bias and more than two
        dimensions."""
        read = self.overwritten(node)
        return storage_of(self.graph, read) if read is not None and self._is_view(read) else None

    def overwritten(self, node: Node) -> str | None:
        """The variable that a node writes into and returns, where a gradient comes to it."""
        variables = self.graph.variables
        made, read = (next(filter(None, ks), None) for ks in (node.outputs, node.inputs))
        if made is None or read is None or not node.kind.endswith("_") or not variables[made].requires_grad:
            return None
        root = storage_of(self.graph, read)
        return read if root in variables and storage_of(self.graph, made) == root else None

    def _made_in_checkpoints(self) -> dict[str, dict[str, str]]:
        """Of the model's own checkpoints: what is made again for their backward, and its first reader, after
        whose backward it goes."""
        made: dict[str, dict[str, str]] = {}
        for node in filter(lambda each: each.checkpoint, self.nodes):
            known = made.setdefault(node.checkpoint, {})
            for k in node.inputs:
                producer = self.graph.variables[k].producer
                if producer is not None and self.graph.nodes[producer].checkpoint == node.checkpoint:
                    known.setdefault(storage_of(self.graph, k), node.name)
        return made

    def _is_view(self, k: str) -> bool:
        producer = self.graph.variables[k].producer
        if producer is None:
            return False
        node = self.graph.nodes[producer]
        if node.kind.endswith("_"):  # it answers what it wrote into
            return bool(node.inputs) and self._is_view(node.inputs[0])
        flattened = node.kind == "linear" and len(self.graph.variables[k].shape) > 2
        return storage_of(self.graph, k) != k or (flattened and len(node.initializers) > 1)

    def kept_key(self, i: int) -> Key:
        return (f"kept by segment {self.segment.index}", i, 0)

    def snapshot_key(self, i: int) -> Key:
        return (f"written by segment {self.segment.index}", i, 0)

    def noted_key(self, i: int) -> Key:
        return (f"noted by segment {self.segment.index}", i, 0)

    def deferred_key(self, i: int) -> Key:
        return (f"put off by segment {self.segment.index}", i, 0)

    def backward(self, seeds: frozenset[str], fresh: frozenset[str], split: bool = False) -> Walk:
        """Backward from gradients of the outputs `seeds`, to parameters of which `fresh` have none yet.

        With `split` it is the input part alone.
        """
        key = (seeds, fresh, split)
        if key not in self._walks:
            walk = _BackwardWalk(self, seeds, fresh, frozenset(self.deferred if split else ()))
            self._walks[key] = walk.run()
            if split:
                self._queues[seeds] = walk.put_off
        return self._walks[key]

    def weights(self, seeds: frozenset[str], fresh: frozenset[str]) -> Walk:
        """The weight part after `backward(seeds, …, split=True)`; `peak` is beside all that was put off."""
        initializers = self.graph.initializers
        queue = self._queues[seeds]
        savers = Counter(root for each in queue for root in each.roots & self.kept)
        users = Counter(k for each in queue for k in each.parameters)
        waiting = Counter(id(each.gradient) for each in queue)
        ready = fresh & users.keys()
        apart: set[str] = set()
        now = gradients = 0
        peak = (0, 0)
        for each in queue:
            sizes = {k: initializers[k].nbytes for k in each.parameters}
            again = sum(nbytes for k, nbytes in sizes.items() if k in apart)  # a new sum, of two
            gradients += sum(sizes.values()) + again
            peak = max(peak, (now + self.transient(each.node).backward, gradients), key=sum)
            gradients -= 2 * again
            for k, nbytes in sizes.items():
                users[k] -= 1
                apart.add(k)
                if not users[k] and k not in fresh:  # added to what is there
                    gradients -= nbytes
            for root in each.roots & self.kept:
                savers[root] -= 1
                now -= 0 if savers[root] else self.own[root]
            waiting[id(each.gradient)] -= 1
            now -= 0 if waiting[id(each.gradient)] else each.gradient.nbytes
        return Walk(peak, ready)

    def _trainable(self, node: Node) -> set[str]:
        return {k for k in node.initializers if self.graph.initializers[k].requires_grad}

    def _saved(self, node: Node) -> frozenset[str]:
        return (
            frozenset(storage_of(self.graph, k) for k in node.saved)
            if self.requires_backward
            else frozenset()
        )

    def _context(self, saved: Collection[str]) -> tuple[str, ...]:
        """Inputs and outputs that live until the backward is over."""
        inputs = [
            k
            for k in self.segment.inputs
            if self.graph.variables[k].requires_grad or storage_of(self.graph, k) in saved
        ]
        return (*self.requires_backward, *inputs)

    def _forward_peak(self, kept: Collection[str], extra: Mapping[str, int]) -> int:
        last = {
            storage_of(self.graph, k): node.name
            for node in self.nodes
            for k in (*node.inputs, *filter(None, node.outputs))
        }
        dying: dict[str, list[str]] = {}
        for root in (self.produced - self.outputs).difference(kept):
            dying.setdefault(last[root], []).append(root)
        seen: set[str] = set()
        now = peak = 0
        for node in self.nodes:
            made = {storage_of(self.graph, k) for k in node.outputs if k} & self.produced - seen
            seen |= made
            now += sum(self.own[root] for root in made) + extra[node.name]
            peak = max(peak, now, now - extra[node.name] + self.transient(node.name).forward)
            now -= sum(self.own[root] for root in dying.get(node.name, ()))
            now -= extra[node.name] if self.offloaded else 0
        return peak


@dataclass(eq=False)
class _Gradient:
    """A storage that gradients of variables live in."""

    nbytes: int
    holders: int = 1


@dataclass(frozen=True, eq=False)
class _PutOff:
    """A node whose weight gradient is still to be computed, and what stays alive for it."""

    node: str
    parameters: tuple[str, ...]
    roots: frozenset[str]  # storages it saved
    gradient: _Gradient  # of its output


@dataclass
class _BackwardWalk:
    """Autograd's way back through a segment, bytes by bytes.

    A gradient that an operator hands on unchanged is one storage with more holders. A second gradient
    of a variable is added in place where nobody else sees the first, else into a new storage; an input
    of the segment gets a copy of its own where its gradient is shared (as AccumulateGrad does). A
    parameter with several users gets its gradient from the last of them; until then it is kept apart.
    Nodes in `deferred` leave their weights' gradients, and what they need for them, to the weight part.
    """

    shape: SegmentMemory
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
    put_off: list[_PutOff] = field(default_factory=list)
    back: set[str] = field(default_factory=set)  # storages that came from the host
    again: set[str] = field(
        default_factory=set
    )  # checkpoints of the model's own whose forward was made again
    order: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Of gradients whose layout is known: dimensions by their strides, the largest first."""

    def run(self) -> Walk:
        shape = self.shape
        for k in self.seeds:
            self.held[k] = (_Gradient(shape.graph.variables[k].nbytes, holders=2), True)
            self.order[k] = tuple(range(len(shape.graph.variables[k].shape)))
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
            if (
                read := shape.overwritten(node)
            ) is not None and read in self.held:  # by those who read it later
                arrived.append(self.held.pop(read))
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
            written = self.shape.written_base(node) or self.shape.overwritten(node)
            if not requires_backward.isdisjoint((*node.outputs, *filter(None, [written]))):
                nodes.append(node)
                requires_backward.update(self._wanted(node))
        return nodes

    def _wanted(self, node: Node) -> list[str]:
        """What the node makes a gradient of; not of the view of a weight whose gradient it puts off."""
        base = self.shape.written_base(node)
        written = node.inputs[0] if base is not None else None
        if node.kind in _NO_GRADIENT:
            return []
        read = node.inputs[:1] if node.kind in _SHAPED_AS else node.inputs
        wanted = [base if base is not None and k == written else k for k in read if k in self.shape.carrying]
        if node.name in self.deferred:
            weight = _operand(self.shape.graph, node, self.shape.segment.nodes)
            wanted = [k for k in wanted if weight != {"var": k}]
        return wanted

    def _own(self, node: Node) -> list[str]:
        """The initializers that get a gradient from the node now."""
        later = self.shape.deferred[node.name] if node.name in self.deferred else ()
        return [k for k in node.initializers if k not in later]

    def _node(self, node: Node, arrived: list[tuple[_Gradient, bool]]) -> None:
        wanted = self._wanted(node)
        self._make_again(node.checkpoint)
        self._fetch(node)
        made = {k: self._made(node, k, arrived) for k in wanted}
        self._train(node)
        if node.name in self.deferred:
            arrived[0][0].holders += 1
            self.put_off.append(
                _PutOff(
                    node.name, self.shape.deferred[node.name], self.shape.saving[node.name], arrived[0][0]
                )
            )
        for gradient, _ in arrived:
            self._drop(gradient)
        self._drop_saved(node)
        for k in wanted:
            self._add(k, *made[k])
        self._leave(node, wanted)

    def _written(self, node: Node, base: str, arrived: list[tuple[_Gradient, bool]]) -> None:
        """A write into a view (CopySlices): the gradient of all the memory is copied, and that of the part
        that was written once more, for the operator's backward to be written over.

        What is read later through the view comes to the whole memory first, in zeros.
        """
        nbytes = self.shape.graph.variables[base].nbytes
        if arrived:
            spread = self._new(nbytes)
            self._see()
            for gradient, _ in arrived:
                self._drop(gradient)
            self._add(base, spread, True)
        come, _ = self.held.pop(base)
        self._fetch(node)
        whole, part = self._new(nbytes), self._new(self.shape.graph.variables[node.inputs[0]].nbytes)
        others = {k: self._made(node, k, [(part, True)]) for k in self._wanted(node) if k != base}
        own, _ = self._made(node, node.inputs[0], [(part, True)])
        self._train(node)
        for gradient in (come, part, own):
            self._drop(gradient)
        self._drop_saved(node)
        self._add(base, whole, True)
        for k, made in others.items():
            self._add(k, *made)
        self._leave(node, [base, *others])

    def _leave(self, node: Node, wanted: Sequence[str]) -> None:
        """After all sums: what no other shares any more need not be copied."""
        for k in wanted:
            if k in self.shape.segment.inputs and self.first_reader[k] == node.name:
                self._keep(k, *self.held.pop(k))
        self.gradients -= self.passing
        self.passing = 0

    def _fetch(self, node: Node) -> None:
        """What the node saved, from the host: with all that it is in, once."""
        if not self.shape.offloaded:
            return
        missing = (self.shape.saving[node.name] & self.shape.kept) - self.back
        self.back |= missing
        self.now += self.shape.extra[node.name] + sum(self.shape.own[root] for root in missing)

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
        self._see(max(self.shape.transient(node.name).backward, self._in_order(node)))

    def _in_order(self, node: Node) -> int:
        """Bytes of the copy of a gradient that lies in another order than an operator can go on with."""
        shape = self.shape.graph.variables[node.outputs[0]].shape
        order = self.order.get(node.outputs[0], tuple(range(len(shape))))
        turned = node.kind in _IN_PLAIN_ORDER and len(shape) > 2 and order != tuple(range(len(shape)))
        return self.shape.graph.variables[node.outputs[0]].nbytes if turned else 0

    def _made(self, node: Node, k: str, arrived: list[tuple[_Gradient, bool]]) -> tuple[_Gradient, bool]:
        variables = self.shape.graph.variables
        same_size = variables[k].nbytes == variables[node.outputs[0]].nbytes
        gradient, whole = arrived[0]
        part = node.kind in _PART_OF_GRADIENT
        if part or (_hands_on(node, k) and same_size):
            if self._cannot_be_viewed(node, k):
                return self._new(variables[k].nbytes), True
            gradient.holders += 1
            return gradient, whole and not part
        if node.kind in _PUTS_TOGETHER:
            self.order[k] = tuple(range(len(variables[k].shape)))
        return self._new(variables[k].nbytes), True

    def _cannot_be_viewed(self, node: Node, k: str) -> bool:
        """Whether the gradient of k, which is that of the node's output in other sizes, is a copy: where
        dimensions come together that turning has set apart in memory."""
        order = self.order.pop(node.outputs[0], None)
        if order is None:
            return False
        before, after = (len(self.shape.graph.variables[each].shape) for each in (k, node.outputs[0]))
        if before < after:
            return order != tuple(range(after))
        if before == after:
            turned = _turned(node, after)
            self.order[k] = tuple(turned[d] for d in order)
        return False

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

    def _make_again(self, checkpoint: str) -> None:
        """What lies within a checkpoint of the model's own, once its backward begins."""
        if checkpoint in self.shape.made_in_checkpoints and checkpoint not in self.again:
            self.again.add(checkpoint)
            self.now += sum(self.shape.own[root] for root in self.shape.made_in_checkpoints[checkpoint])

    def _drop_saved(self, node: Node) -> None:
        self.now -= self.shape.extra[node.name]
        made = self.shape.made_in_checkpoints.get(node.checkpoint, {})
        self.now -= sum(self.shape.own[root] for root, first in made.items() if first == node.name)
        if node.name in self.deferred:
            return
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

    def _see(self, transient: int = 0) -> None:
        self.peak = max(self.peak, (self.now + transient, self.gradients), key=sum)


def _hands_on(node: Node, k: str) -> bool:
    """Whether the gradient of k is that of the node's output itself, where they have one size."""
    first = [i for i, each in enumerate(node.args) if each == {"var": k}] == [0]
    return (
        node.kind in _SAME_GRADIENT
        or (node.kind in _SAME_FOR_FIRST and first)
        or (node.kind in _SAME_FOR_OTHERS and not first)
    )


def _turned(node: Node, count: int) -> Sequence[int]:
    """Of every dimension of a node's output: which of its input's it is."""
    dims = list(range(count))
    if node.kind == "t":
        dims.reverse()
    elif node.kind == "transpose":
        a, b = node.args[1:3]
        dims[a], dims[b] = dims[b], dims[a]
    elif node.kind == "permute":
        dims = [d % count for d in node.args[1]]
    return dims


def _operand(graph: Graph, node: Node, nodes: Collection[str]) -> Any:
    i = weight_operand(graph, node, nodes)
    return None if i is None else argument(node, i, "weight")


def _put_off(graph: Graph, node: Node, nodes: Collection[str]) -> tuple[str, ...]:
    """Parameters whose gradients a node puts off: its weight, through views, and a convolution's bias."""
    template = _operand(graph, node, nodes)
    while isinstance(template, dict) and "var" in template:
        producer = graph.variables[template["var"]].producer
        template = graph.nodes[producer].args[0] if producer is not None else None
    if not isinstance(template, dict) or "init" not in template:
        return ()
    names = [template["init"]]
    if "conv" in node.kind:
        names += [k for k in node.initializers if k not in names]
    return tuple(k for k in names if graph.initializers[k].requires_grad)
