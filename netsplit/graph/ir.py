"""The intermediate representation: operators (nodes) and tensors (variables) of one training step.

A `Graph` is immutable. Nodes are kept in a topological order, which is also the order in which
the captured model executed them. Source: NetSplit thesis, section 4.1.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property, wraps
from math import prod
from typing import Any, Concatenate, ParamSpec, TypeVar

__all__ = [
    "CALL", "COUNTED", "HOOK", "INITIALIZER", "MOVE", "TRANSFER", "Graph", "Initializer", "Node", "NodeCut",
    "NodeRole", "Region", "Variable", "dtype_bytes", "graph_at", "once_of",
]  # fmt: skip

TRANSFER = "netsplit.transfer"
"""Operator of a node that copies a variable to another device (see `program.transfers`)."""

INITIALIZER = "initializer "
"""Precedes an initializer's name where a variable's could stand too: a model may use one name for both."""

COUNTED = "targets that count"
"""Ends the name of a node that counts them for a loss, which a rewrite has taken apart."""

_DTYPE_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "uint16": 2, "uint32": 4, "uint64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1, "complex32": 4, "complex64": 8, "complex128": 16, "qint8": 1, "quint8": 1,
    "qint32": 4,
}  # fmt: skip


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of a dtype given by its torch name, e.g. ``"float32"``."""
    return _DTYPE_BYTES[dtype]


@dataclass(frozen=True)
class Variable:
    """One tensor: produced by one node (or fed as an input), read by any number of nodes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    producer: str | None  # None: an input of the graph
    consumers: tuple[str, ...]  # node names in topological order, each once
    requires_grad: bool = False  # a gradient flows back through it
    alias_of: str | None = None  # the earliest variable, or INITIALIZER + name, whose storage it shares
    order: tuple[int, ...] = ()  # dimensions as they lie in memory, outermost first; (): as they are
    repeated: tuple[int, ...] = ()  # dimensions along which all is the same memory
    spread: bool = False  # not over all of the memory that it spans, or over some twice: a copy is sent

    @cached_property
    def nbytes(self) -> int:
        return prod(self.shape) * dtype_bytes(self.dtype)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Strides of memory that it fills, its dimensions in their order, repeated ones too."""
        strides, step = [0] * len(self.shape), 1
        for d in reversed(self.order or range(len(self.shape))):
            strides[d] = step
            step *= max(self.shape[d], 1)
        return tuple(strides)


@dataclass(frozen=True)
class Region:
    """Where a part of a parameter or buffer lies in the whole, and which of its copies it is."""

    whole: str  # the model's own name
    shape: tuple[int, ...]  # of the whole
    offsets: tuple[int, ...]  # of the part's first element
    copy: int = 0  # of several with the same offsets and sizes, whose gradients are summed

    def named(self, sizes: Sequence[int]) -> str:
        """What a part of these sizes is called: ``weight[:, 4:8]``; its copies end in ``~1``, ``~2``."""
        number = f"~{self.copy}" if self.copy else ""
        if self.copy and tuple(sizes) == self.shape:
            return self.whole + number
        cuts = [
            ":" if size == full else f"{start}:{start + size}"
            for start, size, full in zip(self.offsets, sizes, self.shape, strict=True)
        ]
        return f"{self.whole}[{', '.join(cuts)}]{number}"

    def cut(self, whole: Any, sizes: Sequence[int]) -> Any:
        """A view of what has the whole's shape: the part of these sizes."""
        return whole[tuple(slice(at, at + size) for at, size in zip(self.offsets, sizes, strict=True))]


@dataclass(frozen=True)
class Initializer:
    """A parameter or buffer, under the model's own name (its key in ``state_dict``); or a part or copy."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_parameter: bool
    requires_grad: bool
    aliases: tuple[str, ...] = ()  # further names of the same tensor, or of the whole (tied parameters)
    region: Region | None = None  # of a part or a copy, which is an initializer of its own

    @cached_property
    def nbytes(self) -> int:
        return prod(self.shape) * dtype_bytes(self.dtype)

    @property
    def held_as(self) -> str:
        """The name of the first of its copies, under which every device holds what it has of them."""
        if self.region is None or not self.region.copy:
            return self.name
        if self.shape == self.region.shape:
            return self.region.whole
        return replace(self.region, copy=0).named(self.shape)

    @property
    def whole(self) -> Initializer:
        """That of which it is a part or copy; itself, where it is none."""
        if self.region is None:
            return self
        return replace(self, name=self.region.whole, shape=self.region.shape, region=None)

    def within(self, values: Mapping[str, Any]) -> Any:
        """Its tensor; a view of the whole's, where that alone is among `values`.

        Raises:
            KeyError: neither is.
        """
        if self.name in values or self.region is None:
            return values[self.name]
        return self.cut(values[self.region.whole])

    def cut(self, whole: Any) -> Any:
        """A view of what has the whole's shape: this part of it."""
        return whole if self.region is None else self.region.cut(whole, self.shape)


