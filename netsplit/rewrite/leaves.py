"""The tasks of an operator, each as a call on regions of tensors: what follows from how it is cut.

    OperatorTasks ── Way of each cut ──► Leaf: what it reads of every argument, what it makes of every output

Regions are of the captured graph's tensors, in whatever number of cuts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice, pairwise
from typing import Any

from netsplit.errors import RewriteError, brief
from netsplit.graph.arguments import Reference, gives_sparse_gradients, read_by, references
from netsplit.graph.ir import CALL, Graph, Node, NodeCut, NodeRole
from netsplit.graph.operators import node_draws, resolve, written_references
from netsplit.layout.regions import Region, blocks_of, both, length_of, now, through, whole_region
from netsplit.rewrite.emitter import handed_on
from netsplit.rewrite.in_place import out_of_place
from netsplit.rewrite.layouts import MemoryLayout
from netsplit.rewrite.rules import has_rule, ways_of
from netsplit.rewrite.rules.reductions import WRITERS
from netsplit.rewrite.rules.shapes import DRAWING, FACTORIES
from netsplit.rewrite.tasks import OperatorTasks, Path, TaskCut, Weights, sizes_in_proportion
from netsplit.rewrite.ways import Arguments, Axis, OperatorPart, PartialSum, Place, SplitCall, Way, Where

__all__ = [
    "Arg", "CutsBefore", "Leaf", "LeafPlanner", "TaskOutput", "laid_out", "require_copies", "ways_to_cut",
    "with_tensors",
]  # fmt: skip

Arg = tuple[Reference, Region]
"""What is read: of which tensor, which region."""

CutsBefore = dict[tuple[str, Path], tuple[Way, tuple[int, ...]]]
"""How operators and parts were cut at another size, and by which sizes."""


@dataclass(frozen=True)
class TaskOutput:
    """What a task makes of one output. `partial`: a term, to be added up after multiplying it by `factor`."""

    region: Region
    partial: bool = False
    factor: float | None = None


@dataclass(frozen=True)
class Leaf:
    """One task; or an operator, or a part of it, that may be cut again."""

    name: str
    role: NodeRole
    call: SplitCall  # of the whole operator
    op: str
    arguments: Arguments  # of the task, whose tensors are in `reads`
    reads: dict[Place, Arg]
    makes: tuple[TaskOutput, ...]
    levels: tuple[tuple[Way, OperatorPart], ...] = ()  # of each cut, outermost first
    weights: Weights = 0


@dataclass(eq=False)
class LeafPlanner:
    """Plans how the operators of one graph are cut into leaves."""

    graph: Graph
    layouts: Mapping[str, MemoryLayout]
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of the variables when their operators were cut, where that was at another size."""
    before: CutsBefore = field(default_factory=dict)  # how they were cut there
    cuts: CutsBefore = field(default_factory=dict)  # how they are cut here
    scaled: list[tuple[str, TaskCut, str]] = field(default_factory=list)
    """Operator, cut and refusal of cuts whose sizes are not this graph's own."""

    def __post_init__(self) -> None:
        self.graph = out_of_place(self.graph)

    def full(self, reference: Reference) -> Region:
        tag, k = reference
        if tag == "init":
            return whole_region(self.graph.initializers[k].shape)
        shape = self.layouts[k].shape
        return whole_region(shape, self.shapes.get(k, shape))

    def _read(self, reference: Reference) -> Arg:
        """A tensor; or the region of a parameter that the model itself cuts out."""
        tag, k = reference
        if tag == "var" and k in (there := handed_on(self.graph)):
            name, region = there[k]
            return ("init", name), region
        return reference, self.full(reference)

    def leaves(self, tasks: OperatorTasks, first: bool = False) -> list[Leaf]:
        """All tasks, or the first alone. Raises `RewriteError`: it cannot be cut so, or has no copies."""
        node = self.graph.nodes[tasks.node]
        call = SplitCall(node, self.layouts, self.graph.initializers)
        if max(tasks.copies, default=1) > 1:
            require_copies(self.graph, node)
        if tasks.cuts:
            _refuse(call, self.graph)
        reads = {
            place: self._read(reference)
            for place in call.tensors
            for reference in references(call.template(place))
        }
        makes = tuple(TaskOutput(self.full(("var", k)) if k else ()) for k in node.outputs)
        whole = Leaf(node.name, NodeRole(node.name), call, node.op, call.arguments, reads, makes)
        parts: dict[Path, Leaf] = {(): whole}
        for cut in tasks.cuts:
            if cut.part is not None and cut.part not in parts:
                name = tasks.named(cut.part)
                raise RewriteError(f"the graph has no operator '{name}': name one of its operators.")
            before, parts = parts, {}
            for path, own in before.items():
                if cut.part not in (None, path):
                    parts[path] = own
                    continue
                each = self._cut(tasks.named(path), own, cut, path, first)
                parts |= {(*path, i): part for i, part in enumerate(each)}
        leaves = []
        for path, place, copy, weights in islice(tasks.tasks(), 1 if first else None):
            role = replace(parts[path].role, copy=copy, place=place)
            leaves.append(replace(parts[path], name=tasks.named(path, copy), role=role, weights=weights))
        return leaves

    def _cut(self, name: str, part: Leaf, cut: TaskCut, path: Path, first: bool) -> list[Leaf]:
        call = part.call if not path else _call_of(name, part)
        way, sizes, then = self._sizes(part.call.node.name, call, cut, path)
        if way.in_one and cut.blocks > 1:
            raise call.error(cut.axis, "its parts must be contiguous: give blocks=1")
        if part.levels and any(own.alone for own in (way, *(own for own, _ in part.levels))):
            raise call.error(cut.axis, "it is cut between classes, or along other dimensions, not both")
        before = then or (way, sizes)
        block = both(before[0].size // cut.blocks, sum(sizes))
        ends = [0, *accumulate(map(both, before[1], sizes))]
        output = call.output if call.node.outputs and call.node.outputs[0] else ()
        parts = []
        for i, (start, end) in enumerate(pairwise(ends[:2] if first else ends)):
            own = OperatorPart(
                i, now(start), sizes[i], way.size // cut.blocks, cut.blocks, output, len(sizes)
            )
            node_cut = NodeCut(cut.axis, i, len(sizes), own.start, own.size, now(block), cut.blocks)
            parts.append(_part(call, part, way, node_cut, own, (start, end - start, block)))
        return parts

    def _sizes(
        self, operator: str, call: SplitCall, cut: TaskCut, path: Path
    ) -> tuple[Way, tuple[int, ...], tuple[Way, tuple[int, ...]] | None]:
        """How it is cut, by which sizes; and how it was cut at another size."""
        key = operator, path
        samples, then = self.graph.batch_size, self.before.get(key)
        if then is not None:
            size = then[0].size_in(call)
            if size is not None and (size != then[0].size or call.is_empty):
                sizes = sizes_in_proportion(cut.sizes, _block_size(call, cut.axis, size, cut.blocks), samples)
                self.cuts[key] = then[0], sizes
                return then[0], sizes, then
        axis, way = cut.axis, _chosen_way(call, cut.axis, self.graph)
        block = _block_size(call, axis, way.size, cut.blocks)
        sizes = sizes_in_proportion(cut.sizes, block, samples)
        if sizes != cut.sizes:
            reason = _sizes_do_not_add_up(call, axis, cut.sizes, block)
            self.scaled.append((operator, cut, str(reason)))
        if 0 in sizes:
            raise call.error(
                axis,
                f"sizes {brief(list(cut.sizes))} of {block} leave a part empty: give sizes that add up, or, "
                "along the samples, micro-batches of at least a sample per part",
            )
        if len(sizes) < 2 or min(sizes) < 1 or sum(sizes) != block:
            raise _sizes_do_not_add_up(call, axis, cut.sizes, block)
        self.cuts[key] = way, sizes
        return way, sizes, then


def _part(
    call: SplitCall, whole: Leaf, way: Way, cut: NodeCut, own: OperatorPart, span: tuple[int, int, int]
) -> Leaf:
    """One part of an operator; `span`: where it begins in each block, its size and that of a block."""
    arguments, reads = {**whole.arguments, **way.changed(own)}, dict(whole.reads)
    if own.index:
        arguments |= dict.fromkeys(way.once)
        reads = {place: arg for place, arg in reads.items() if place not in way.once}

    def piece(region: Region, where: Where) -> Region:
        start, size, block = (n * where.times for n in span)
        runs = blocks_of(start, size, block, where.blocks * cut.blocks)
        return (*region[: where.dim], through(region[where.dim], runs), *region[where.dim + 1 :])

    for place in way.cut.keys() & reads.keys():
        reference, region = reads[place]
        reads[place] = reference, piece(region, way.cut[place])
    makes = []
    for output, how in zip(whole.makes, way.joined, strict=True):
        if isinstance(how, PartialSum):
            factor = output.factor
            if how.mean:
                factor = (1.0 if factor is None else factor) * own.size / max(cut.of, 1)
            makes.append(replace(output, partial=True, factor=factor))
        else:
            makes.append(replace(output, region=piece(output.region, how.where)))
    op = (way.empty if not own.size or call.is_empty else "") or way.op or whole.op
    role, levels = replace(whole.role, cuts=(*whole.role.cuts, cut)), (*whole.levels, (way, own))
    return Leaf(whole.name, role, whole.call, op, arguments, reads, tuple(makes), levels)


def _call_of(name: str, part: Leaf) -> SplitCall:
    """A part as a call of its own, whose tensors are called by their places."""
    names = {place: {"var": str(place)} for place in part.reads}
    arguments = with_tensors(part.arguments, names)
    args, kwargs = laid_out(part.op, arguments)
    node = replace(part.call.node, name=name, op=part.op, args=args, kwargs=kwargs)
    layouts = {str(place): _of_shape(region) for place, (_, region) in part.reads.items()}
    layouts |= {k: _of_shape(output.region) for k, output in zip(node.outputs, part.makes, strict=True) if k}
    return SplitCall(node, layouts, part.call.initializers)


def _of_shape(region: Region) -> MemoryLayout:
    return MemoryLayout(tuple(now(length_of(runs)) for runs in region), (), "", False, "")


def with_tensors(arguments: Arguments, given: Mapping[Place, Any]) -> Arguments:
    """The arguments with these templates in the places of tensors."""
    changed = dict(arguments)
    for place, template in given.items():
        name, i = (place, None) if isinstance(place, str) else place
        changed[name] = template if i is None else [*changed[name][:i], template, *changed[name][i + 1 :]]
    return changed


def laid_out(op: str, arguments: Arguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a call, without trailing defaults."""
    schema = resolve(op)._schema.arguments
    given = {each.name: arguments.get(each.name, each.default_value) for each in schema}
    usual = {e.name for e in schema if e.has_default_value() and given[e.name] == e.default_value}
    args = [each.name for each in schema if not each.kwarg_only]
    while args and args[-1] in usual:
        args.pop()
    kwargs = {each.name for each in schema if each.kwarg_only} & arguments.keys() - usual
    return tuple(given[name] for name in args), {name: given[name] for name in given if name in kwargs}


def ways_to_cut(call: SplitCall, graph: Graph) -> dict[Axis, Way]:
    """How a node can be cut along each of its axes that is longer than 1; none where it cannot be cut."""
    read = {k for tag, k in read_by(call.node) if tag == "var"}
    given = call.node.inputs or call.node.op in FACTORIES
    if not given or read != set(call.node.inputs):  # of a file that has no arguments
        return {}
    try:
        _refuse(call, graph)
    except RewriteError:
        return {}
    return {axis: way for axis, way in ways_of(call).items() if isinstance(way, Way) and way.size > 1}


def _chosen_way(call: SplitCall, axis: Axis, graph: Graph) -> Way:
    """How a node is cut along an axis. Raises `RewriteError`: it cannot be."""
    _refuse(call, graph)
    ways = ways_of(call)
    way = ways.get(axis)
    if way is None:
        if not has_rule(call.node.op):
            raise call.error(axis, "NetSplit has no rule for cutting this operator")
        known = ", ".join(f"{k!r} ({w.size})" for k, w in ways.items() if isinstance(w, Way))
        there = f"give one of {known}" if known else "it cannot be cut"
        raise call.error(axis, f"it has no such dimension: {there}")
    if isinstance(way, str):
        raise call.error(axis, way)
    return way


def _sizes_do_not_add_up(call: SplitCall, axis: Axis, sizes: Sequence[int], block: int) -> RewriteError:
    why = f"sizes {brief(list(sizes))} of {block}: give two parts or more, none of them empty, that add up"
    return call.error(axis, why)


def _block_size(call: SplitCall, axis: Axis, size: int, blocks: int) -> int:
    """The size of each of `blocks` equal blocks. Raises `RewriteError`: it does not divide."""
    block, rest = divmod(size, blocks)
    if rest:
        raise call.error(axis, f"its {size} do not divide into {blocks} equal blocks")
    return block


def require_copies(graph: Graph, node: Node) -> None:
    """Raises `RewriteError`: a node that cannot be computed several times."""
    reason = ""
    if node.op.startswith(CALL) or node.checkpoint:
        reason = "it is a piece of Python, or runs within an activation checkpoint"
    elif any(node.name in unit for unit in graph.units) or written_references(graph, node):
        reason = "it reads or writes a tensor that is written in place"
    elif node.initializers and gives_sparse_gradients(node):
        reason = "the gradient of its weight is sparse, and copies sum only dense gradients"
    if reason:
        raise RewriteError(f"'{node.name}' ({node.kind}) cannot be computed several times: {reason}.")


def _refuse(call: SplitCall, graph: Graph) -> None:
    """Raises `RewriteError`: the operator can be cut along no axis."""
    node = call.node
    reason = ""
    if node.op.startswith(CALL):
        reason = "it is a piece of Python, which runs whole"
    elif graph.autocast is not None or node.autocast is not None:
        reason = "it runs under autocast, which casts parts of a weight differently from the whole"
    elif node.checkpoint:
        reason = "it is in one of the model's own activation checkpoints, which run again as a whole"
    elif node.blocked:
        reason = "the model runs it in a mode that its parts would not have"
    elif node_draws(node) and node.op not in DRAWING:
        reason = "it draws random numbers, and parts would draw different ones"
    elif any(node.name in unit for unit in graph.units):
        reason = "it reads or writes a tensor that is written in place, and runs in one piece with them"
    elif node.op not in WRITERS and written_references(graph, node):
        reason = "it writes in place"
    if reason:
        raise call.error(None, reason)
