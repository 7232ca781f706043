"""Graphs made of graphs: operators in parts, weights in copies, or read on other devices.

What needs torch is imported when first used.
"""

from typing import TYPE_CHECKING

from netsplit.lazy import lazy_names
from netsplit.rewrite.records import CopyWeights, ReadWeights, Rewrite, Split, rewrite_from

if TYPE_CHECKING:
    from netsplit.rewrite.columns_rows import columns_and_rows, splits_of
    from netsplit.rewrite.copies import copy_weights
    from netsplit.rewrite.draft import require_operators
    from netsplit.rewrite.read import read_weights
    from netsplit.rewrite.replay import also, applied
    from netsplit.rewrite.samples.data_parallel import along_samples, copies_after, replicate
    from netsplit.rewrite.seconds import rewritten_costs
    from netsplit.rewrite.split import split_axes, split_operator

__all__ = [
    "CopyWeights",
    "ReadWeights",
    "Rewrite",
    "Split",
    "along_samples",
    "also",
    "applied",
    "columns_and_rows",
    "copies_after",
    "copy_weights",
    "read_weights",
    "replicate",
    "require_operators",
    "rewrite_from",
    "rewritten_costs",
    "split_axes",
    "split_operator",
    "splits_of",
]

__getattr__, __dir__ = lazy_names(__name__)
