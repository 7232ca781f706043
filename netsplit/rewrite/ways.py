"""How an operator can be cut: along which dimensions, and what that makes of its arguments and outputs.

    axis of the operator ──► Way: where it lies in each argument (cut there; else given whole)
                                  what joins the parts' outputs: cat, or a sum of partial ones

An axis is a dimension of the first output (a number), or, where no output has it, one of an argument, as
"weight.0"; or "groups". A rule answers a `Way` for each axis that can be cut, and for others that people ask
for the reason why not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

from netsplit.errors import RewriteError
from netsplit.graph.arguments import Reference, references
from netsplit.graph.ir import Initializer, Node
from netsplit.graph.operators import resolve
from netsplit.rewrite.layouts import MemoryLayout

__all__ = [
    "Arguments", "Axis", "Cat", "Emit", "OperatorPart", "PartialSum", "Place", "Rule", "SplitCall", "Way",
    "Ways", "Where", "broadcast", "even",
]  # fmt: skip

Axis: TypeAlias = int | str
Place: TypeAlias = str | tuple[str, int]  # an argument by its name in the schema; of a list of tensors, which


@dataclass(frozen=True)
class Where:
    """Where an axis lies in a tensor: its dimension `dim` is [blocks, axis, times], flattened."""

    dim: int
    blocks: int = 1
    times: int = 1


@dataclass(frozen=True)
class Cat:
    """The parts' outputs are put together along an axis."""

    where: Where


@dataclass(frozen=True)
class PartialSum:
    """They are added up; `mean`: each by its part of the axis."""

    mean: bool = False


