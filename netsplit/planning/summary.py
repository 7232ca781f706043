"""A decision on one page: a few lines and a table of the devices, as text and as a notebook shows it."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from netsplit.tables import Table

__all__ = ["PlanSummary"]


@dataclass(frozen=True)
class PlanSummary:
    """`str` has it as plain text."""

    lines: tuple[str, ...]
    devices: Table

    def __str__(self) -> str:
        return "\n".join([*self.lines, *self.devices.lines()])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        told = "<br>".join(map(escape, self.lines))
        return f"<p>{told}</p>{self.devices.html()}"
