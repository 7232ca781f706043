"""Questions about models, devices and links that are no comparison of methods: `python -m runners.study`.

A study takes cases by name and returns a `StudyResult`, which `write` and `record` turn into files and an
MLflow run:

    cases ──► memory_needs, edge_bytes, operator_seconds, time_breakdown, ... ──► StudyResult
    StudyResult ──write──► table.md, table.csv, pictures (PNG, SVG) with their data (CSV)
"""

from netsplit.studies.breakdown import RunCase, time_breakdown
from netsplit.studies.cases import ByName, ModelCase
from netsplit.studies.edges import edge_bytes
from netsplit.studies.fastt import V100Servers, largest_batches, split_speeds
from netsplit.studies.links import LinkCase, link_lines
from netsplit.studies.memory import memory_needs
from netsplit.studies.operators import OperatorCase, operator_seconds
from netsplit.studies.pipelines import PipelineCase, pipeline_speeds
from netsplit.studies.question import question
from netsplit.studies.render import markdown, record, write
from netsplit.studies.resharding import MeshHosts, ReshardCase, layer_bytes, reshard_seconds
from netsplit.studies.result import Picture, StudyResult
from netsplit.tables import Column

__all__ = [
    "ByName",
    "Column",
    "LinkCase",
    "MeshHosts",
    "ModelCase",
    "OperatorCase",
    "Picture",
    "PipelineCase",
    "ReshardCase",
    "RunCase",
    "StudyResult",
    "V100Servers",
    "edge_bytes",
    "largest_batches",
    "layer_bytes",
    "link_lines",
    "markdown",
    "memory_needs",
    "operator_seconds",
    "pipeline_speeds",
    "question",
    "record",
    "reshard_seconds",
    "split_speeds",
    "time_breakdown",
    "write",
]
