"""One operator becomes several, each of a part of it: the same loss and the same gradients.

    x ─► [operator] ─► y   becomes   x ─► split ─┬─► [operator:0] ─┬─► cat, or a sum ─► y
                                                 └─► [operator:1] ─┘

What comes out is a plain graph again, whose operators may be placed one by one; y keeps its name. Parameters
that a part reads are variables: cut, or read whole, on the parameter's home, and sent from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

from netsplit.errors import RewriteError, brief
from netsplit.graph.arguments import read_by, references
from netsplit.graph.ir import CALL, Graph, Node
from netsplit.graph.operators import resolve, written_references
from netsplit.graph.random_draws import node_draws
from netsplit.rewrite.draft import Draft
from netsplit.rewrite.moving.moves import CAT
from netsplit.rewrite.parts import parameters_in_parts
from netsplit.rewrite.records import checked_field
from netsplit.rewrite.rules.table import FACTORIES, WRITERS, has_rule, ways_of
from netsplit.rewrite.ways import Arguments, Axis, Cat, OperatorPart, Place, SplitCall, Way

__all__ = [
    "block_size",
    "chosen_way",
    "fewer_than_parts",
    "sizes_do_not_add_up",
    "split_axes",
    "split_in",
    "split_operator",
    "split_sizes",
    "ways_to_cut",
]

_ADD, _MUL = "aten.add.Tensor", "aten.mul.Tensor"


def split_operator(graph: Graph, node: str, axis: Axis, parts: int | Sequence[int], blocks: int = 1) -> Graph:
    """The graph with `node` in parts.

    Args:
        axis: a dimension of its first output, which may be negative; or one of an argument that no output
            has, by name, as "weight.0"; or "groups". `split_axes` has those there are.
        parts: how many, of sizes that differ by one at most, as ``torch.tensor_split`` makes them; or their
            sizes, which add up to the axis (or to one of its blocks).
        blocks: the axis consists of so many equal blocks, each of which is cut: 3, of queries, keys and
            values in one weight.

    Raises:
        RewriteError: there is no such node or axis, the operator cannot be cut along it, or the sizes do not
            fit; says why.
    """
    draft = Draft(graph)
    graph = draft.graph
    axis, parts = checked_field("axis", axis), checked_field("parts", parts)
    blocks = checked_field("blocks", blocks)
    call = SplitCall(draft.node(node), draft.layouts, graph.initializers)
    axis, way = chosen_way(call, axis, graph)
    split_in(draft, node, axis, split_sizes(call, axis, way.size, parts, blocks), blocks)
    return parameters_in_parts(draft.finish())


def split_axes(graph: Graph, node: str) -> dict[Axis, int]:
    """The axes along which a node can be cut, and their sizes; none where it cannot be cut at all.

    Raises:
        RewriteError: there is no such node.
    """
    draft = Draft(graph)
    checked_field("node", node)
    if node in graph.nodes and node not in draft.nodes:
        return {}
    call = SplitCall(draft.node(node), draft.layouts, draft.graph.initializers)
    return {axis: way.size for axis, way in ways_to_cut(call, draft.graph).items()}


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


def chosen_way(call: SplitCall, axis: Axis, graph: Graph) -> tuple[Axis, Way]:
    """How a node is cut along an axis, and that axis's own name; raises as `split_operator`."""
    _refuse(call, graph)
    ways = ways_of(call)
    if isinstance(axis, int) and axis < 0:
        axis += len(call.output)
    way = ways.get(axis)
    if way is None:
        if not has_rule(call.node.op):
            raise call.error(axis, "NetSplit has no rule for how such an operator is cut")
        known = ", ".join(f"{k!r} ({w.size})" for k, w in ways.items() if isinstance(w, Way))
        there = f"there are {known}" if known else "there is none"
        raise call.error(axis, f"it has no such dimension; of those that can be cut {there}")
    if isinstance(way, str):
        raise call.error(axis, way)
    return axis, way


