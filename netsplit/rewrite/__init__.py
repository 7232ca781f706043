"""Graphs made of graphs: operators in parts, weights that are read on other devices.

What needs torch is imported when first used.
"""

from typing import TYPE_CHECKING

from netsplit.lazy import imports_of
from netsplit.rewrite.records import ReadWeights, Rewrite, Split, rewrite_from

if TYPE_CHECKING:
    from netsplit.rewrite.data_parallel import along_samples
    from netsplit.rewrite.read import read_weights
    from netsplit.rewrite.replay import also, applied
    from netsplit.rewrite.seconds import rewritten_costs
    from netsplit.rewrite.split import split_axes, split_operator

__all__ = [
    "ReadWeights",
    "Rewrite",
    "Split",
    "along_samples",
    "also",
    "applied",
    "read_weights",
    "rewrite_from",
    "rewritten_costs",
    "split_axes",
    "split_operator",
]

__getattr__ = imports_of(
    __name__,
    {
        "along_samples": "data_parallel",
        "also": "replay",
        "applied": "replay",
        "read_weights": "read",
        "rewritten_costs": "seconds",
        "split_axes": "split",
        "split_operator": "split",
    },
)