CALL = "netsplit.call"
"""Begins the operator of a node that is a piece of Python, which is in `Graph.calls` (see `whole.py`)."""
HOOK = f"{CALL}.gradient_hook"
"""Begins the operator of a hook on a tensor's gradient (see `whole.py`)."""

MOVE = f"{CALL}.group_"
"""Begins the operator of a node by which devices that compute together move a tensor (`rewrite.one_rank`)."""


@dataclass(frozen=True)
class NodeCut:
    """One cut of an operator that a part comes of: what the part has of each of the axis's blocks."""

    axis: int | str  # a dimension of the first output; or one of an argument, as "input.1"
    index: int  # of the part, from 0
    count: int  # of parts
    start: int
    size: int
    of: int  # the size of a block
    blocks: int = 1

    @property
    def fraction(self) -> float:
        return self.size / self.of if self.of else 1 / self.count


@dataclass(frozen=True)
class NodeRole:
    """What a node has of a captured operator, or does for its parts."""

    operator: str  # the captured node's name
    cuts: tuple[NodeCut, ...] = ()  # outermost first; none: it is whole
    copy: int = 0  # of several nodes that compute the same
    place: tuple[int, ...] = ()  # on a mesh: nodes of one place are meant for one device
    moves: bool = False  # it computes nothing of the operator: it moves, adds up or counts for its parts


@dataclass(frozen=True)
class Node:
    """One operator call. `args`/`kwargs` are JSON-ready templates (see `graph.arguments`)."""

    name: str
    op: str  # e.g. "aten.conv2d.default"
    inputs: tuple[str, ...]  # variable names, each once
    outputs: tuple[str, ...]  # variable names; an element is "" where the operator returned no tensor
    initializers: tuple[str, ...] = ()
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    module: str = ""  # dotted path of the module that made the call
    source: str = ""  # "file:line" in the model's own code
    saved: tuple[str, ...] = ()  # variables its backward keeps alive
    saved_bytes: int = 0  # bytes of other tensors that its backward keeps alive
    no_grad: bool = False  # made where the model had switched autograd off
    autocast: str | None = None  # dtype of the model's own autocast, or "off"; None: the graph's
    checkpoint: str = ""  # the activation checkpoint of the model's own that it is part of
    blocked: tuple[str, ...] = ()  # inputs that carry gradients, and get none through this node
    part: NodeRole | None = None  # None: it is as it was captured

    @cached_property
    def kind(self) -> str:
        """The operator's short name for people: ``conv2d`` of ``aten.conv2d.default``."""
        parts = self.op.split(".")
        return parts[2 if self.op.startswith(CALL) else 1] if len(parts) > 1 else self.op


@dataclass(frozen=True)
class Graph:
    """Operators and variables of one step ``(inputs, targets) -> loss, metrics`` (or of one inference)."""

    nodes: dict[str, Node]
    variables: dict[str, Variable]
    input_variables: tuple[str, ...]
    output_variables: tuple[str, ...]
    initializers: dict[str, Initializer]
    units: tuple[tuple[str, ...], ...] = ()
    """Sets of nodes that share one tensor which is written in place: run in one piece."""
    colocated: tuple[tuple[str, ...], ...] = ()
    """Sets of nodes that must share a device: units, views of one tensor, users of one initializer.
    Disjoint; only sets of two nodes or more."""
    batch_size: int = 1  # samples in one call (the micro-batch)
    autocast: str | None = None
    """The dtype to which `torch.autocast` takes operators, e.g. "bfloat16"; variables' dtypes are those
    under it, and whoever runs nodes enters it (see `operators.autocast_of`)."""
    constants: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """Tensors that are neither parameter nor buffer (literals, plain attributes), by initializer name.
    Not part of a graph file."""
    calls: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """What the nodes whose operator begins with `CALL` do, by operator. Not part of a graph file."""
    input_dims: tuple[int | None, ...] = field(default=(), compare=False)
    """The dimension of the samples in every input variable; None: it goes whole to every micro-batch.
    Empty: the first dimension of all. Not part of a graph file."""
    output_spec: Any = field(default=None, compare=False, repr=False)
    """How the output variables make up what the model returned, or those after a training step's first, the
    loss, its metrics (a `batches.tree.Tree`); None: as they are."""
    rewrites: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    """What was done to the captured graph to get this one (`netsplit.rewrite.records`). Not part of a graph
    file."""

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes.values())

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def derived(self) -> dict[Hashable, Any]:
        """What `once_of` a graph was derived from it, by the function and its other arguments."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """The state without what was derived, which may be larger than the graph."""
        return {name: value for name, value in self.__dict__.items() if name != "derived"}

    @cached_property
    def wholes(self) -> dict[str, Initializer]:
        """Parameters and buffers by the model's own names, those in parts too."""
        return {init.whole.name: init.whole for init in self.initializers.values()}

    @cached_property
    def regions(self) -> dict[str, Region]:
        """Where the initializers that are parts or copies lie in their wholes."""
        return {k: init.region for k, init in self.initializers.items() if init.region is not None}

    @cached_property
    def entry_nodes(self) -> tuple[str, ...]:
        """Nodes without predecessors."""
        return tuple(n for n in self.nodes if not self.predecessors[n])

    @cached_property
    def exit_nodes(self) -> tuple[str, ...]:
        """Nodes without successors."""
        return tuple(n for n in self.nodes if not self.successors[n])

    @cached_property
    def predecessors(self) -> dict[str, tuple[str, ...]]:
        """Node name to the names of the nodes that feed it, each once."""
        before: dict[str, tuple[str, ...]] = {}
        for node in self:
            producers = (self.variables[k].producer for k in node.inputs)
            before[node.name] = tuple(dict.fromkeys(p for p in producers if p is not None))
        return before

    @cached_property
    def successors(self) -> dict[str, tuple[str, ...]]:
        """Node name to the names of the nodes it feeds, each once."""
        users_of: dict[str, list[str]] = {name: [] for name in self.nodes}
        for name, feeders in self.predecessors.items():
            for u in feeders:
                users_of[u].append(name)
        return {name: tuple(users) for name, users in users_of.items()}

    @cached_property
    def edges(self) -> tuple[tuple[str, str, str], ...]:
        """(u, v, variable) for every variable that u produces and v reads."""
        return tuple(
            (variable.producer, v, variable.name)
            for variable in self.variables.values()
            if variable.producer is not None
            for v in variable.consumers
        )

    @cached_property
    def position(self) -> dict[str, int]:
        """Node name to its place in the topological order."""
        return {name: i for i, name in enumerate(self.nodes)}

    @cached_property
    def requires_backward(self) -> frozenset[str]:
        """Variables through which a gradient comes back from an output of the graph; others get none.

        A write through a view is seen by the readers of the tensor viewed, and the view itself may have
        none: the nodes of a unit therefore carry a gradient together.
        """
        unit_of = {name: unit for unit in self.units for name in unit}
        requiring = {k for k in self.output_variables if self.variables[k].requires_grad}
        before = -1
        while len(requiring) > before:
            before = len(requiring) if self.units else len(self.variables)  # without any, once is enough
            for node in reversed(list(self)):
                unit = unit_of.get(node.name, (node.name,))
                if any(k in requiring for name in unit for k in self.nodes[name].outputs):
                    own = (k for k in (*node.inputs, *node.outputs) if k and k not in node.blocked)
                    requiring.update(k for k in own if self.variables[k].requires_grad)
        return frozenset(requiring)


