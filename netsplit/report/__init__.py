"""Runs of the MLflow database as one self-contained HTML page.

    report = read_report("sqlite:///outputs/mlflow.db", runs=3, title="Three sweeps")
    write_report(report, "outputs/report.html")

mlflow.search_runs ──► choose ──► read ──► sections of tables and recorded pictures ──► .html
"""

from netsplit.report.page import (
    PictureFile,
    Report,
    Section,
    check_output,
    html_page,
    write_report,
)
from netsplit.report.read import read_report

__all__ = [
    "PictureFile", "Report", "Section", "check_output", "html_page", "read_report", "write_report",
]  # fmt: skip
