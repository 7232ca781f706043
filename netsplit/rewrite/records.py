"""What is done to a graph, in a few names and numbers: ready for JSON, to be done again. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import takewhile
from numbers import Integral
from operator import index
from typing import Any, TypeAlias, TypeGuard

from netsplit.errors import RewriteError, brief
from netsplit.rewrite.algebra.record import Algebra
from netsplit.rewrite.tasks import OperatorTasks, TaskCut, sizes_in_proportion

__all__ = [
    "CopyWeights",
    "ReadWeights",
    "Rewrite",
    "Split",
    "algebra_of",
    "all_are",
    "checked_field",
    "folded",
    "proportioned",
    "proportions_of",
    "reads_copies",
    "rewrite_from",
]

_LARGE = 1e300  # times a number of samples, added up, is still a number


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def all_are(values: object, accepts: Callable[[Any], bool]) -> TypeGuard[Sequence[Any]]:
    """Whether it is a sequence of such alone; texts and bytes are none, whatever is in them."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | bytearray | memoryview):
        return False
    return all(map(accepts, values))


def _are_whole(values: object) -> bool:
    return all_are(values, _is_whole)


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "node": (lambda node: isinstance(node, str), "the name of an operator of the graph"),
    "axis": (
        lambda axis: isinstance(axis, str) or _is_whole(axis),
        "a dimension's number, or a name that split_axes answers, as 'input.1'",
    ),
    "sizes": (_are_whole, "whole numbers, one for each part, as (4, 4)"),
    "parts": (
        lambda parts: _is_whole(parts) or _are_whole(parts),
        "how many, as 2, or the size of each, as (4, 4)",
    ),
    "blocks": (lambda blocks: _is_whole(blocks) and blocks > 0, "a whole number of at least 1"),
    "copy": (lambda copy: _is_whole(copy) and copy >= 0, "a whole number, and number copies from 0"),
    "rewrites": (
        lambda rewrites: all_are(rewrites, lambda each: isinstance(each, Rewrite)),
        "Algebra, Split, ReadWeights, CopyWeights and OperatorTasks, in a tuple",
    ),
    "splits": (
        lambda splits: all_are(splits, lambda each: isinstance(each, Split)),
        "what along_samples answers, or Split, in a tuple",
    ),
    "scaled": (
        lambda scaled: isinstance(scaled, bool) or (isinstance(scaled, str) and scaled == "samples"),
        "True, False or 'samples'",
    ),
}


def checked_field(key: str, value: Any) -> Any:
    """What was given as this field of a rewrite, or argument: whole numbers as `int`, which JSON has.

    Raises:
        RewriteError: it is of another kind.
    """
    accepts, words = _FIELDS[key]
    if not accepts(value):
        raise RewriteError(f"{key} is {brief(value)}: give {words}.")
    if _is_whole(value):
        return index(value)
    return tuple(map(index, value)) if _are_whole(value) else value


class _Fields:
    """A record whose fields are checked."""

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            object.__setattr__(self, key, checked_field(key, value))


@dataclass(frozen=True)
class Split(_Fields):
    """`split_operator`: of a node, along an axis, each of its blocks into parts of these sizes.

    A dimension is numbered from 0: one of a negative number is refused where it is done.
    """

    node: str
    axis: int | str
    sizes: tuple[int, ...]
    blocks: int = 1

    def sizes_of(self, block: int, samples: int) -> tuple[int, ...]:
        """As `sizes_in_proportion`."""
        return sizes_in_proportion(self.sizes, block, samples)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "split", **asdict(self)}


@dataclass(frozen=True)
class ReadWeights(_Fields):
    """`read_weights`: of a node."""

    node: str

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "read", **asdict(self)}


@dataclass(frozen=True)
class CopyWeights(_Fields):
    """`copy_weights`: of a node, which then reads the copies of this number."""

    node: str
    copy: int

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "copy", **asdict(self)}


Rewrite: TypeAlias = Algebra | Split | ReadWeights | CopyWeights | OperatorTasks

_KINDS: dict[str, type[Split | ReadWeights | CopyWeights]] = {
    "split": Split,
    "read": ReadWeights,
    "copy": CopyWeights,
}


def algebra_of(rewrites: Sequence[Rewrite]) -> tuple[Algebra, ...]:
    """Those that come first."""
    return tuple(takewhile(lambda each: isinstance(each, Algebra), rewrites))  # type: ignore[arg-type]


