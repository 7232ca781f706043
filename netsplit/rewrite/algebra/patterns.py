"""Which operators of torch are which of the rules', and the other way round.

    aten.linear.default(x, w, b) ──calls_of──► RuleCall("linear", (x, w, b)) ──written──► aten.linear.default

What draws, writes, hands on its argument, or runs in a mode or a checkpoint of the model's own, is none.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import prod
from typing import Any, TypeAlias

import torch

from netsplit.graph.arguments import Reference, read_by, references, renamed
from netsplit.graph.ir import CALL, Graph, Node, once_of
from netsplit.graph.operators import node_draws, resolve, storage_root, written_storages
from netsplit.rewrite.algebra.rule import Operator
from netsplit.rewrite.emitter import in_no_mode

__all__ = ["Function", "RuleCall", "RuleCalls", "Shape", "Written", "calls_of", "shape_of", "written"]

Shape: TypeAlias = tuple[int, ...]
Written: TypeAlias = tuple[str, tuple[Any, ...], dict[str, Any]]
"""Operator, arguments and named ones."""


@dataclass(frozen=True)
class Function:
    """A function of each element: its operator, with all its arguments but the tensor."""

    key: str
    node: Node = field(compare=False, repr=False)
    given: Reference = field(compare=False, repr=False)

    def of(self, reference: Reference) -> Written:
        own = renamed(self.node, {self.given: reference})
        return self.node.op, own["args"], own["kwargs"]


@dataclass(frozen=True, eq=False)
class RuleCall:
    """A node as an operator of rules; a sum is one either way round.

    `also`: nodes that are there for it alone, and go with it.
    """

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
    """The calls of a graph: `by_op`, `writers` by variable, `readers` by what is read, each once."""

    by_op: Mapping[str, Sequence[RuleCall]]
    writers: Mapping[str, Sequence[RuleCall]]
    readers: Mapping[Reference, Sequence[RuleCall]]


def shape_of(graph: Graph, reference: Reference) -> Shape:
    tag, k = reference
    return graph.variables[k].shape if tag == "var" else graph.initializers[k].shape


@once_of
def calls_of(graph: Graph) -> RuleCalls:
    """All that rules may be about."""
    by_op, writers, readers = (defaultdict[Any, list[RuleCall]](list) for _ in range(3))
    written_roots = {root for node in graph for root in written_storages(graph, node)}
    within = {name for unit in graph.units for name in unit}
    for node in graph if graph.autocast is None else ():
        if node.name in within or node.part is not None or node.blocked or not in_no_mode(node):
            continue
        for call in _calls(graph, node):
            if not _is_plain(graph, call, written_roots):
                continue
            by_op[call.op].append(call)
            for k in call.outputs:
                writers[k].append(call)
            for reference in dict.fromkeys(call.inputs):
                readers[reference].append(call)
    return RuleCalls(by_op, writers, readers)


def _is_plain(graph: Graph, call: RuleCall, written_roots: set[str]) -> bool:
    """Whether its tensors are never written, and those that are computed with are of one dtype."""
    roots = {storage_root(graph, each) for each in (*call.inputs, *(("var", k) for k in call.outputs))}
    computed = call.inputs[:1] if call.op in ("embedding", "bag") else call.inputs
    dtypes = {graph.variables[k].dtype for k in call.outputs}
    dtypes |= {(graph.variables if tag == "var" else graph.initializers)[k].dtype for tag, k in computed}
    return written_roots.isdisjoint(roots) and len(dtypes) == 1 and dtypes.pop().startswith(("float", "bf"))


def _calls(graph: Graph, node: Node) -> Iterator[RuleCall]:
    call = _bag(graph, node) if node.op == _BAG else _tabled(graph, node)
    if call is not None:
        yield call
    if call is not None and call.op in ("add", "mul") and call.inputs[0] != call.inputs[1]:
        yield replace(call, inputs=call.inputs[::-1])
    function = _function(graph, node)
    if function is not None:
        yield RuleCall("unary", node, (function.given,), node.outputs, {"function": function})
        if node.op in ("aten.mul.Tensor", "aten.div.Tensor", "aten.neg.default"):
            yield RuleCall("scale", node, (function.given,), node.outputs, {"function": function})


def _function(graph: Graph, node: Node) -> Function | None:
    """An operator that maps each element, with a result of its own, without chance; None for others."""
    given = read_by(node)
    if node.op.startswith(CALL) or len(given) != 1 or len(node.outputs) != 1:
        return None
    output = graph.variables[node.outputs[0]]
    if output.shape != shape_of(graph, given[0]) or output.alias_of is not None:
        return None
    if torch.Tag.pointwise not in resolve(node.op).tags or node_draws(node):
        return None
    key = json.dumps([node.op, renamed(node, {given[0]: ("var", "")})], default=str)
    return Function(key, node, given[0])


@dataclass(frozen=True)
class _Reading:
    """An operator of torch by its schema: the arguments that are tensors, and the rules' parameters."""

    op: Operator
    tensors: str  # names, with spaces between them
    parameters: Mapping[str, str | int] = field(default_factory=dict)  # -> the argument, or a number
    free: str = ""  # an argument that may be anything; all others have to be as they are by default


