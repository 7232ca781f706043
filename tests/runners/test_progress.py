"""What is shown while somebody waits."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from runners._progress import ConsoleProgress


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


def test_on_a_terminal_a_bar_goes_when_all_parts_are_done(caplog: pytest.LogCaptureFixture) -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    with caplog.at_level(logging.INFO, logger="runners._progress"), ConsoleProgress(console) as progress:
        for done, parts in ((0, 2), (1, 2), (2, 2), (3, 4)):
            progress.waiting("measuring on cpu:0", done, parts)
            (*_, task) = progress.bar.tasks or [None]
            assert (task is None) == (done == parts)
            assert task is None or (task.description, task.completed) == ("measuring on cpu:0", done)
        progress.waiting("measuring on cpu:0", 4, 4)
        progress.method("auto", 10)
        assert [task.description for task in progress.bar.tasks] == ["auto"]
    assert not caplog.records
