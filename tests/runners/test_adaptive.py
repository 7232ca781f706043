"""`adapt=true` as a command: what it decided is told, recorded and on the report's page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from netsplit.report.data.read import read_report
from netsplit.report.render import html_page, markdown_page
from tests.runners.test_compare import Command, command

__all__ = ["command"]


@pytest.mark.slow
def test_what_was_decided_is_recorded_and_reported(command: Command, tmp_path: Path) -> None:
    outcome = command.run(
        "adaptive", "partitioner=m_topo", "schedule=gpipe", "adapt=true", "epochs=3", runner="train"
    )  # fmt: skip
    assert outcome.code == 0, outcome.stderr
    run = outcome.runs["m_topo"]
    first = json.loads(run.data.tags["adaptive.decision.0"])
    assert first["why"].startswith("the first measured iterations")
    assert int(run.data.tags["adaptive.looks"]) >= 1
    assert run.data.metrics["adaptive.measured_before_s"] > 0
    written = json.loads((outcome.artifacts("m_topo") / "adaptive.json").read_text())
    assert written[0] == first
    stays = {each["outcome"] for each in written}.isdisjoint({"kept", "on trial"})
    assert (outcome.artifacts("m_topo") / "last_plan" / "placement.json").exists() == (not stays)
    assert first["why"] in (outcome.artifacts("m_topo") / "adaptive.txt").read_text()
    report = read_report(outcome.database, ["adaptive"])
    for page in (html_page(report, tmp_path), markdown_page(report, tmp_path)):
        assert "the first measured iterations" in page
