"""Which operators of torch are which of the rules', and the other way round.

    aten.linear.default(x, w, b) ──calls_of──► RuleCall("linear", (x, w, b)) ──written──► aten.linear.default

What draws, writes, hands on its argument, or runs in a mode or a checkpoint of the model's own, is none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import torch

from netsplit.graph.arguments import Reference, argument, references, renamed
from netsplit.graph.ir import CALL, INITIALIZER, Graph, Node, once_of
from netsplit.graph.operators import resolve, written_storages
from netsplit.graph.random_draws import node_draws
from netsplit.graph.storage import storage_of
from netsplit.rewrite.algebra.rule import Operator
from netsplit.rewrite.emitter import in_no_mode

__all__ = ["Function", "RuleCall", "RuleCalls", "Shape", "Written", "calls_of", "shape_of", "written"]

Shape: TypeAlias = tuple[int, ...]
Written: TypeAlias = tuple[str, tuple[Any, ...], dict[str, Any]]
"""Operator, arguments and named ones."""


@dataclass(frozen=True)
class Function:
    """A function of each element: its operator and all its arguments but the tensor."""

    op: str
    key: str
    node: Node = field(compare=False, repr=False)
    given: Reference = field(compare=False, repr=False)

    def of(self, reference: Reference) -> Written:
        own = renamed(self.node, {self.given: reference})
        return self.op, own["args"], own["kwargs"]


@dataclass(frozen=True, eq=False)
class RuleCall:
    """A node as an operator of rules. `also`: nodes that are there for it alone, and go with it."""

    op: Operator
    node: Node
    inputs: tuple[Reference, ...]
    outputs: tuple[str, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    rank: int = 0  # of the tensor that its dimensions are of
    also: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        return (self.node.name, *self.also)


@dataclass(frozen=True)
class RuleCalls:
    """Of a graph. `by_op`, `made`: by variable; `readers`: by what is read, each once."""

    by_op: Mapping[str, Sequence[RuleCall]]
    made: Mapping[str, Sequence[RuleCall]]
    readers: Mapping[Reference, Sequence[RuleCall]]


def shape_of(graph: Graph, reference: Reference) -> Shape:
    tag, k = reference
    return graph.variables[k].shape if tag == "var" else graph.initializers[k].shape


@once_of
def calls_of(graph: Graph) -> RuleCalls:
    """All that rules may be about."""
    by_op: dict[str, list[RuleCall]] = {}
    made: dict[str, list[RuleCall]] = {}
    readers: dict[Reference, list[RuleCall]] = {}
    written_roots = _written(graph)
    within = {name for unit in graph.units for name in unit}
    for node in graph if graph.autocast is None else ():
        if node.name in within or node.part is not None or node.blocked or not in_no_mode(node):
            continue
        for call in _calls(graph, node):
            if not _is_plain(graph, call, written_roots):
                continue
            by_op.setdefault(call.op, []).append(call)
            for k in call.outputs:
                made.setdefault(k, []).append(call)
            for reference in dict.fromkeys(call.inputs):
                readers.setdefault(reference, []).append(call)
    return RuleCalls(by_op, made, readers)


def _written(graph: Graph) -> frozenset[str]:
    return frozenset(root for node in graph for root in written_storages(graph, node))


def _is_plain(graph: Graph, call: RuleCall, written_roots: frozenset[str]) -> bool:
    """Whether its tensors are never written, and those that are computed with are of one dtype."""
    roots = {storage_of(graph, k) for k in call.outputs}
    roots |= {INITIALIZER + k if tag == "init" else storage_of(graph, k) for tag, k in call.inputs}
    computed = call.inputs[:1] if call.op in ("embedding", "bag") else call.inputs
    dtypes = {graph.variables[k].dtype for k in call.outputs}
    dtypes |= {(graph.variables if tag == "var" else graph.initializers)[k].dtype for tag, k in computed}
    return written_roots.isdisjoint(roots) and len(dtypes) == 1 and dtypes.pop().startswith(("float", "bf"))


def _calls(graph: Graph, node: Node) -> Iterator[RuleCall]:
    reader = _READERS.get(node.op)
    call = None if reader is None else reader(graph, node)
    if call is not None:
        yield call
    function = _function(graph, node)
    if function is not None:
        outputs, kinds = tuple(node.outputs), ["unary"]
        if node.op in ("aten.mul.Tensor", "aten.div.Tensor", "aten.neg.default"):
            kinds.append("scale")
        for op in kinds:
            yield RuleCall(op, node, (function.given,), outputs, {"function": function})  # type: ignore[arg-type]


def _function(graph: Graph, node: Node) -> Function | None:
    """Of each element, with a result of its own, without chance."""
    given = list(references([*node.args, *node.kwargs.values()]))
    if node.op.startswith(CALL) or len(given) != 1 or len(node.outputs) != 1:
        return None
    made = graph.variables[node.outputs[0]]
    if made.shape != shape_of(graph, given[0]) or made.alias_of is not None:
        return None
    if torch.Tag.pointwise not in resolve(node.op).tags or node_draws(node):
        return None
    key = json.dumps([renamed(node, {given[0]: ("var", "")})], default=str)
    return Function(node.op, key, node, given[0])


def _reference(template: Any) -> Reference | None:
    if isinstance(template, dict) and len(template) == 1:
        ((tag, k),) = template.items()
        if tag in ("var", "init"):
            return tag, k
    return None


def _read(node: Node, *templates: Any) -> tuple[Reference, ...] | None:
    read = [_reference(each) for each in templates if each is not None]
    return None if None in read else tuple(read)  # type: ignore[arg-type]


def _linear(graph: Graph, node: Node) -> RuleCall | None:
    read = _read(node, *node.args)
    if read is None or len(shape_of(graph, read[1])) != 2 or len(shape_of(graph, read[0])) < 2:
        return None
    return RuleCall("linear", node, read, node.outputs)


def _matmul(graph: Graph, node: Node) -> RuleCall | None:
    order = (*node.args[1:3], node.args[0]) if node.kind == "addmm" else node.args
    read = _read(node, *order)
    if read is None or node.kwargs:
        return None
    x, y, *bias = (shape_of(graph, each) for each in read)
    alike = len(y) == 2 or (len(x) == len(y) and x[:-2] == y[:-2])
    if len(x) < 2 or not alike or bias not in ([], [y[-1:]]):
        return None
    return RuleCall("matmul", node, read, node.outputs)


def _conv(graph: Graph, node: Node) -> RuleCall | None:
    read = _read(node, *node.args[:2], argument(node, 2, "bias"))
    if read is None or len(shape_of(graph, read[0])) != len(shape_of(graph, read[1])):
        return None
    numbers = {
        key: _uniform(default if (given := argument(node, place, key)) is None else given)
        for place, (key, default) in enumerate(_CONV.items(), 3)
    }
    return RuleCall("conv", node, read, node.outputs, numbers)


_CONV = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}


def _uniform(value: Any) -> Any:
    """One number, where all are the same."""
    if not isinstance(value, list | tuple):
        return value
    return value[0] if len(set(value)) == 1 else tuple(value)


def _two(graph: Graph, node: Node) -> RuleCall | None:
    """Of tensors of one shape."""
    read = _read(node, *node.args)
    if read is None or len(read) != 2 or node.kwargs or len({shape_of(graph, each) for each in read}) > 1:
        return None
    return RuleCall("add" if node.kind == "add" else "mul", node, read, node.outputs)


def _concat(graph: Graph, node: Node) -> RuleCall | None:
    read = _read(node, *node.args[0])
    rank = len(graph.variables[node.outputs[0]].shape)
    if read is None or any(len(shape_of(graph, each)) != rank for each in read):
        return None
    dim = int(argument(node, 1, "dim") or 0) % rank
    return RuleCall("concat", node, read, node.outputs, {"dim": dim}, rank)


def _split(graph: Graph, node: Node) -> RuleCall | None:
    read = _read(node, node.args[0])
    if read is None or len(node.outputs) < 2 or not all(node.outputs):
        return None
    rank = len(shape_of(graph, read[0]))
    dim = int(argument(node, 2, "dim") or 0) % rank
    return RuleCall("split", node, read, node.outputs, {"dim": dim}, rank)


def _transpose(graph: Graph, node: Node) -> RuleCall | None:
    read, rank = _read(node, node.args[0]), len(graph.variables[node.outputs[0]].shape)
    if read is None or rank < 2 or (node.kind != "transpose" and rank != 2):
        return None
    dims = sorted(int(d) % rank for d in (node.args[1:3] if node.kind == "transpose" else (0, 1)))
    return RuleCall(
        "transpose", node, read, node.outputs, dict(zip(("first", "second"), dims, strict=True)), rank
    )


def _reduction(graph: Graph, node: Node) -> RuleCall | None:
    read, dims = _read(node, node.args[0]), argument(node, 1, "dim")
    if read is None or len(node.args) > 2 or set(node.kwargs) - {"dim"} or not isinstance(dims, list | tuple):
        return None
    rank = len(shape_of(graph, read[0]))
    if len(dims) != 1:
        return None
    return RuleCall(
        "sum" if node.kind == "sum" else "mean", node, read, node.outputs, {"dim": dims[0] % rank}, rank
    )


def _embedding(graph: Graph, node: Node) -> RuleCall | None:
    read = _read(node, *node.args[:2])
    plain = list(node.args[2:]) in ([], [-1], [-1, False], [-1, False, False]) and not node.kwargs
    if read is None or not plain or graph.variables[node.inputs[-1]].dtype != "int64":
        return None
    return RuleCall("embedding", node, read, node.outputs)


_BAG = (None, None, None, False, None, False, None, False, None)
"""What `embedding_bag.padding_idx` is given by a module of equal bags that sums or takes the mean."""


def _bag(graph: Graph, node: Node) -> RuleCall | None:
    """Of bags of one size: a table of indices, made flat for it."""
    if len(node.args) != 9 or node.kwargs or node.args[4] not in (0, 1) or node.args[6] is not None:
        return None
    if any(node.args[i] != _BAG[i] for i in (3, 5, 7, 8)):
        return None
    table, flat, begins = (_reference(node.args[i]) for i in (0, 1, 2))
    if table is None or flat is None or begins is None or "init" in (flat[0], begins[0]):
        return None
    makers = [graph.variables[k].producer for k in (flat[1], begins[1])]
    if None in makers:
        return None
    reshape, arange = (graph.nodes[name] for name in makers if name is not None)
    index = _reference(reshape.args[0]) if reshape.op == "aten.reshape.default" else None
    if index is None or len(shape := shape_of(graph, index)) != 2 or reshape.args[1] not in ([-1], (-1,)):
        return None
    if arange.op != "aten.arange.start_step" or arange.args != (0, prod(shape), shape[1]):
        return None
    if any(graph.variables[k].consumers for k in node.outputs[1:] if k):
        return None
    also = tuple(each.name for each in (reshape, arange) if _feeds_alone(graph, each, node))
    return RuleCall("bag", node, (table, index), node.outputs[:1], {"mean": node.args[4]}, also=also)


def _feeds_alone(graph: Graph, node: Node, reader: Node) -> bool:
    return all(graph.variables[k].consumers == (reader.name,) for k in node.outputs)


_READERS: dict[str, Callable[[Graph, Node], RuleCall | None]] = {
    "aten.linear.default": _linear,
    **dict.fromkeys(("aten.matmul.default", "aten.mm.default", "aten.addmm.default"), _matmul),
    **{f"aten.conv{n}d.default": _conv for n in (1, 2, 3)},
    **dict.fromkeys(("aten.add.Tensor", "aten.mul.Tensor"), _two),
    "aten.cat.default": _concat,
    **dict.fromkeys(
        ("aten.split_with_sizes.default", "aten.split.Tensor", "aten.chunk.default"), _split
    ),
    **dict.fromkeys(("aten.transpose.int", "aten.t.default", "aten.numpy_T.default"), _transpose),
    **dict.fromkeys(("aten.sum.dim_IntList", "aten.mean.dim"), _reduction),
    "aten.embedding.default": _embedding,
    "aten.embedding_bag.padding_idx": _bag,
}  # fmt: skip


def written(
    op: str, given: Sequence[Reference], shapes: Sequence[Shape], numbers: Mapping[str, Any], sizes: Shape
) -> list[Written]:
    """The calls that compute an operator; of several, later ones read ("made", j), what those before make.

    Args:
        given: what it reads.
        shapes: of that.
        numbers: its parameters, dimensions as torch counts them.
        sizes: of a split.

    Raises:
        ValueError: kernels would not be where they were.
    """
    tensors = tuple({tag: k} for tag, k in given)
    if op in ("unary", "scale"):
        return [numbers["function"].of(given[0])]
    if op == "matmul" and len(given) == 3:
        return [("aten.addmm.default", (tensors[2], *tensors[:2]), {})]
    if op == "conv":
        rank = len(shapes[1]) - 2
        bias = tensors[2] if len(given) == 3 else None
        lists = [_list(numbers[key], rank) for key in ("stride", "padding", "dilation")]
        return [(f"aten.conv{rank}d.default", (*tensors[:2], bias, *lists, numbers["groups"]), {})]
    if op == "concat":
        return [("aten.cat.default", (list(tensors), numbers["dim"]), {})]
    if op == "split":
        return [("aten.split_with_sizes.default", (tensors[0], list(sizes), numbers["dim"]), {})]
    if op == "transpose":
        return [("aten.transpose.int", (tensors[0], numbers["first"], numbers["second"]), {})]
    if op in ("sum", "mean"):
        return [(_PLAIN[op], (tensors[0], [numbers["dim"]]), {})]
    if op == "enlarge":
        margins = [(b - a) // 2 for a, b in zip(shapes[0][2:], shapes[1][2:], strict=True)]
        own, other = (_list(numbers[key], len(margins)) for key in ("padding", "padding_of"))
        if (
            margins != [q - p for p, q in zip(own, other, strict=True)]
            or not max(margins) > 0
            or min(margins) < 0
        ):
            raise ValueError("kernels are enlarged by as much as there is more padding")
        pads = [margin for each in reversed(margins) for margin in (each, each)]
        return [("aten.constant_pad_nd.default", (tensors[0], pads), {})]
    if op == "bag":
        rows, each = shapes[1]
        bounds = {"dtype": {"dtype": "int64"}, "device": {"device": "cpu"}, "pin_memory": False}
        call = (tensors[0], {"made": 0}, {"made": 1}, False, numbers["mean"], False, None, False, None)
        return [
            ("aten.reshape.default", (tensors[1], [-1]), {}),
            ("aten.arange.start_step", (0, rows * each, each), bounds),
            ("aten.embedding_bag.padding_idx", call, {}),
        ]
    return [(_PLAIN[op], tensors, {})]


_PLAIN = {
    "linear": "aten.linear.default", "matmul": "aten.matmul.default", "add": "aten.add.Tensor",
    "mul": "aten.mul.Tensor", "embedding": "aten.embedding.default", "sum": "aten.sum.dim_IntList",
    "mean": "aten.mean.dim",
}  # fmt: skip


def _list(value: Any, rank: int) -> list[int]:
    return list(value) if isinstance(value, tuple) else [value] * rank
