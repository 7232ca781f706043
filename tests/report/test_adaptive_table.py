"""What was decided about plans in training, on the page and in Markdown."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from netsplit.planning.explanation.change import PlacementChange
from netsplit.report import markdown_page
from netsplit.report.tables import adaptive_table
from netsplit.training.adapt.decisions import Decision
from tests.tracking.reports import parsed, report, trained

KEPT = Decision(
    40,
    "cpu:1 takes 6.10 times as long",
    "kept",
    0.02,
    0.01,
    0.03,
    0.012,
    "auto",
    0.5,
    0.041,
    4096,
    PlacementChange(3, 1, 0, ("3 operators from cpu:1 to cpu:0", "now fc1 in 2 parts")),
)
STAYED = Decision(
    7, "the first measured iterations; no plan is predicted to be shorter by enough", "stayed", 0.02
)


def test_every_decision_is_a_line() -> None:
    one = trained()
    decided = replace(one.methods[0], decisions=[asdict(STAYED), asdict(KEPT)])
    shown = replace(one, methods=[decided, *one.methods[1:]])
    words = parsed(shown).words
    assert "netsplit 7 stayed 20.0" in words
    changed = "3 3 operators from cpu:1 to cpu:0; now fc1 in 2 parts"
    assert f"netsplit 40 kept 20.0 10.0 30.0 12.0 41.0 {changed} cpu:1 takes 6.10 times as long" in words
    page = markdown_page(report(shown), Path())
    assert "| netsplit | 40 | kept | 20.0 | 10.0 | 30.0 | 12.0 | 41.0 | 3 | 3 operators from cpu:1" in page


def test_headings_say_of_which_plan_a_figure_is() -> None:
    one = trained()
    shown = replace(one, methods=[replace(one.methods[0], decisions=[asdict(KEPT)])])
    table = adaptive_table(shown)
    assert table is not None
    (row,) = table.rows
    figures = {column.name: cell for column, cell in zip(table.columns, row, strict=True)}
    assert figures.items() >= {
        "Old plan, predicted ms": "20.0", "New plan, predicted ms": "10.0",
        "Old plan, measured ms": "30.0", "New plan, measured ms": "12.0",
        "Changing took, ms": "41.0", "Operators moved": "3",
    }.items()  # fmt: skip
    assert table.title.startswith("Plans looked for while training; old: the plan that was trained by; new: ")
    assert table.title in parsed(shown).words
    assert table.title in markdown_page(report(shown), Path())


def test_the_bytes_of_a_training_that_changed_its_plan_are_said_to_be_of_the_first() -> None:
    one = trained()
    first, *others = one.methods
    changed = replace(one, methods=[replace(first, row=replace(first.row, changes=1)), *others])
    said = "Peak memory of each device, of the plan that training began with"
    assert said in parsed(changed).words
    assert said not in parsed(one).words


def test_a_training_that_did_not_look_has_no_table() -> None:
    assert adaptive_table(trained()) is None
    assert "Plans looked for" not in parsed(trained()).words
