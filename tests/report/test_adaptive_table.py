"""What was decided about plans in training, on the page and in Markdown."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from netsplit.planning.explanation.change import PlacementChange
from netsplit.report import markdown_page
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
