"""Which operators are in parts is told by the table, MLflow and the report, to who knows no code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from netsplit.experiment.forecast import forecast
from netsplit.graph.ir import Graph
from netsplit.partition import Choice, Partitioner, Problem, Single
from netsplit.report import markdown_page, read_report
from netsplit.rewrite import Rewrite, Split, applied
from netsplit.tracking import Tracker
from tests.experiment.subjects import experiment_of, two
from tests.tracking.reports import parsed, report

Rewrites = Callable[[Graph, int], Sequence[Rewrite]]


@dataclass
class Cut(Partitioner):
    """Second parts are on the second device, but for views of what is on the first."""

    rewrites: Rewrites
    name: str = "cut"

    def choose(self, problem: Problem) -> Choice:
        rewrites = tuple(self.rewrites(problem.graph, 2))
        graph = applied(problem.graph, rewrites)
        second = {node for node in graph.nodes if node.endswith(":1") and not node.startswith("flatten")}
        return Choice({node: "ab"[node in second] for node in graph.nodes}, rewrites=rewrites)


def columns(graph: Graph, parts: int) -> Sequence[Rewrite]:
    """Three quarters of the hidden units."""
    return (Split("linear", 1, (48, 16)), Split("relu", 1, (48, 16)), Split("linear_1", "input.1", (48, 16)))


def test_a_reader_of_the_report_knows_what_was_cut_along_what_and_where_it_runs(
    database: str, tmp_path: Path
) -> None:
    planned = forecast(experiment_of(Cut(columns), Single()), two(), Tracker(database, "cut"), tmp_path)
    told = (
        "3 operators in parts: linear (1) and relu (2) along dimension 1: 75 % on a, 25 % on b; "
        "linear_1 (3) along dimension 1 of input: 75 % on a, 25 % on b"
    )
    assert [row.parts for row in planned.rows] == [told, ""]
    assert f"cut: {told}" in (tmp_path / "comparison.md").read_text()
    (comparison,) = read_report(database, ["cut"]).comparisons
    cut, single = comparison.methods
    assert (cut.row.parts, single.row.parts, single.parts) == (told, "", [])
    words, page = parsed(comparison).words, markdown_page(report(comparison), tmp_path)
    assert "cut linear (1) and relu (2) 2 dimension 1 1 of 2 75.0 a" in words
    assert "cut linear_1 (3) 1 dimension 1 of input 2 of 2 25.0 b" in words
    assert "| cut | linear (1) and relu (2) | 2 | dimension 1 | 2 of 2 | 25.0 | b |" in page
    assert "linear\\_1 (3) along dimension 1 of input: 75 % on a, 25 % on b" in page