_Result = TypeVar("_Result")
_Others = ParamSpec("_Others")


def once_of(
    function: Callable[Concatenate[Graph, _Others], _Result],
) -> Callable[Concatenate[Graph, _Others], _Result]:
    """Decorates a function of a graph and hashable arguments: computed once, and kept by the graph."""

    @wraps(function)
    def kept(graph: Graph, *args: _Others.args, **kwargs: _Others.kwargs) -> _Result:
        key = (function, args, tuple(sorted(kwargs.items())))
        if key not in graph.derived:
            graph.derived[key] = function(graph, *args, **kwargs)
        answer: _Result = graph.derived[key]
        return answer

    return kept


NO_NUMBERS = ("constants", "calls", "output_spec", "input_dims", "rewrites")
"""Fields of a graph that do not depend on the batch size."""
_LYING = ("order", "repeated")
"""Fields of a variable that say how it lies in memory: with a single sample that may differ."""


class _NotAffineError(Exception):
    pass


def graph_at(few: Graph, many: Graph, samples: int) -> Graph | None:
    """The step's graph with that many samples, to plan with and not to run; None: it is not affine in them.

    Args:
        few, many: captures of one step, of different numbers of samples.
    """
    if few.calls or many.calls or few.batch_size == many.batch_size:
        return None
    part = (samples - few.batch_size, many.batch_size - few.batch_size)
    try:
        changed = {
            each.name: _at(getattr(few, each.name), getattr(many, each.name), part)
            for each in fields(Graph)
            if each.name not in NO_NUMBERS
        }
    except _NotAffineError:
        return None
    return replace(many, **changed)


def _at(low: Any, high: Any, part: tuple[int, int]) -> Any:
    """The value on the line through two, for numbers in whatever they are in.

    Raises:
        _NotAffineError: they differ in more than whole numbers, or what comes of it is none.
    """
    if type(low) is not type(high):
        raise _NotAffineError
    if type(low) is int and low != high:
        rise, rest = divmod((high - low) * part[0], part[1])
        if rest or low + rise < min(low, high, 0):
            raise _NotAffineError
        return low + rise
    if is_dataclass(low) and not isinstance(low, type):
        names = [each.name for each in fields(low) if each.name not in _LYING]
        return replace(low, **{name: _at(getattr(low, name), getattr(high, name), part) for name in names})
    if isinstance(low, Mapping):
        if list(low) != list(high):
            raise _NotAffineError
        return {key: _at(value, high[key], part) for key, value in low.items()}
    if isinstance(low, tuple | list):
        if len(low) != len(high):
            raise _NotAffineError
        return type(low)(_at(one, other, part) for one, other in zip(low, high, strict=True))
    if low != high:
        raise _NotAffineError
    return low
