"""Records: MLflow runs, tables, pictures. Heavy imports (mlflow, matplotlib) happen on first use."""

from typing import TYPE_CHECKING

from netsplit.lazy import lazy_names

if TYPE_CHECKING:
    from netsplit.tracking.host import host_tags
    from netsplit.tracking.runs import ComparisonRun, MethodRun, Tracker
    from netsplit.tracking.table import ComparisonRow, comparison_table, verdict_of, winner_of

__all__ = [
    "ComparisonRow", "ComparisonRun", "MethodRun", "Tracker", "comparison_table", "host_tags", "verdict_of",
    "winner_of",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
