"""Both tables show every method, its figures in the stated units, and why it failed."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from netsplit.tracking import ComparisonRow, comparison_table, verdict_of, winner_of
from netsplit.tracking.table import comparison_markdown
from tests.tracking.samples import rows


def printed(width: int, given: list[ComparisonRow] | None = None) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(comparison_table(rows() if given is None else given).terminal(spaced=True))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_terminal_table_fits_and_cuts_nothing() -> None:
    text = printed(100)
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "…" not in text
    words = " ".join(text.split())
    assert "netsplit optimal 200.0 250.0 -20.0 128.0 0.1234 93.8 cpu:0 203 38.0 39.0 48.0" in words
    assert "obj 123.4 ms cpu:1 219 40.0 41.0 48.0 gap 0.0 % in 12,345 ms" in words
    assert "m_topo heuristic 310.0 300.0 +3.3" in words
    assert "single heuristic - 450.0 - 71.0" in words
    assert "Failed: m_sct: cpu:1 lacks 12,345,678 bytes; raise [cluster] capacity_bytes." in words


def test_markdown_has_a_line_for_each_method_and_equal_cells() -> None:
    table, _, note = comparison_markdown(rows()).partition("\n\n")
    assert "optimal for the method's own objective" in note
    lines = table.splitlines()
    assert len(lines) == 2 + len(rows())
    assert len({line.count("|") for line in lines}) == 1
    solver = "optimal<br>obj 123.4 ms<br>gap 0.0 %<br>in 12,345 ms"
    assert f"| netsplit | {solver} | 200.0 | 250.0 | -20.0 | 128.0 |" in lines[2]
    assert "Failed: m_sct: cpu:1 lacks" in note


MIB = 2**20


def row(method: str, rate: float, vary: float = 0.01, peak: int = 1, **more: object) -> ComparisonRow:
    """The row of a measured method whose iterations vary by so much, with a limit of 2 MiB."""
    made = ComparisonRow(
        method, "feasible", predicted_s=0.5, measured_s=64 / rate, throughput=rate,
        spread=((1 - vary) * rate, (1 + vary) * rate), measured_peak={"cpu:0": peak * MIB},
        capacity={"cpu:0": 2 * MIB},
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


def test_the_fastest_is_said_beside_the_second_and_one_device() -> None:
    rows = [row("m_topo", 226.4), row("auto", 283.0), row("netsplit", 204.9), row("single", 171.9)]
    assert verdict_of(rows) == (
        "auto is the fastest: 283.0 samples/s measured, 25 % more than m_topo (226.4) and 65 % more than one "
        "device (single, 171.9)."
    )
    assert winner_of(rows) == "auto"


def test_what_exceeds_a_limit_does_not_win_and_is_named_where_it_is_faster() -> None:
    rows = [row("auto", 100.0), row("single", 150.0, peak=3)]
    assert winner_of(rows) == "auto"
    assert verdict_of(rows).startswith("auto is the fastest that fits: 100.0 samples/s measured.")
    assert "One device (single) is faster (150.0), but exceeds the limit of cpu:0." in verdict_of(rows)
    slower = verdict_of([row("auto", 100.0), row("single", 80.0, peak=3)])
    assert "one device (single, 80.0, which exceeds the limit of cpu:0)" in slower
    alone = [row("single", 150.0, peak=3)]
    assert winner_of(alone) is None
    assert verdict_of(alone).startswith("One device (single) exceeds the limit of cpu:0: 150.0 samples/s")
