"""The check of GPUs, on CPU workers."""

from __future__ import annotations

import json

import pytest

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.steps import STEPS


def lines_of(text: str) -> dict[str, dict[str, object]]:
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {line["step"]: line for line in lines}


@pytest.mark.slow
def test_steps_hold_on_cpu_workers_and_end_in_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["versions", "schedules", "stopped_peer"]
    assert main(["--cpu", "--steps", *asked]) == 0
    text = capsys.readouterr().out
    assert {name: line["held"] for name, line in lines_of(text).items()} == dict.fromkeys(asked, True)
    assert STEPS["stopped_peer"].expected in text


@pytest.mark.slow
def test_all_other_steps_hold_on_cpu_workers(capsys: pytest.CaptureFixture[str]) -> None:
    """But for seconds, of which nothing is asserted."""
    asked = [
        name for name in STEPS if name not in ("versions", "schedules", "stopped_peer", "costs", "overhead")
    ]
    assert main(["--cpu", "--steps", *asked]) == 0, capsys.readouterr().out
