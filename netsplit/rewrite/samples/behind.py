"""Samples that lie behind something else in one dimension, as behind tokens.

x [tokens, samples, width] ──view──► [tokens x samples, width] ──linear──► ──view──► [tokens, samples, ..]
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from netsplit.rewrite.rules.table import ways_of
from netsplit.rewrite.samples.crossing import first_tensor, operator_kinds
from netsplit.rewrite.samples.rows import SampleRows, variable_at
from netsplit.rewrite.ways import SplitCall, Way, Where

__all__ = ["any_place_along", "reshaped"]

_RESHAPED = operator_kinds("view reshape _unsafe_view flatten unflatten ravel")


def reshaped(call: SplitCall, lies: Mapping[str, SampleRows], samples: int) -> SampleRows | None:
    """Where they lie in the output of what keeps all elements in their order; None: it is none such."""
    if call.node.kind not in _RESHAPED or samples < 2:
        return None
    name = first_tensor(call)
    own = lies[name]
    before = prod(call.layouts[name].shape[: own.dim]) * own.blocks
    made: list[SampleRows] = []
    for dim, size in enumerate(call.output):
        blocks, rest = divmod(before, max(prod(call.output[:dim]), 1))
        if blocks and not rest and size and size % (blocks * samples) == 0:
            made.append(SampleRows(dim, size // (blocks * samples), blocks))
    return min(made, key=lambda rows: rows.blocks, default=None)


def any_place_along(call: SplitCall, behind: Mapping[str, SampleRows], dim: int) -> Way | None:
    """A way to cut the operator along this dimension of all that has samples behind something else: as it
    may be cut anywhere, places in it know nothing of one another."""
    for way in ways_of(call).values():
        if not isinstance(way, Way) or way.in_one:
            continue
        wanted = Where(dim, blocks=1, times=1)
        for place in call.tensors:
            where, name = way.cut.get(place), variable_at(call, place)
            if where != wanted if name in behind else where is not None and (not name or where.blocks > 1):
                break
        else:
            return way
    return None
