"""What devices hold under one program of a model that they do not hold under another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from netsplit.graph.ir import Initializer
from netsplit.program.instructions import Program

__all__ = ["newly_held_bytes"]

_Box = tuple[tuple[int, int], ...]  # of each dimension of the whole: from, to


def newly_held_bytes(
    before: Program, after: Program, renamed: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Device -> bytes of parameters and buffers that it holds under `after` alone: of parts, of copies and of
    whole ones, each element once. With the optimiser's states these are what a change of plan moves there.

    Args:
        before, after: of the same model on the same devices, rewritten or not.
        renamed: device of `after` -> the one of `before` that it plays, where that has another name.
    """
    was = {name: (renamed or {}).get(name, name) for name in after.devices}
    return {old: _new(_boxes(before, old), _boxes(after, name)) for name, old in was.items()}


def _boxes(program: Program, device: str) -> dict[tuple[str, int], list[_Box]]:
    """Whole initializer and the bytes of its elements -> what of it the device holds."""
    boxes: dict[tuple[str, int], list[_Box]] = {}
    for k in program.held.get(device, ()):
        own = program.graph.initializers[k]
        element = own.nbytes // max(prod(own.shape), 1)
        boxes.setdefault((own.whole.name, element), []).append(_box(own))
    return boxes


def _box(own: Initializer) -> _Box:
    starts = own.region.offsets if own.region is not None else (0,) * len(own.shape)
    return tuple((at, at + size) for at, size in zip(starts, own.shape, strict=True))


def _new(before: dict[tuple[str, int], list[_Box]], after: dict[tuple[str, int], list[_Box]]) -> int:
    return sum(
        element * (_covered([*before.get(key, []), *boxes]) - _covered(before.get(key, [])))
        for key, boxes in after.items()
        for element in key[1:]
    )


def _covered(boxes: Sequence[_Box]) -> int:
    """Elements in any of them: of the grid that their edges make, the cells that one has."""
    if not boxes:
        return 0
    edges = [sorted({edge for box in boxes for edge in box[d]}) for d in range(len(boxes[0]))]
    taken = np.zeros([len(each) - 1 for each in edges], bool)
    for box in boxes:
        taken[tuple(slice(each.index(a), each.index(b)) for (a, b), each in zip(box, edges, strict=True))] = (
            True
        )
    sizes = np.ones((), np.int64)
    for each in edges:
        sizes = np.multiply.outer(sizes, np.diff(each))
    return int((sizes * taken).sum())
