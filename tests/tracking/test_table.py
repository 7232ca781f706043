"""Both tables show every method, its figures in the stated units, and why it failed."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from netsplit.tracking import ComparisonRow, comparison_markdown, comparison_table, outline
from tests.tracking.samples import rows

MIB = 2**20


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


@pytest.mark.parametrize(
    ("predicted", "measured", "cells"),
    [(48, 48, "48.0 48.0 48.0"), (49, 48, "!49.0 48.0 48.0"), (48, 49, "48.0 !49.0 48.0")],
)
def test_a_peak_above_the_limit_is_marked_and_the_mark_explained(
    predicted: int, measured: int, cells: str
) -> None:
    row = ComparisonRow(
        "m_topo", "heuristic", predicted_peak={"gpu0": predicted * MIB, "gpu1": MIB},
        measured_peak={"gpu0": measured * MIB}, capacity={"gpu0": 48 * MIB, "gpu1": 48 * MIB},
    )  # fmt: skip
    over = "!" in cells
    assert row.overfull == ["gpu0"] * over
    assert cells in " ".join(printed(110, [row]).split())
    for text in (printed(110, [row]), comparison_markdown([row])):
        assert ("! more than the device's limit" in text) is over
    assert cells.replace(" ", " / ") in comparison_markdown([row])
    assert ("m_topo: more than the limit of gpu0" in outline([row])) is over
