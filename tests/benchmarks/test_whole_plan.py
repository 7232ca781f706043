"""What whole plans are compared with, and the clock that limits of decisions go by there."""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator
from pathlib import Path

import netsplit
from benchmarks.whole_plan.clocks import limits_by
from netsplit.planning.whole.pace import SimulationPace

DECIDING = ("partition", "planning/whole", "planning/recomputation", "simulate", "program")


def test_a_limit_by_the_process_s_clock_does_not_pass_while_others_compute() -> None:
    with limits_by("process"):
        pace = SimulationPace(time.perf_counter() + 0.05)
        time.sleep(0.06)
        assert time.perf_counter() < pace.deadline
        while time.perf_counter() < pace.deadline:
            pass


def test_decisions_ask_no_other_clock() -> None:
    """None has a name of its own, which an exchange would miss."""
    root = Path(netsplit.__file__).parent
    files = [file for each in DECIDING for file in (root / each).rglob("*.py")]
    files.append(root / "planning" / "fitting.py")
    asked = [(file.name, name) for file in files for name in _of_time(ast.parse(file.read_text()))]
    assert asked
    assert {name for _, name in asked} <= {"perf_counter", "sleep"}, asked


def _of_time(module: ast.Module) -> Iterator[str]:
    """What is read of `time`; what is imported from it counts as `from`."""
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield "from"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time":
            yield node.attr
