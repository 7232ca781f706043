"""What a report consists of: sections of sentences, tables, pictures and links."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from netsplit.tables import Table

__all__ = ["PictureFile", "Report", "Section"]


@dataclass(frozen=True)
class PictureFile:
    """A PNG as it was recorded."""

    name: str
    content: bytes = field(repr=False)

    @property
    def address(self) -> str:
        """The whole picture as an address."""
        return f"data:image/png;base64,{base64.b64encode(self.content).decode('ascii')}"


@dataclass(frozen=True)
class Section:
    """One comparison, one study, or what jobs of a sweep have in common.

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
    """Sections in the order in which they are shown."""

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
