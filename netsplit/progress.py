"""What `parallelize` is doing, and how far it is: on a terminal and in a notebook; nothing elsewhere.

stages.stage("plan by auto", 30, "s")   ends the stage before
stages.note("best so far 3 ms")
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table as RichTable

__all__ = ["Stages", "shown_stages"]

_REFRESH_S = 0.3


@dataclass
class _StageShown:
    name: str
    total: float | None
    unit: str  # "s": progress is elapsed time
    began: float
    ended: float | None = None
    done: float = 0.0
    note: str = ""

    def cells(self) -> tuple[str, str, str, str]:
        """Mark, name, progress, seconds."""
        seconds = (self.ended or time.monotonic()) - self.began
        parts = [self.note] if self.note else []
        if self.total is not None and self.unit != "s":
            parts.insert(0, f"{min(self.done, self.total):,.0f} of {self.total:,.0f} {self.unit}")
        elif self.total is not None and self.ended is None:
            parts.insert(0, f"{min(seconds, self.total):.0f} of at most {self.total:.0f} s")
        return ("✓" if self.ended else "…"), self.name, ", ".join(parts), f"{seconds:.1f} s"


class Stages:
    """Takes down one stage after another; who shows them reads `rows`.

    Args:
        told: called with what takes a while, how many of its parts are done, and of how many.
    """

    def __init__(self, notify: Callable[[str, int, int], object] | None = None) -> None:
        self.stages: list[_StageShown] = []
        self._notify = notify

    def stage(self, name: str, total: float | None = None, unit: str = "") -> None:
        """End the stage before, and begin this one.

        Args:
            total: of what is counted, in `unit`; with "s", the longest that it may take.
        """
        self.end()
        self.stages = [*self.stages, _StageShown(name, total, unit, time.monotonic())]

    def part(self, name: str, done: int, parts: int) -> None:
        """Note a stage's finished parts; it begins at the first note."""
        if not self.stages or self.stages[-1].name != name:
            self.stage(name, parts, "parts")
        self.stages[-1].done, self.stages[-1].total = done, parts
        if self._notify is not None:
            self._notify(name, done, parts)

    def note(self, words: str) -> None:
        """Set the stage's remark."""
        if self.stages:
            self.stages[-1].note = words

    def improved(self, seconds: float, source: str) -> None:
        """Show the best plan's time so far, and its source."""
        self.note(f"best so far {1e3 * seconds:.4g} ms, by {source}")

    def end(self) -> None:
        if self.stages and self.stages[-1].ended is None:
            self.stages[-1].ended = time.monotonic()

    def rows(self) -> list[tuple[str, str, str, str]]:
        return [stage.cells() for stage in self.stages]


@contextmanager
def shown_stages(wanted: bool = True) -> Iterator[Stages]:
    """Stages, shown while the block runs in a notebook or on a terminal at stderr."""
    stages = Stages()
    if not wanted:
        yield stages
    elif (display := _notebook()) is not None:
        with _in_notebook(stages, display):
            yield stages
    elif sys.stderr is not None and sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live

        # Prints appear above it, but output for a pipe stays in the pipe.
        on_screen = sys.stdout is not None and sys.stdout.isatty()
        with Live(
            console=Console(stderr=True),
            get_renderable=lambda: _grid(stages),
            refresh_per_second=1 / _REFRESH_S,
            redirect_stdout=on_screen,
        ):
            yield stages
            stages.end()
    else:
        yield stages


def _grid(stages: Stages) -> RichTable:
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable.grid(padding=(0, 2, 0, 0))
    for row in stages.rows():
        grid.add_row(*(Text(cell) for cell in row))
    return grid


def _notebook() -> Any:
    """IPython's `display`, in a kernel; else None. Imports nothing that is not imported already."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    return display


@contextmanager
def _in_notebook(stages: Stages, display: Any) -> Iterator[None]:
    handle = display(_content(stages), raw=True, display_id=True)
    over = threading.Event()

    def refresh() -> None:
        while not over.wait(_REFRESH_S):
            handle.update(_content(stages), raw=True)

    thread = threading.Thread(target=refresh, daemon=True)
    thread.start()
    try:
        yield
        stages.end()
    finally:
        over.set()
        thread.join()
        handle.update(_content(stages), raw=True)


def _content(stages: Stages) -> dict[str, str]:
    rows = stages.rows()
    cells = ("".join(f'<td style="text-align: left">{escape(cell)}</td>' for cell in row) for row in rows)
    return {
        "text/plain": "\n".join("  ".join(row) for row in rows),
        "text/html": f"<table>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>",
    }
