"""Where a pipeline may be cut: states of the antichain DAG, as downsets of the graph's forward nodes.

Source: PipeDream (Narayanan et al., SOSP 2019) and its released optimiser, `graph.antichain_dag`. A state is
an antichain; what it stands for is the downset D of everything at or before it. From D, a step adds a node
that reads something of D, with all that it needs: these are the released code's "next antichains". So k
precedes j in the antichain DAG exactly if D_k is a proper subset of D_j; a range of states is a difference.

Index letters: `v` forward node (topological order), `b` block (nodes that no cut may part), `j, k` state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from netsplit.partition.common.instance import Floats
from netsplit.partition.objectives import Bools, Layers

__all__ = [
    "States",
    "antichain_states",
    "downset_states",
    "joined_states",
    "prefix_states",
]


@dataclass(frozen=True, eq=False)
class States:
    """Downsets in an order that extends inclusion; the last is everything."""

    layers: Layers
    members: Bools  # [S, n]
    reduction: str  # "none", or how blocks were merged because there were too many states

    def __len__(self) -> int:
        return len(self.members)

    @cached_property
    def before(self) -> Bools:
        """[S, S] whether downset k (row) is a proper subset of downset j (column)."""
        as_float = self.members.astype(np.float32)
        sizes = as_float.sum(axis=1)
        inside = as_float @ as_float.T >= sizes[:, None]
        return np.asarray(inside & (sizes[:, None] < sizes[None, :]))

    @cached_property
    def boundary(self) -> Floats:
        """[S] bytes that cross the cut after each state."""
        return self.layers.boundary_bytes(self.members)

    def total(self, values: Floats) -> Floats:
        """[S] sum over each downset of a value per node."""
        return np.asarray(self.members @ values)


def antichain_states(layers: Layers, limit: int) -> States:
    """The released planner's states; where there are more than `limit`, of a graph with merged blocks.

    Two mergers are tried, as PipeDream's `compress_graph_branches` is run by hand where its optimiser
    does not end: chains inside of parallel branches become one block; then all that lies between two
    nodes that are comparable to every other. The last resort are the prefixes of the topological order.
    """
    count = layers.blocks
    mergers = (("none", None), ("branches", _branch_chains), ("regions", _parallel_regions))
    for reduction, merger in mergers:
        group_of = list(range(count)) if merger is None else merger(layers)
        masks = _walk(layers, group_of, limit, first=_deepest_source(layers))
        if masks is not None:
            return _states_of(layers, masks, reduction)
    return prefix_states(layers, range(count), limit)


def downset_states(layers: Layers, limit: int) -> States | None:
    """Every downset of blocks, the whole space of contiguous stages; None if more than `limit`."""
    masks = _walk(layers, list(range(layers.blocks)), limit, first=None)
    return None if masks is None else _states_of(layers, masks, "none")


def prefix_states(layers: Layers, order: Iterable[int], limit: int) -> States:
    """Prefixes of a topological order of the blocks, thinned evenly to `limit` of them."""
    masks, mask = [], 0
    for b in order:
        mask |= 1 << b
        masks.append(mask)
    step = -(-len(masks) // limit)
    return _states_of(layers, [*masks[step - 1 : -1 : step], masks[-1]], "order")


def joined_states(families: Sequence[States], limit: int) -> States:
    """All states of several families, each once; the later families thinned where there are too many."""
    first, *others = families
    spare = np.unique(np.concatenate([family.members for family in others]), axis=0)
    room = max(limit - len(first), 1)
    members = np.unique(np.concatenate([first.members, spare[:: -(-len(spare) // room)]]), axis=0)
    return States(first.layers, members[np.argsort(members.sum(axis=1), kind="stable")], "orders")


def _states_of(layers: Layers, masks: Iterable[int], reduction: str) -> States:
    """States of sets of blocks, given as bits."""
    ordered = sorted(set(masks), key=lambda mask: (mask.bit_count(), mask))
    width = -(-layers.blocks // 8)
    packed = np.frombuffer(b"".join(m.to_bytes(width, "little") for m in ordered), np.uint8)
    bits = np.unpackbits(packed.reshape(len(ordered), width), axis=1, bitorder="little")
    return States(layers, bits[:, layers.block_of].astype(bool), reduction)


def _walk(layers: Layers, group_of: Sequence[int], limit: int, first: int | None) -> list[int] | None:
    """Sets of blocks reached by adding groups of blocks; None where there are more than `limit`.

    Args:
        group_of: [B] group of each block; groups are joined to acyclic ones here.
        first: the block to begin with, after which only groups that read something are added with all
            they need; None: begin with nothing, and add any group whose feeders are there.
    """
    count = max(group_of, default=-1) + 1
    own, feeders = [0] * count, [0] * count
    for b, g in enumerate(group_of):
        own[g] |= 1 << b
        for a in layers.block_feeders[b]:
            if group_of[a] != g:
                feeders[g] |= 1 << group_of[a]
    closure = [0] * count  # bits of groups
    for g in range(count):
        closure[g] = 1 << g
        for a in _bits(feeders[g]):
            closure[g] |= closure[a]
    fed = [0] * count
    for g in range(count):
        for a in _bits(feeders[g]):
            fed[a] |= 1 << g
    everything = (1 << count) - 1
    start = 0 if first is None else closure[group_of[first]]
    reached, queue = {start}, [(start, _union(fed[a] for a in _bits(start)))]
    while queue:
        done, readers = queue.pop()  # readers of what is done, which may be done themselves
        open_steps = (everything if first is None else readers) & ~done
        for g in _bits(open_steps):
            grown = done | closure[g]
            if grown in reached or (first is None and feeders[g] & ~done):
                continue
            reached.add(grown)
            queue.append((grown, readers | _union(fed[a] for a in _bits(grown & ~done))))
        if len(reached) > limit:
            return None
    reached.discard(0)
    if everything not in reached:  # parts that no path of reads joins to the first
        reached.add(everything)
    return [_union(own[g] for g in _bits(mask)) for mask in reached]


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _union(masks: Iterable[int]) -> int:
    whole = 0
    for mask in masks:
        whole |= mask
    return whole


def _deepest_source(layers: Layers) -> int:
    """The block without feeders that begins the longest path; the first of such."""
    depth = [1] * layers.blocks
    for b in reversed(range(layers.blocks)):
        for a in layers.block_feeders[b]:
            depth[a] = max(depth[a], depth[b] + 1)
    sources = [b for b in range(layers.blocks) if not layers.block_feeders[b]]
    return max(sources, key=lambda b: (depth[b], -b))


def _comparable_to_all(layers: Layers) -> list[bool]:
    """[B] whether each block is before or after every other."""
    before, after = [0] * layers.blocks, [0] * layers.blocks
    for b, own in enumerate(layers.block_feeders):
        for a in own:
            before[b] |= before[a] | 1 << a
    for b in reversed(range(layers.blocks)):
        for a in layers.block_feeders[b]:
            after[a] |= after[b] | 1 << b
    return [(x | y).bit_count() == layers.blocks - 1 for x, y in zip(before, after, strict=True)]


def _branch_chains(layers: Layers) -> list[int]:
    """Group of each block: chains beside which another branch runs, in one; numbers ascend topologically."""
    feeders = layers.block_feeders
    fed = [0] * layers.blocks
    for own in feeders:
        for a in own:
            fed[a] += 1
    spine = _comparable_to_all(layers)
    head = list(range(layers.blocks))
    for b, own in enumerate(feeders):
        if len(own) == 1 and fed[own[0]] == 1 and not spine[b] and not spine[own[0]]:
            head[b] = head[own[0]]
    # A group takes the place of its first block: all that the others read is in the group.
    number = {h: g for g, h in enumerate(sorted(set(head)))}
    return [number[h] for h in head]


def _parallel_regions(layers: Layers) -> list[int]:
    """Group of each block: all blocks between two that are comparable to every other, in one."""
    spine = _comparable_to_all(layers)
    group_of: list[int] = []
    group, in_region = -1, False
    for alone in spine:
        group += alone or not in_region
        in_region = not alone
        group_of.append(group)
    return group_of
