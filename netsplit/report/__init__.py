"""Runs of the MLflow database as one self-contained HTML page, and as Markdown.

    report = read_report("sqlite:///outputs/mlflow.db", runs=3, title="Three sweeps")
    write_report(report, "outputs/report.html")    # and outputs/report.md

mlflow.search_runs ──► choose ──► read ──► sections of tables and recorded pictures ──► .html, .md
"""

from __future__ import annotations

from pathlib import Path

from netsplit.errors import ConfigError
from netsplit.files import check_replaceable, write_text
from netsplit.report.page import html_page, markdown_page
from netsplit.report.read import read_report
from netsplit.report.sections import PictureFile, Report, Section

__all__ = [
    "PictureFile", "Report", "Section", "check_output", "html_page", "markdown_page", "read_report",
    "write_report",
]  # fmt: skip


def check_output(output: str | Path) -> tuple[Path, Path]:
    """The page's path and that of the Markdown beside it.

    Raises:
        ConfigError: `output` does not end in .html.
        NetSplitError: a folder or a device is in the place of one of them.
    """
    page = Path(output)
    if page.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(
            f"output is '{output}': give a file that ends in .html; the Markdown goes beside it."
        )
    text = page.with_suffix(".md")
    check_replaceable(page)
    check_replaceable(text)
    return page, text


def write_report(report: Report, output: str | Path) -> tuple[Path, Path]:
    """Write the page and its Markdown, each whole or not at all; links to files are relative to them.

    Returns:
        The paths of the page and of the Markdown.
    """
    page, text = check_output(output)
    write_text(page, html_page(report, page.parent))
    write_text(text, markdown_page(report, text.parent))
    return page, text
