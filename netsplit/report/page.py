"""A report: sections of sentences, tables, pictures and links, and the page of HTML that shows them."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from netsplit.errors import ConfigError
from netsplit.files import check_replaceable, write_text
from netsplit.tables import Table

__all__ = ["PAGE", "PictureFile", "Report", "Section", "check_output", "html_page", "write_report"]

_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)
PAGE = Environment(
    loader=PackageLoader("netsplit.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)


@dataclass(frozen=True)
class PictureFile:
    """A recorded PNG."""

    name: str
    content: bytes = field(repr=False)

    @property
    def address(self) -> str:
        """The picture as a data URL."""
        return f"data:image/png;base64,{base64.b64encode(self.content).decode('ascii')}"


@dataclass(frozen=True)
class Section:
    """One comparison, one study, or what the jobs of a sweep have in common.

    Args:
        inner: it is one of the jobs of the section before.
        folded: tables that open on a click.
        links: text -> a file of this machine, or an address.
    """

    title: str
    said: Sequence[str] = ()
    failed: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[PictureFile] = ()
    folded: Sequence[Table] = ()
    links: Sequence[tuple[str, Path | str]] = ()
    inner: bool = False


@dataclass(frozen=True)
class Report:
    """Sections in order."""

    title: str
    sections: Sequence[Section]
    source: str  # the database, without a password
    written: datetime
    comparisons: int = 0
    studies: int = 0

    def counted(self) -> str:
        """``4 comparisons, 2 studies``."""
        parts = [f"{self.comparisons} comparison{'s' * (self.comparisons != 1)}"] * bool(self.comparisons)
        parts += [f"{self.studies} {'study' if self.studies == 1 else 'studies'}"] * bool(self.studies)
        return ", ".join(parts)


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
    """Write the page, whole or not at all; links to files are relative to it. Returns its path."""
    page = check_output(output)
    write_text(page, html_page(report, page.parent))
    return page


def html_page(report: Report, folder: Path) -> str:
    """The page as text, which loads nothing; links to files are relative to `folder`.

    Names are escaped, control characters replaced.
    """
    page = PAGE.get_template("page.html.j2").render(report=report, folder=folder, address=_address)
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", page)


def _address(target: Path | str, folder: Path) -> str:
    """A relative path from `folder` to a file, or the URL."""
    return target if isinstance(target, str) else quote(Path(os.path.relpath(target, folder)).as_posix())
