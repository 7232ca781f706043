"""What is shown while work goes on: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
import sys
import threading
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from netsplit.training.epochs import Epoch, Iteration
from netsplit.training.metrics import words_of_metric

__all__ = ["ConsoleProgress", "Waiting"]

log = logging.getLogger(__name__)

_LINE_EVERY_S = 10.0
_ITERATION_EVERY_S = 15.0  # since the last line of an epoch or an iteration
_DECIDING_FIRST_S = 10.0  # then after twice as long as before


class _Bar(Progress):
    """A bar below the log's lines, which rich shows only if they are printed."""

    def start(self) -> None:
        before = (sys.stdout, sys.stderr)
        super().start()
        self._moved = [
            (handler, handler.stream)
            for handler in logging.getLogger().handlers
            if isinstance(handler, logging.StreamHandler) and handler.stream in before
        ]
        for handler, stream in self._moved:
            handler.setStream(sys.stdout if stream is before[0] else sys.stderr)

    def stop(self) -> None:
        for handler, stream in self._moved:
            handler.setStream(stream)
        super().stop()


class ConsoleProgress:
    """Shows method, iteration, loss and speed while a comparison runs."""

    def __init__(self, console: Console) -> None:
        self.live = console.is_terminal
        self.bar = _Bar(
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
        self._task: TaskID | None = None
        self._wait: TaskID | None = None
        self._began_s = self._last_line_s = 0.0

    def __enter__(self) -> Self:
        if self.live:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.bar.stop()

    def waiting(self, what: str, done: int, parts: int) -> None:
        """A bar until all parts are done, or a line now and then; both estimate the time left."""
        now = time.monotonic()
        if done == 0:
            self._began_s = self._last_line_s = now
        if self.live:
            if self._wait is None:
                self._wait = self.bar.add_task(what, total=parts, note="")
            self.bar.update(self._wait, completed=done, total=parts)
            if done >= parts:
                self.bar.remove_task(self._wait)
                self._wait = None
        elif done and done < parts and now - self._last_line_s > _LINE_EVERY_S:
            self._last_line_s = now
            left_s = (now - self._began_s) * (parts - done) / done
            log.info("%s: %d of %d parts done, about %.0f s left", what, done, parts, left_s)

    def method(self, name: str, iterations: int) -> None:
        self.name, self.total = name, iterations
        self._last_line_s = time.monotonic()
        if self.live:
            self._task = self.bar.add_task(name, total=iterations, note="")

    def iteration(self, done: Iteration) -> None:
        note = f"loss {done.loss:.4f}, {1e3 * done.seconds:,.0f} ms per iteration"
        if self.live and self._task is not None:
            self.bar.update(self._task, completed=done.step + 1, note=note)
        elif time.monotonic() - self._last_line_s > _ITERATION_EVERY_S:
            self._last_line_s = time.monotonic()
            log.info("%s: iteration %d of %d, %s", self.name, done.step + 1, self.total, note)

    def epoch(self, done: Epoch) -> None:
        self._last_line_s = time.monotonic()
        metric = words_of_metric(done.metric)
        tested = "" if done.score is None else f", test {metric.words} {metric.text(done.score)}"
        log.info(
            "%s: epoch %d, loss %.4f%s, %.1f s",
            self.name, done.index + 1, done.train_loss, tested, done.seconds,
        )  # fmt: skip


class Waiting:
    """Seconds passed and the limit while a method decides: a bar on a terminal, else ever fewer lines."""

    def __init__(self, console: Console, name: str, limit_s: float | None, doing: str = "decides") -> None:
        self.what, self.limit_s = f"{name} {doing}", limit_s
        self.live = console.is_terminal
        self.bar = _Bar(
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"),
            console=console, transient=True,
        )  # fmt: skip
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Self:
        self.started = time.monotonic()
        if self.live:
            self.bar.start()
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        self.thread.join()
        if self.live:
            self.bar.stop()

    def _tell(self) -> None:
        task = self.bar.add_task(self.what, total=self.limit_s, note="")
        pause_s = 0.25 if self.live else _DECIDING_FIRST_S
        while not self.ended.wait(pause_s):
            spent = time.monotonic() - self.started
            within = (
                self.limit_s is not None and spent <= self.limit_s
            )  # what is compiled first does not count
            limit = f" of {self.limit_s:.0f}" if within else ""
            if self.live:
                self.bar.update(
                    task, completed=min(spent, self.limit_s or spent), note=f"{spent:.0f}{limit} s"
                )
            else:
                log.info("%s: %.0f%s s", self.what, spent, limit)
                pause_s *= 2
