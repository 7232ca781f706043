"""Questions about models, devices and links that are no comparison of methods: `python -m reproduce`.

A study takes cases by name and returns a `StudyResult`, which `write` and `record` turn into files and an
MLflow run:

    cases ──► memory_needs, edge_bytes, operator_seconds, time_breakdown, ... ──► StudyResult
    StudyResult ──write──► table.md, table.csv, pictures (PNG, SVG) with their data (CSV)
"""

from typing import TYPE_CHECKING

from netsplit.lazy import lazy_names

if TYPE_CHECKING:
    from netsplit.tables import Column
    from reproduce.breakdown import RunCase, time_breakdown
    from reproduce.by_hand import ColumnsAndRows, DataParallel, TablesApart
    from reproduce.cases import ByName, ModelCase
    from reproduce.edges import edge_bytes
    from reproduce.fastt import V100Servers, largest_batches, split_speeds
    from reproduce.links import LinkCase, link_lines
    from reproduce.memory import memory_needs
    from reproduce.operators import OperatorCase, operator_seconds
    from reproduce.pipelines import PipelineCase, pipeline_speeds
    from reproduce.render import markdown, record, write
    from reproduce.resharding import MeshHosts, ReshardCase, layer_bytes, reshard_seconds
    from reproduce.result import Picture, StudyResult
    from reproduce.throughput import throughputs
    from reproduce.unity import parallel_speeds, search_seconds

__all__ = [
    "ByName",
    "Column",
    "ColumnsAndRows",
    "DataParallel",
    "LinkCase",
    "MeshHosts",
    "ModelCase",
    "OperatorCase",
    "Picture",
    "PipelineCase",
    "ReshardCase",
    "RunCase",
    "StudyResult",
    "TablesApart",
    "V100Servers",
    "edge_bytes",
    "largest_batches",
    "layer_bytes",
    "link_lines",
    "markdown",
    "memory_needs",
    "operator_seconds",
    "parallel_speeds",
    "pipeline_speeds",
    "record",
    "reshard_seconds",
    "search_seconds",
    "split_speeds",
    "throughputs",
    "time_breakdown",
    "write",
]

__getattr__, __dir__ = lazy_names(__name__)