def folded(
    rewrites: Sequence[Rewrite], tasks: Mapping[str, OperatorTasks] | None = None
) -> dict[str, OperatorTasks]:
    """What rewrites of a graph after its algebra come to, in whatever order they were decided: by operator.

    Args:
        tasks: that there were before.

    Raises:
        RewriteError: one is of an operator that has other tasks, or is in parts, already.
    """
    made = dict(tasks or {})
    named = {own.named(path): (name, path) for name, own in made.items() for path in own.paths}
    for each in rewrites[len(algebra_of(rewrites)) :]:
        if isinstance(each, Algebra):
            raise RewriteError(f"'{each.rule.name}' comes after what cuts operators: give algebra first.")
        if isinstance(each, OperatorTasks):
            if each.node in made:
                raise RewriteError(f"'{each.node}' has tasks already: give an operator its tasks once.")
            made[each.node] = each
            named |= {each.named(path): (each.node, path) for path in each.paths}
            continue
        name, path = named.get(each.node, (each.node, ()))
        own = made.get(name) or OperatorTasks(name)
        if path not in own.paths:
            raise RewriteError(f"'{each.node}' is in parts already: give one of them, as '{each.node}:0'.")
        if isinstance(each, Split):
            own = own.with_cut(TaskCut(each.axis, each.sizes, each.blocks, path or None))
            named |= {own.named((*path, i)): (name, (*path, i)) for i in range(len(each.sizes))}
        else:
            own = own.with_weights(path, each.copy if isinstance(each, CopyWeights) else "home")
        made[name] = own
    return made


def reads_copies(rewrites: Sequence[Rewrite]) -> bool:
    """Whether some tasks that they come to read copies of weights."""
    tasks = (task for each in folded(rewrites).values() for task in each.tasks())
    return any(weights not in (0, "home") for _, _, _, weights in tasks)


def proportions_of(parts: object, samples: int | None = None) -> tuple[float, ...]:
    """What a user gave as proportions of parts.

    Args:
        samples: that are cut, of which no part may have none; `parts` may then be their number, too.

    Raises:
        RewriteError: they are none, or more than samples.
    """
    count, numbers = 0, tuple[float, ...]()
    if samples is not None and isinstance(parts, Integral) and not isinstance(parts, bool):
        count = int(parts)
    elif all_are(parts, _is_proportion):
        count, numbers = len(parts), tuple(parts)
    if count < 2:
        number = "" if samples is None else ", or the number of parts, 2 or more"
        raise RewriteError(
            f"parts is {brief(parts)}: give two or more proportions above 0, one for each part, as "
            f"(1.0, 1.0){number}."
        )
    if samples is not None and count > samples:
        raise RewriteError(
            f"parts is {brief(parts)}, but a batch of the graph has {samples} samples: give no more parts "
            "than that."
        )
    return numbers or (1.0,) * count


def _is_proportion(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LARGE


def proportioned(count: int, parts: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers of about these proportions that add up to `count`, none of them 0; () where it is less
    than the parts. What is left over by rounding down goes where most was lost."""
    if count < len(parts):
        return ()
    exact = [count * part / sum(parts) for part in parts]
    sizes = [max(1, int(each)) for each in exact]

    def lacks(i: int) -> float:
        return exact[i] - sizes[i]

    while sum(sizes) < count:
        sizes[max(range(len(sizes)), key=lacks)] += 1
    while sum(sizes) > count:
        sizes[min((i for i, size in enumerate(sizes) if size > 1), key=lacks)] -= 1
    return tuple(sizes)


def rewrite_from(values: Mapping[str, Any]) -> Rewrite:
    """Of what `to_dict` gave, after JSON.

    Raises:
        RewriteError: it is no rewrite.
    """
    if not isinstance(values, Mapping):
        raise RewriteError(f"a rewrite is {brief(values)}: give what its to_dict answers.")
    kind = values.get("kind")
    if kind == "tasks":
        return OperatorTasks.from_dict(values)
    if kind == "algebra":
        return Algebra.from_dict(values)
    made = _KINDS.get(kind) if isinstance(kind, str) else None
    if made is None:
        raise RewriteError(
            f"{brief(kind)} is no kind of rewrite: there are algebra, split, read, copy and tasks."
        )
    names = [each.name for each in fields(made)]
    if values.keys() != {"kind", *names}:
        raise RewriteError(
            f"a rewrite lacks a field, or has one too many: it has {brief([*values])}, and a {kind} has "
            f"kind, {', '.join(names)}."
        )
    return made(**{name: values[name] for name in names})