@dataclass(frozen=True)
class OperatorPart:
    """Where a part begins in each block of the axis, and how long it is, of how much.

    It is one of `count`. `of` is the size for which the way was made, where there are fewer samples than
    then; `output` the shape of what the operator makes now.
    """

    index: int
    start: int
    size: int
    of: int
    blocks: int = 1
    output: tuple[int, ...] = ()
    count: int = 1

    @property
    def whole_size(self) -> int:
        """The size in all blocks together."""
        return self.size * self.blocks

    def sizes(self, made_for: tuple[int, ...], axis: int) -> list[int]:
        """The shape of what the part makes, in parts along that axis; `made_for`: when the way was made."""
        now = self.output or made_for
        return [*now[:axis], made_for[axis] // self.of * self.size, *now[axis + 1 :]]


class Emit(Protocol):
    """Makes a node of an operator with one output, beside the parts; its variable as a template.

    Its name ends with `name`, or with the operator's.
    """

    def __call__(self, op: str, *args: Any, name: str = "") -> dict[str, str]: ...


Arguments: TypeAlias = dict[str, Any]  # templates, by the names of the schema


@dataclass(frozen=True)
class Way:
    """A way to cut an operator along one axis of this size.

    Args:
        cut: arguments that are cut; all others every part is given whole.
        joined: of every output.
        changed: arguments of a part that are no tensors, and depend on it.
        once: arguments that the first part alone is given.
        op: the parts' operator, where the own one is too strict.
        empty: that of an empty part, where the own one cannot be computed of it, or has no gradient.
        in_one: parts are to be runs of their own, not one of each block.
        before: makes other arguments of a part's.
        after: makes another output of a part's, given its arguments.
        last: the operator and its arguments that make the output of the parts' sum, given the arguments of
            the whole.
    """

    size: int
    cut: Mapping[Place, Where]
    joined: tuple[Cat | PartialSum, ...]
    changed: Callable[[OperatorPart], Arguments] = lambda _: {}
    once: frozenset[str] = frozenset()
    op: str = ""
    empty: str = ""
    in_one: bool = False
    before: Callable[[Emit, OperatorPart, Arguments], Arguments] | None = None
    after: Callable[[Emit, OperatorPart, Arguments, dict[str, str]], dict[str, str]] | None = None
    last: Callable[[Emit, Arguments, dict[str, str]], tuple[Any, ...]] | None = None

    def size_in(self, call: SplitCall) -> int | None:
        """The axis's size in a call of other sizes; None where it does not lie alike in all its tensors."""
        there = [(call.shape(place), where) for place, where in self.cut.items()]
        there += [
            (call.layouts[k].shape, how.where)
            for k, how in zip(call.node.outputs, self.joined, strict=True)
            if k and isinstance(how, Cat)
        ]
        sizes = {divmod(shape[where.dim], where.blocks * where.times) for shape, where in there}
        if len(sizes) != 1 or all(where.blocks > 1 for _, where in there):
            return None
        ((size, rest),) = sizes
        return None if rest else size


Ways: TypeAlias = dict[Axis, Way | str]
"""Axis -> how; or why not, in words that follow on "cannot be split along ... :"."""

Rule: TypeAlias = Callable[["SplitCall"], Ways]


@dataclass(frozen=True)
class SplitCall:
    """A node with its arguments by the names of the schema, and the shapes of its tensors."""

    node: Node
    layouts: Mapping[str, MemoryLayout]
    initializers: Mapping[str, Initializer]

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Templates by name; defaults too."""
        schema = resolve(self.node.op)._schema.arguments
        given = {each.name: each.default_value for each in schema}
        given |= dict(zip(given, self.node.args, strict=False))
        return given | self.node.kwargs

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    def number(self, name: str) -> int:
        return int(self.arguments[name])

    def has(self, name: str) -> bool:
        return next(references(self.arguments.get(name)), None) is not None

    def template(self, place: Place) -> Any:
        return self.arguments[place] if isinstance(place, str) else self.arguments[place[0]][place[1]]

    def reference(self, place: Place) -> Reference:
        ((tag, name),) = references(self.template(place))
        return tag, name

    def shape(self, place: Place) -> tuple[int, ...]:
        tag, name = self.reference(place)
        return self.layouts[name].shape if tag == "var" else self.initializers[name].shape

    def rank(self, place: Place) -> int:
        return len(self.shape(place))

    @property
    def tensors(self) -> list[Place]:
        """Where the tensors are among the arguments."""
        places: list[Place] = []
        for name, template in self.arguments.items():
            if isinstance(template, list | tuple):
                places += [(name, i) for i, each in enumerate(template) if next(references(each), None)]
            elif self.has(name):
                places.append(name)
        return places

    @property
    def output(self) -> tuple[int, ...]:
        return self.layouts[self.node.outputs[0]].shape

    @property
    def is_empty(self) -> bool:
        """Whether it is a part of more than there are samples, and has none of them."""
        shapes = [self.shape(place) for place in self.tensors]
        return any(0 in shape for shape in shapes or [self.output])

    def outputs(self) -> list[tuple[int, ...]]:
        return [self.layouts[k].shape for k in self.node.outputs]

    def error(self, axis: Axis | None, reason: str) -> RewriteError:
        along = "" if axis is None else f" along {axis!r}" if isinstance(axis, str) else f" along {axis}"
        return RewriteError(f"'{self.node.name}' ({self.node.kind}) cannot be split{along}: {reason}.")


def broadcast(call: SplitCall, place: Place, axis: int) -> int | None:
    """The dimension of a tensor that a dimension of the output comes from; None: it is the same all along."""
    shape = call.shape(place)
    dim = axis - len(call.output) + len(shape)
    return dim if dim >= 0 and shape[dim] == call.output[axis] > 1 else None


def even(call: SplitCall, axis: int, dims: Mapping[Place, int], **more: Any) -> Way:
    """Along a dimension of the output, each argument cut at a dimension of its own; outputs alike."""
    joined = tuple(Cat(Where(axis)) for _ in call.node.outputs)
    return Way(call.output[axis], {place: Where(d) for place, d in dims.items()}, joined, **more)
