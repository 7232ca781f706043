"""Both tables show every method, its figures in the stated units, and why it failed."""

from __future__ import annotations

import io
from dataclasses import replace

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


@pytest.mark.parametrize("width", [120, 110, 100])
def test_terminal_table_fits_and_cuts_nothing(width: int) -> None:
    text = printed(width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    words = " ".join(text.split())
    assert "netsplit optimal 200.0 250.0 -20.0 128.0 0.1234 93.8 cpu:0 203 38.0 39.0 48.0" in words
    assert "obj 123.4 ms cpu:1 219 40.0 41.0 48.0 gap 0.0 % in 12,345 ms" in words
    assert "m_topo heuristic 310.0 300.0 +3.3" in words
    assert "single heuristic - 450.0 - 71.0" in words


def test_all_bytes_are_in_mib_few_ones_too() -> None:
    small = ComparisonRow(
        "auto", "feasible", predicted_peak={"a": 456160, "b": 300}, measured_peak={"a": 400 * 1024},
        capacity={"a": 24 * 2**30, "b": 32 * 2**30},
    )  # fmt: skip
    words = " ".join(printed(110, [small]).split())
    assert "MiB MiB MiB" in words
    assert "a - 0.435 0.391 24,576.0" in words
    text = comparison_markdown([small])
    assert "Devices: nodes, MiB predicted / measured / limit" in text
    assert "a: -, 0.435 / 0.391 / 24,576.0; b: -, 0.000286 / - / 32,768.0" in text


def test_terminal_table_gives_the_reason_of_a_failure() -> None:
    words = " ".join(printed(120).split())
    assert "m_sct failed: cpu:1 lacks 12,345,678 bytes; raise [cluster] capacity_bytes." in words


def test_markdown_has_a_line_for_each_method_and_equal_cells() -> None:
    table, _, note = comparison_markdown(rows()).partition("\n\n")
    assert "optimal for the method's own objective" in note
    lines = table.splitlines()
    assert len(lines) == 2 + len(rows())
    assert len({line.count("|") for line in lines}) == 1
    assert "| netsplit | optimal | 123.4 | 0.0 | 12,345 | 200.0 | 250.0 | -20.0 | 128.0 |" in lines[2]
    assert "**failed:** cpu:1 lacks" in lines[4]


def test_a_pipe_in_a_reason_does_not_break_markdown() -> None:
    text = comparison_markdown([ComparisonRow("a", "failed", error="x | y\nz")])
    assert "x \\| y z" in text


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


def test_a_status_without_an_answer_is_explained() -> None:
    solved, row = rows()[0], replace(rows()[0], status="limit")
    assert (row.unanswered, solved.unanswered) == (True, False)
    for text in (printed(110, [row]), comparison_markdown([row]), outline([row])):
        assert "limit: no answer in time" in " ".join(text.split())
    for text in (printed(110, [solved]), comparison_markdown([solved]), outline([solved])):
        assert "no answer in time" not in text


def test_a_plan_called_optimal_says_of_what() -> None:
    solved = replace(rows()[0], status="optimal", optimises="one pass")
    for text in (printed(110, [solved]), comparison_markdown([solved]), outline([solved])):
        assert "own objective" in text
        assert f"{solved.method} minimises one pass" in " ".join(text.split())
    for text in (printed(110, [replace(solved, status="feasible")]), comparison_markdown(rows()[1:])):
        assert "own objective" not in text


def test_seconds_of_an_earlier_run_are_marked_and_have_no_error() -> None:
    now = rows()[0]
    earlier = replace(now, earlier=True)
    assert now.prediction_error is not None
    assert earlier.prediction_error is None
    assert "200.0 †250.0 - 128.0" in " ".join(printed(110, [earlier]).split())
    for text in (printed(110, [earlier]), comparison_markdown([earlier]), outline([earlier])):
        assert "†250.0" in text
        assert "† measured by an earlier run" in text
    assert "†" not in comparison_markdown([now]) + outline([now]) + printed(110, [now])


def test_operators_in_parts_are_told_below_the_table_where_there_are_some() -> None:
    whole = rows()[0]
    cut = replace(whole, method="os_dpos", parts="1 operator in parts: fc_1 along dimension 0: 50 % on a")
    told = f"os_dpos: {cut.parts}"
    for text in (printed(110, [whole, cut]), comparison_markdown([whole, cut]), outline([whole, cut])):
        assert " ".join(text.split()).count(told) == 1
        assert "netsplit: 1 operator" not in text
    assert "fc#1" in comparison_markdown([cut], lambda text: text.replace("_", "#"))
    for text in (printed(110, [whole]), comparison_markdown([whole]), outline([whole])):
        assert "in parts" not in text


def test_a_plan_that_changed_in_training_is_said_to_be_another_than_that_of_the_figures() -> None:
    row = rows()[0]
    for changes, times in ((0, ""), (1, "once"), (3, "3 times")):
        given = [replace(row, changes=changes)]
        assert (given[0].prediction_error is None) == bool(changes)
        for text in (printed(110, given), comparison_markdown(given), outline(given)):
            said = f"its plan changed {times} in training; the prediction, nodes, parts and bytes are of the"
            assert (said in " ".join(text.split())) is bool(changes)