def split_sizes(
    call: SplitCall, axis: Axis, size: int, parts: int | Sequence[int], blocks: int
) -> tuple[int, ...]:
    """The sizes of parts of each block, checked; raises as `split_operator`."""
    block = block_size(call, axis, size, blocks)
    if isinstance(parts, int):
        count = parts if 0 < parts <= block else 0
        sizes = tuple(block // count + (i < block % count) for i in range(count))
    else:
        sizes = tuple(parts)
    if len(sizes) < 2 or min(sizes) < 1 or sum(sizes) != block:
        raise sizes_do_not_add_up(call, axis, parts, block)
    return sizes


def sizes_do_not_add_up(call: SplitCall, axis: Axis, parts: int | Sequence[int], block: int) -> RewriteError:
    """Of these parts, or such a number of them."""
    shown = f"{parts} parts" if isinstance(parts, int) else f"sizes {brief(list(parts))}"
    return call.error(axis, f"{shown} of {block}: give two parts or more, none of them empty, that add up")


def block_size(call: SplitCall, axis: Axis, size: int, blocks: int) -> int:
    """Of each of so many equal blocks; raises as `split_operator`."""
    block, rest = divmod(size, max(blocks, 1))
    if blocks < 1 or rest:
        raise call.error(axis, f"its {size} are no {blocks} equal blocks")
    return block


def fewer_than_parts(call: SplitCall, axis: Axis, parts: int, samples: int) -> RewriteError:
    """Where some of the parts would be empty, and cannot be."""
    return call.error(
        axis,
        f"it is in {parts} parts along the samples, of which a micro-batch has {samples}: give each "
        "micro-batch as many samples as there are parts, or more",
    )


def _refuse(call: SplitCall, graph: Graph) -> None:
    """What no rule needs to look at."""
    node = call.node
    reason = ""
    if node.op.startswith(CALL):
        reason = "it is a piece of Python, which runs whole"
    elif graph.autocast is not None or node.autocast is not None:
        reason = "it runs under autocast, which casts parts of a weight otherwise than the weight"
    elif node.checkpoint:
        reason = "it lies within an activation checkpoint of the model's own, which runs again as a whole"
    elif node.default_dtype is not None or node.blocked:
        reason = "it runs in a mode of the model's own that parts would not have"
    elif node_draws(node):
        reason = "it draws random numbers, and parts would draw others"
    elif any(node.name in unit for unit in graph.units):
        reason = "it reads or writes a tensor that is written in place, and runs in one piece with all who do"
    elif node.op not in WRITERS and written_references(graph, node):
        reason = "it writes in place"
    if reason:
        raise call.error(None, reason)


def split_in(
    draft: Draft, name: str, axis: Axis, sizes: Sequence[int], blocks: int, way: Way | None = None
) -> list[str]:
    """Replace a node of the draft by parts of these sizes, and name them; raises as `split_operator`.

    Args:
        way: how it was cut at another size of the axis, where it is another; parts may then be empty.
    """
    node = draft.node(name)
    call = SplitCall(node, draft.layouts, draft.graph.initializers)
    if way is None:
        _, way = chosen_way(call, axis, draft.graph)
    draft.decisions.ways.append(way)
    if way.in_one and blocks > 1:
        raise call.error(axis, "its parts have to be runs: give blocks=1")
    before = [draft.layouts[k] for k in node.outputs if k]
    draft.forget(name)
    given = _given(draft, call, way, sizes, blocks)
    ends = list(accumulate(sizes))
    output = before[0].shape if before else ()
    parts = [
        OperatorPart(i, end - size, size, way.size // blocks, blocks, output)
        for i, (end, size) in enumerate(zip(ends, sizes, strict=True))
    ]
    parted = [_part(draft, call, way, part, given[part.index]) for part in parts]
    named, made = [each for each, _ in parted], [outputs for _, outputs in parted]
    whole = _whole(draft, call) if way.last is not None else {}
    anchor = f"{name} (whole)"
    draft.rename(name, anchor)
    for j, k in enumerate(node.outputs):
        if k:
            _join(draft, node, anchor, way, j, [each[j] for each in made], (sizes, blocks), whole)
    draft.remove(anchor)
    after = [draft.layouts[k] for k in node.outputs if k]
    if [(a.shape, a.dtype) for a in after] != [(b.shape, b.dtype) for b in before]:
        raise call.error(axis, "its parts do not make up what it makes, which is a fault of NetSplit")
    return named


def _given(
    draft: Draft, call: SplitCall, way: Way, sizes: Sequence[int], blocks: int
) -> list[dict[Place, str]]:
    """Of every part, the variables that it is given in the places of tensors."""
    given: list[dict[Place, str]] = [{} for _ in sizes]
    for place in call.tensors:
        ((tag, k),) = references(call.template(place))
        where = way.cut.get(place)
        if where is not None:
            own = [size * where.times for size in sizes]
            pieces = draft.pieces((tag, k), where.dim, own, where.blocks * blocks, call.node)
        else:
            pieces = [draft.read(k, call.node) if tag == "init" else k] * len(sizes)
        for each, piece in zip(given, pieces, strict=True):
            each[place] = piece
    return given


def _part(
    draft: Draft, call: SplitCall, way: Way, part: OperatorPart, given: dict[Place, str]
) -> tuple[str, list[str]]:
    """One part, made before the node itself, and its outputs."""
    arguments = _with_tensors(call.arguments, given) | way.changed(part)
    if part.index:
        arguments |= dict.fromkeys(way.once)
    emit = partial(_emit, draft, call.node)
    if way.before is not None:
        arguments = way.before(emit, part, arguments)
    name = draft.fresh(f"{call.node.name}:{part.index}")
    several = len(call.node.outputs) > 1
    outputs = tuple(
        (f"{name}.{j}" if several else name) if k else "" for j, k in enumerate(call.node.outputs)
    )
    op = (way.empty if not part.size or call.is_empty else "") or way.op or call.node.op
    args, kwargs = _laid_out(op, arguments)
    own = replace(call.node, name=name, op=op, outputs=outputs, args=args, kwargs=kwargs)
    draft.emit(own, before=call.node.name)
    if way.after is not None:
        return name, [way.after(emit, part, arguments, {"var": outputs[0]})["var"]]
    return name, list(outputs)


def _whole(draft: Draft, call: SplitCall) -> Arguments:
    """Of the operator itself, for what comes after its parts."""
    given: dict[Place, str] = {}
    for place in call.tensors:
        ((tag, k),) = references(call.template(place))
        given[place] = draft.read(k, call.node) if tag == "init" else k
    return _with_tensors(call.arguments, given)


def _join(
    draft: Draft,
    node: Node,
    anchor: str,
    way: Way,
    j: int,
    parts: list[str],
    cut: tuple[Sequence[int], int],
    whole: Arguments,
) -> None:
    """Output j of the node, under its own name, made of the parts' before the node `anchor`."""
    how, (sizes, blocks), k = way.joined[j], cut, node.outputs[j]
    name = node.name if len(node.outputs) == 1 else f"{node.name}:cat{j}"
    like = replace(node, no_grad=False)
    emit = partial(_emit, draft, replace(like, name=anchor))

    def last(op: str, *args: Any) -> None:
        draft.emit(replace(like, name=name, op=op, outputs=(k,), args=args, kwargs={}), before=anchor)

    if isinstance(how, Cat):
        own = [size * how.where.times for size in sizes]
        joined = draft.joined(parts, how.where.dim, own, how.where.blocks * blocks, node)
        last(CAT, [{"var": each} for each in joined], how.where.dim)
        return
    terms: list[Any] = [{"var": each} for each in parts]
    if how.mean:
        terms = [emit(_MUL, term, size / max(sum(sizes), 1)) for term, size in zip(terms, sizes, strict=True)]
    total = terms[0]
    for term in terms[1:-1]:
        total = emit(_ADD, total, term)
    if way.last is None:
        last(_ADD, total, terms[-1])
    else:
        op, *args = way.last(emit, whole, emit(_ADD, total, terms[-1]))
        last(op, *args)


def _emit(draft: Draft, like: Node, op: str, *args: Any, name: str = "") -> dict[str, str]:
    """A node of one output before `like`, in its modes."""
    stem = like.name.removesuffix(" (whole)")
    name = draft.fresh(f"{stem}:{name or op.split('.')[1]}")
    draft.emit(replace(like, name=name, op=op, outputs=(name,), args=args, kwargs={}), before=like.name)
    return {"var": name}


def _with_tensors(arguments: Arguments, given: dict[Place, str]) -> Arguments:
    """The arguments with these variables in the places of tensors."""
    changed = dict(arguments)
    for place, k in given.items():
        if isinstance(place, str):
            changed[place] = {"var": k}
        else:
            name, i = place
            changed[name] = [*changed[name][:i], {"var": k}, *changed[name][i + 1 :]]
    return changed


def _laid_out(op: str, arguments: Arguments) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a call, without those at its end that are the defaults."""
    schema = resolve(op)._schema.arguments
    args = [(each, arguments.get(each.name, each.default_value)) for each in schema if not each.kwarg_only]
    while args and args[-1][0].has_default_value() and args[-1][1] == args[-1][0].default_value:
        args.pop()
    kwargs = {
        each.name: arguments[each.name]
        for each in schema
        if each.kwarg_only
        and each.name in arguments
        and not (each.has_default_value() and arguments[each.name] == each.default_value)
    }
    return tuple(value for _, value in args), kwargs
