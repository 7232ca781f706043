"""What is shown while somebody waits."""

from __future__ import annotations

import io
import logging
import sys
import time

import pytest
from rich.console import Console

from runners._progress import ConsoleProgress, Waiting


def test_elsewhere_than_on_a_terminal_lines_say_how_long_it_will_take(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [100.0]
    monkeypatch.setattr("runners._progress.time.monotonic", lambda: now[0])
    with (
        caplog.at_level(logging.INFO, logger="runners._progress"),
        ConsoleProgress(Console(file=io.StringIO())) as progress,
    ):
        for what in ("measuring on cpu:0", "trial run on cpu:0, cpu:1"):
            for done in range(5):
                progress.waiting(what, done, 4)
                now[0] += 6.0
    assert [record.getMessage() for record in caplog.records] == [
        f"{what}: 2 of 4 parts done, about 12 s left"
        for what in ("measuring on cpu:0", "trial run on cpu:0, cpu:1")
    ]


def test_a_line_of_the_log_goes_above_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written into it, every line left a bar behind."""
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stdout", screen)
    handler = logging.StreamHandler(screen)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    with Waiting(Console(force_terminal=True, width=80), "plan", None):
        time.sleep(0.6)
        logging.getLogger("netsplit").warning("a line of the log")
        assert handler.stream is not screen
    assert handler.stream is screen
    before, after = screen.getvalue().split("a line of the log\n")
    assert "plan decides" in before
    assert before.endswith("\x1b[2K")  # the bar's line is erased first, and the bar drawn anew below
    assert "plan decides" in after
