"""Both tables show every method, its figures in the stated units, and why it failed."""

from __future__ import annotations

import io

from rich.console import Console

from netsplit.tracking import ComparisonRow, comparison_markdown, comparison_table
from tests.tracking.samples import rows


def printed(width: int, given: list[ComparisonRow] | None = None) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(comparison_table(rows() if given is None else given))
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
    assert "m_sct failed: cpu:1 lacks 12,345,678 bytes; raise [cluster] capacity_bytes." in words


def test_markdown_has_a_line_for_each_method_and_equal_cells() -> None:
    table, _, note = comparison_markdown(rows()).partition("\n\n")
    assert "optimal for the method's own objective" in note
    lines = table.splitlines()
    assert len(lines) == 2 + len(rows())
    assert len({line.count("|") for line in lines}) == 1
    assert "| netsplit | optimal | 123.4 | 0.0 | 12,345 | 200.0 | 250.0 | -20.0 | 128.0 |" in lines[2]
    assert "**failed:** cpu:1 lacks" in lines[4]
