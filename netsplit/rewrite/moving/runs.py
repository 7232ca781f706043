"""What tensors consist of along one dimension: looked at through what puts them together or cuts them.

What was put together of the very pieces that are asked for is not cut again: they are handed on.

    a0 ─┐                 ┌─► b0              a0 ─► b0
        cat ─► k ─► split ┤          becomes
    a1 ─┘                 └─► b1              a1 ─► b1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from netsplit.graph.arguments import Reference
from netsplit.graph.ir import Node
from netsplit.rewrite.decisions import Handed
from netsplit.rewrite.layouts import MemoryLayout
from netsplit.rewrite.moving.moves import CAT, SPLIT, dim_of

__all__ = ["TensorRuns"]

Run = tuple[str, int, int]  # of a tensor along one dimension: variable, start, length


@dataclass(frozen=True, eq=False)
class TensorRuns:
    """Of the tensors of a draft, as it is when it is asked.

    Args:
        maker: variable -> the node that makes it.
        written: roots of the memory that some node writes.
    """

    nodes: Mapping[str, Node]
    maker: Mapping[str, str]
    layouts: Mapping[str, MemoryLayout]
    written: frozenset[str]

    def handed_on(self, reference: Reference, dim: int, sizes: Sequence[int], blocks: int) -> Handed | None:
        """Those that are there; None: the tensor has to be cut."""
        tag, k = reference
        if tag == "init" or self._resolved(k, dim) == [(k, 0, self.layouts[k].shape[dim])]:
            return None
        runs = self._resolved(k, dim)
        block, made = sum(sizes), []
        for i, size in enumerate(sizes):
            start = sum(sizes[:i])
            own = self._runs_of(runs, start, size, block, blocks)
            if any((start, size) != (0, self.layouts[name].shape[dim]) for name, start, size in own):
                return None
            made.append(tuple(name for name, _, _ in own))
        return tuple(made)

    def fit(self, handed: Handed, k: str, dim: int, sizes: Sequence[int], blocks: int) -> bool:
        """Whether these are the pieces, of which some may be empty."""
        lengths = [[(name, 0, self.layouts[name].shape[dim]) for name in names] for names in handed]
        if blocks == 1:
            return [sum(size for _, _, size in own) for own in lengths] == list(sizes)
        runs, block = self._resolved(k, dim), sum(sizes)
        wanted = [self._runs_of(runs, sum(sizes[:i]), size, block, blocks) for i, size in enumerate(sizes)]
        return [[run for run in own if run[2]] for own in lengths] == wanted

    def _runs_of(self, runs: Sequence[Run], start: int, size: int, block: int, blocks: int) -> list[Run]:
        """Of a piece that has so much of each block."""
        own = [run for b in range(blocks) for run in _within(runs, b * block + start, size)]
        return _merged_runs(own)

    def _resolved(self, k: str, dim: int) -> list[Run]:
        """What a variable consists of along a dimension: looks through what puts together or cuts there."""
        whole = self.layouts[k]
        node = self.nodes.get(self.maker.get(k, ""))
        alone = [(k, 0, whole.shape[dim])]
        if node is None or node.no_grad or node.autocast or node.checkpoint or whole.root in self.written:
            return alone
        if node.op == CAT and dim_of(node, len(whole.shape)) == dim:
            parts = [each["var"] for each in node.args[0] if "var" in each]
            plain = len(parts) == len(node.args[0]) and all(self._is_like(p, whole) for p in parts)
            return [run for p in parts for run in self._resolved(p, dim)] if plain else alone
        if node.op == SPLIT and "var" in node.args[0] and dim_of(node, len(whole.shape), 2) == dim:
            source, sizes = node.args[0]["var"], node.args[1]
            i = node.outputs.index(k)
            return _within(self._resolved(source, dim), sum(sizes[:i]), sizes[i])
        return alone

    def _is_like(self, part: str, whole: MemoryLayout) -> bool:
        own = self.layouts[part]
        return (
            own.dtype == whole.dtype and len(own.shape) == len(whole.shape) and own.root not in self.written
        )


def _within(runs: Iterable[Run], start: int, length: int) -> list[Run]:
    """The part of a sequence of runs that begins at `start`."""
    cut, position, end = [], 0, start + length
    for name, begin, size in runs:
        low, high = max(start, position), min(end, position + size)
        if low < high:
            cut.append((name, begin + low - position, high - low))
        position += size
    return cut


def _merged_runs(runs: Iterable[Run]) -> list[Run]:
    merged: list[Run] = []
    for name, start, size in runs:
        if merged and merged[-1][0] == name and sum(merged[-1][1:]) == start:
            merged[-1] = (name, merged[-1][1], merged[-1][2] + size)
        else:
            merged.append((name, start, size))
    return merged
