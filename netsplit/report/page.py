"""A report as a page of HTML. Names are escaped, control characters replaced."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from netsplit.report.sections import Report

__all__ = ["PAGE", "html_page"]

_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)
PAGE = Environment(
    loader=PackageLoader("netsplit.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)


def html_page(report: Report, folder: Path) -> str:
    """The page as text; links to files are relative to `folder`, where it will be. It loads nothing."""
    page = PAGE.get_template("page.html.j2").render(report=report, folder=folder, address=_address)
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", page)


def _address(target: Path | str, folder: Path) -> str:
    """What a page in `folder` calls `target`: a relative path, or the address as it is."""
    if isinstance(target, str):
        return target
    try:
        return quote(Path(os.path.relpath(target, folder)).as_posix())
    except ValueError:  # another drive
        return target.as_uri()
