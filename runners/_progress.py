"""Training progress: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from netsplit.training.epochs import Epoch, Iteration

__all__ = ["ConsoleProgress"]

log = logging.getLogger(__name__)

_LINE_EVERY_S = 5.0


class ConsoleProgress:
    """Shows method, iteration, loss and speed while a comparison runs."""

    def __init__(self, console: Console) -> None:
        self.live = console.is_terminal
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            transient=False,
        )
        self.name = ""
        self.total = 0
        self._task = self._task_none = None
        self._last_line_s = 0.0

    def __enter__(self) -> Self:
        if self.live:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.bar.stop()

    def method(self, name: str, iterations: int) -> None:
        self.name, self.total = name, iterations
        self._last_line_s = time.monotonic()
        if self.live:
            self._task = self.bar.add_task(name, total=iterations, note="")

    def iteration(self, done: Iteration) -> None:
        note = f"loss {done.loss:.4f}, {1e3 * done.seconds:.0f} ms an iteration"
        if self.live and self._task is not None:
            self.bar.update(self._task, completed=done.step + 1, note=note)
        elif time.monotonic() - self._last_line_s > _LINE_EVERY_S:
            self._last_line_s = time.monotonic()
            log.info("%s: iteration %d of %d, %s", self.name, done.step + 1, self.total, note)

    def epoch(self, done: Epoch) -> None:
        log.info(
            "%s: epoch %d, loss %.4f, test accuracy %.1f %%, %.1f s",
            self.name, done.index + 1, done.train_loss, 100 * done.test_accuracy, done.seconds,
        )  # fmt: skip
