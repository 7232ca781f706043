"""What is done to a graph, in a few names and numbers: ready for JSON, to be done again. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from operator import index
from typing import Any, TypeAlias

from netsplit.errors import RewriteError, brief
from netsplit.rewrite.algebra.rule import Algebra
from netsplit.rewrite.tasks import OperatorTasks, TaskCut

__all__ = [
    "CopyWeights", "ReadWeights", "Rewrite", "Split", "algebra_of", "folded", "proportioned",
    "proportions_of", "reads_copies", "rewrite_from",
]  # fmt: skip

_LARGE = 1e300  # times a number of samples, added up, is still a number


@dataclass(frozen=True)
class Split:
    """A node in parts: each block of an axis of these sizes. Dimensions are numbered from 0."""

    node: str
    axis: int | str
    sizes: tuple[int, ...]
    blocks: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(map(index, self.sizes)))

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "split", **asdict(self)}


@dataclass(frozen=True)
class ReadWeights:
    """A node that reads all of its parameters and buffers as variables, sent from their home device."""

    node: str

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "read", **asdict(self)}


@dataclass(frozen=True)
class CopyWeights:
    """A node that reads the copies of this number of its parameters; 0: the first ones.

    Operators with the same number read the same copies, of which a device holds one at most. Gradients of all
    copies are summed before each is stepped on; names, checkpoints and optimisers know of one.
    """

    node: str
    copy: int

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "copy", **asdict(self)}


Rewrite: TypeAlias = Algebra | Split | ReadWeights | CopyWeights | OperatorTasks

_KINDS: dict[str, type[Split | ReadWeights | CopyWeights]] = {
    "split": Split, "read": ReadWeights, "copy": CopyWeights,
}  # fmt: skip


def algebra_of(rewrites: Sequence[Rewrite]) -> tuple[Algebra, ...]:
    """The rules that come first."""
    return tuple(takewhile(lambda each: isinstance(each, Algebra), rewrites))  # type: ignore[arg-type]


def folded(
    rewrites: Sequence[Rewrite], tasks: Mapping[str, OperatorTasks] | None = None
) -> dict[str, OperatorTasks]:
    """The tasks of each operator after these rewrites, in whatever order they were decided.

    Raises:
        RewriteError: the operator has other tasks already (or had: `tasks`), or is in parts.
    """
    tasks_of = dict(tasks or {})
    named = {own.named(path): (name, path) for name, own in tasks_of.items() for path in own.paths}
    for each in rewrites[len(algebra_of(rewrites)) :]:
        if isinstance(each, Algebra):
            raise RewriteError(
                f"'{each.rule.name}' comes after rewrites that cut operators: give algebra first."
            )
        if isinstance(each, OperatorTasks):
            if each.node in tasks_of:
                raise RewriteError(f"'{each.node}' already has tasks: give them once.")
            tasks_of[each.node] = each
            named |= {each.named(path): (each.node, path) for path in each.paths}
            continue
        name, path = named.get(each.node, (each.node, ()))
        own = tasks_of.get(name) or OperatorTasks(name)
        if path not in own.paths:
            raise RewriteError(
                f"'{each.node}' is already split: name one of its parts, such as '{each.node}:0'."
            )
        if isinstance(each, Split):
            own = own.with_cut(TaskCut(each.axis, each.sizes, each.blocks, path or None))
            named |= {own.named((*path, i)): (name, (*path, i)) for i in range(len(each.sizes))}
        else:
            own = own.with_weights(path, each.copy if isinstance(each, CopyWeights) else "home")
        tasks_of[name] = own
    return tasks_of


def reads_copies(rewrites: Sequence[Rewrite]) -> bool:
    """Whether some tasks read copies of weights."""
    tasks = (task for each in folded(rewrites).values() for task in each.tasks())
    return any(weights not in (0, "home") for _, _, _, weights in tasks)


def proportions_of(parts: int | Sequence[float], samples: int | None = None) -> tuple[float, ...]:
    """The proportions of parts that a user gave; with `samples`, `parts` may be their number.

    Raises:
        RewriteError: they are none, or more than samples.
    """
    count = len(parts) if isinstance(parts, Sequence) else index(parts)
    if count < 2 or (isinstance(parts, Sequence) and not all(0 < each < _LARGE for each in parts)):
        number = "" if samples is None else ", or the number of parts, 2 or more"
        raise RewriteError(
            f"parts is {brief(parts)}: give two or more proportions above 0, one for each part, such as "
            f"(1.0, 1.0){number}."
        )
    if samples is not None and count > samples:
        raise RewriteError(
            f"parts is {brief(parts)}, but a batch of the graph has {samples} samples: give no more parts "
            "than that."
        )
    return tuple(parts) if isinstance(parts, Sequence) else (1.0,) * count


def proportioned(count: int, parts: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers of about these proportions that add up to `count`, none of them 0; () where there are
    fewer than parts. What rounding down leaves goes where most was lost."""
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
    """Reads what `to_dict` gave, after JSON. Raises `RewriteError`: it is no rewrite."""
    if not isinstance(values, Mapping):
        raise RewriteError(f"a rewrite is {brief(values)}: give what its to_dict() returns.")
    own = dict(values)
    kind = own.pop("kind", None)
    if kind == "tasks":
        return OperatorTasks.from_dict(own)
    if kind == "algebra":
        return Algebra.from_dict(values)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise RewriteError(
            f"{brief(kind)} is not a kind of rewrite: give algebra, split, read, copy or tasks."
        )
    try:
        return _KINDS[kind](**own)
    except TypeError as error:
        raise RewriteError(f"a rewrite is {brief(values)}: give what its to_dict() returns.") from error