_CONV = _Reading(
    "conv", "input weight bias", {key: key for key in ("stride", "padding", "dilation", "groups")}
)
_READINGS: dict[str, _Reading] = {
    "aten.linear.default": _Reading("linear", "input weight bias"),
    "aten.matmul.default": _Reading("matmul", "self other"),
    "aten.mm.default": _Reading("matmul", "self mat2"),
    "aten.addmm.default": _Reading("matmul", "mat1 mat2 self"),
    **{f"aten.conv{n}d.default": _CONV for n in (1, 2, 3)},
    "aten.add.Tensor": _Reading("add", "self other"),
    "aten.mul.Tensor": _Reading("mul", "self other"),
    "aten.cat.default": _Reading("concat", "tensors", {"dim": "dim"}),
    "aten.split_with_sizes.default": _Reading("split", "self", {"dim": "dim"}, "split_sizes"),
    "aten.split.Tensor": _Reading("split", "self", {"dim": "dim"}, "split_size"),
    "aten.chunk.default": _Reading("split", "self", {"dim": "dim"}, "chunks"),
    "aten.transpose.int": _Reading("transpose", "self", {"first": "dim0", "second": "dim1"}),
    "aten.t.default": _Reading("transpose", "self", {"first": 0, "second": 1}),
    "aten.numpy_T.default": _Reading("transpose", "self", {"first": 0, "second": 1}),
    "aten.sum.dim_IntList": _Reading("sum", "self", {"dim": "dim"}),
    "aten.mean.dim": _Reading("mean", "self", {"dim": "dim"}),
    "aten.embedding.default": _Reading("embedding", "weight indices"),
}
"""Where several read as one operator of the rules, the first that takes as many tensors is written."""


@cache
def _schema(op: str) -> tuple[tuple[str, Any, bool], ...]:
    """(name, default, whether it is a list of numbers) of every argument."""
    return tuple((a.name, a.default_value, "List[int]" in str(a.type)) for a in resolve(op)._schema.arguments)


def _tabled(graph: Graph, node: Node) -> RuleCall | None:
    reading = _READINGS.get(node.op)
    if reading is None:
        return None
    defaults = {name: default for name, default, _ in _schema(node.op)}
    given = defaults | dict(zip(defaults, node.args, strict=False)) | dict(node.kwargs)
    names = reading.tensors.split()
    handled = {*names, *reading.parameters.values(), reading.free}
    tensors = [list(references(given[name])) for name in names if given[name] is not None]
    if not all(tensors) or any(given[name] != defaults[name] for name in given.keys() - handled):
        return None
    inputs = tuple(each for own in tensors for each in own)
    shapes = [shape_of(graph, each) for each in inputs]
    if not _fits(graph, reading.op, node, shapes):
        return None
    rank, numbers = len(shapes[0]), dict[str, Any]()
    for key, name in reading.parameters.items():
        number: Any = given[name] if isinstance(name, str) else name
        if isinstance(number, list | tuple):  # one number, where all are the same
            number = number[0] if len({*number}) == 1 else tuple(number)
        if reading.op != "conv" and not isinstance(number, int):
            return None
        numbers[key] = number if reading.op == "conv" else number % rank
    if reading.op == "transpose":
        numbers = dict(zip(numbers, sorted(numbers.values()), strict=True))
    return RuleCall(reading.op, node, inputs, node.outputs, numbers, rank)


