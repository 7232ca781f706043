"""Graphs made of graphs: operators in parts, weights in copies, or read on other devices.

What needs torch is imported when first used.
"""

from typing import TYPE_CHECKING

from netsplit.lazy import lazy_names
from netsplit.rewrite.algebra.rule import Algebra
from netsplit.rewrite.records import CopyWeights, ReadWeights, Rewrite, Split, rewrite_from
from netsplit.rewrite.tasks import OperatorTasks, TaskCut

if TYPE_CHECKING:
    from netsplit.rewrite.algebra.applying import applied_rule, fingerprint
    from netsplit.rewrite.algebra.matching import Match, matches
    from netsplit.rewrite.algebra.rule import rules_builtin
    from netsplit.rewrite.columns_rows import columns_and_rows, splits_of
    from netsplit.rewrite.emitter import require_operators
    from netsplit.rewrite.lowering import lowered
    from netsplit.rewrite.megatron import tensor_parallel_tasks
    from netsplit.rewrite.pcg import ParallelGraph, parallel_operators, task_layouts
    from netsplit.rewrite.rewriting import also, applied, split_axes
    from netsplit.rewrite.samples import along_samples, copies_after, replicate
    from netsplit.rewrite.seconds import rewritten_costs

__all__ = [
    "Algebra",
    "CopyWeights",
    "Match",
    "OperatorTasks",
    "ParallelGraph",
    "ReadWeights",
    "Rewrite",
    "Split",
    "TaskCut",
    "along_samples",
    "also",
    "applied",
    "applied_rule",
    "columns_and_rows",
    "copies_after",
    "fingerprint",
    "lowered",
    "matches",
    "parallel_operators",
    "replicate",
    "require_operators",
    "rewrite_from",
    "rewritten_costs",
    "rules_builtin",
    "split_axes",
    "splits_of",
    "task_layouts",
    "tensor_parallel_tasks",
]

__getattr__, __dir__ = lazy_names(__name__)
