"""Records: MLflow runs, tables, pictures. Heavy imports (mlflow, matplotlib) happen on first use."""

from netsplit.tracking.host import host_tags
from netsplit.tracking.table import ComparisonRow, comparison_markdown, comparison_table, outline
from netsplit.tracking.tracker import ComparisonRun, MethodRun, Tracker

__all__ = [
    "ComparisonRow",
    "ComparisonRun",
    "MethodRun",
    "Tracker",
    "comparison_markdown",
    "comparison_table",
    "host_tags",
    "outline",
]