def _fits(graph: Graph, op: Operator, node: Node, shapes: Sequence[Shape]) -> bool:
    """Whether its tensors are such as the rules are about: nothing broadcast, no vectors."""
    x, *others = shapes
    match op:
        case "linear":
            return len(x) >= 2 and len(others[0]) == 2
        case "matmul":
            y, *bias = others
            alike = len(y) == 2 or (len(x) == len(y) and x[:-2] == y[:-2])
            return len(x) >= 2 and alike and bias in ([], [y[-1:]])
        case "add" | "mul":
            return others == [x]
        case "conv" | "concat":
            return all(len(each) == len(x) for each in (others[:1] if op == "conv" else others))
        case "split":
            return len(node.outputs) > 1 and all(node.outputs)
        case "transpose":
            return len(x) == 2 or (len(x) > 2 and node.kind == "transpose")
    return op != "embedding" or graph.variables[node.inputs[-1]].dtype == "int64"


_BAG = "aten.embedding_bag.padding_idx"


def _bag(graph: Graph, node: Node) -> RuleCall | None:
    """An embedding bag of bags of one size: it reads a table of indices, made flat for it."""
    table, *rest = read_by(node)
    mode, plain = node.args[4:5], (False, *node.args[4:5], False, None, False, None)
    makers = [graph.variables[k].producer for tag, k in rest if tag == "var"]
    if len(makers) != 2 or None in makers or node.args[3:] != plain or mode not in ((0,), (1,)):
        return None
    reshape, arange = (graph.nodes[str(name)] for name in makers)
    if reshape.op != "aten.reshape.default" or reshape.args[1] not in ([-1], (-1,)):
        return None
    index, shape = read_by(reshape)[0], shape_of(graph, read_by(reshape)[0])
    if len(shape) != 2 or arange.op != "aten.arange.start_step" or arange.args != (0, prod(shape), shape[1]):
        return None
    if any(graph.variables[k].consumers for k in node.outputs[1:] if k):
        return None
    also = tuple(each.name for each in (reshape, arange) if {*graph.successors[each.name]} == {node.name})
    return RuleCall("bag", node, (table, index), node.outputs[:1], {"mean": node.args[4]}, also=also)


def written(
    op: str, given: Sequence[Reference], shapes: Sequence[Shape], numbers: Mapping[str, Any], sizes: Shape
) -> list[Written]:
    """The calls that compute an operator; of several, later ones read ("made", j), what those before make.

    Args:
        given, shapes: what it reads.
        numbers: its parameters, dimensions as torch counts them.
        sizes: of the parts of a split.

    Raises:
        ValueError: kernels would not be where they were.
    """
    if op in ("unary", "scale"):
        return [numbers["function"].of(given[0])]
    tensors = [{tag: k} for tag, k in given]
    if op == "enlarge":
        margins = [(b - a) // 2 for a, b in zip(shapes[0][2:], shapes[1][2:], strict=True)]
        own, other = (_list(numbers[key], len(margins)) for key in ("padding", "padding_of"))
        more = [q - p for p, q in zip(own, other, strict=True)]
        if margins != more or max(margins) <= 0 or min(margins) < 0:
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
            (_BAG, call, {}),
        ]
    kernel = len(shapes[1]) - 2 if op == "conv" else 1
    name, reading = next(
        (name, each)
        for name, each in _READINGS.items()
        if each.op == op and (op != "conv" or f"conv{kernel}d" in name)
        if op == "concat" or len(each.tensors.split()) >= len(given)
    )
    values = {own: numbers[key] for key, own in reading.parameters.items()} | {reading.free: sizes}
    named = [tensors] if op == "concat" else tensors
    values |= dict(zip(reading.tensors.split(), named, strict=False))
    args: list[Any] = []
    for key, default, is_list in _schema(name):
        value = values.pop(key, default)
        args.append(_list(value, kernel) if is_list else value)
        if values.keys() <= {""}:
            break
    return [(name, tuple(args), {})]


def _list(value: Any, rank: int) -> list[int]:
    return list(value) if isinstance(value, tuple) else [value] * rank
