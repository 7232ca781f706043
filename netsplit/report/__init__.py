"""Runs of the MLflow database as one self-contained HTML page.

    report = read_report("sqlite:///outputs/mlflow.db", runs=3, title="Three sweeps")
    write_report(report, "outputs/report.html")

mlflow.search_runs ──► choose ──► read ──► sections of tables and recorded pictures ──► .html
"""

from __future__ import annotations

from pathlib import Path

from netsplit.errors import ConfigError
from netsplit.files import check_replaceable, write_text
from netsplit.report.page import html_page
from netsplit.report.read import read_report
from netsplit.report.sections import PictureFile, Report, Section

__all__ = [
    "PictureFile", "Report", "Section", "check_output", "html_page", "read_report", "write_report",
]  # fmt: skip


def check_output(output: str | Path) -> Path:
    """The page's path.

    Raises:
        ConfigError: `output` does not end in .html.
        NetSplitError: a folder or a device is in its place.
    """
    page = Path(output)
    if page.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"output is '{output}': give a file that ends in .html.")
    check_replaceable(page)
    return page


def write_report(report: Report, output: str | Path) -> Path:
    """Write the page, whole or not at all; links to files are relative to it. Answers its path."""
    page = check_output(output)
    write_text(page, html_page(report, page.parent))
    return page
