"""Who is best among the partitioners is told of those that train what one device trains."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import partitioners
from benchmarks.setting import Setting
from netsplit.cluster.cluster import Link
from netsplit.graph.ir import CALL
from netsplit.planning.workload import Workload
from netsplit.program import GPipe
from tests.builders import costs_of, graph_of, linked


@pytest.mark.parametrize("statistics", [True, False])
def test_replicas_with_statistics_of_their_own_are_not_the_best(
    statistics: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = graph_of(["a", "b"], [("", 8, ["a"]), ("a", 8, ["b"]), ("b", 8, [])])
    if statistics:
        graph = replace(graph, nodes={k: replace(node, op=f"{CALL}.f") for k, node in graph.nodes.items()})
    setting = Setting(
        suite="captured simulated",
        title="two nodes",
        workload=Workload("two nodes", graph, costs_of(graph)),
        cluster=linked(("cpu:0", "cpu:1"), Link(1e6, 0.0)),  # so that a pipeline is far too slow
        problem_keys={"objective": "simulated", "schedule": GPipe(4), "memory": "lifetimes"},
        methods=("ddp", "single"),
    )
    monkeypatch.setattr(partitioners, "settings_of", lambda *_: [setting])
    file = tmp_path / "rows.json"
    assert partitioners.main(["--out", str(file), "--time-limit", "1"]) == 0
    rows = {row["method"]: row for row in json.loads(file.read_text()).values()}
    assert rows["ddp"]["objective"] < rows["single"]["objective"]
    assert (rows["ddp"]["same"], rows["single"]["same"]) == (not statistics, True)
    _, summary = capsys.readouterr().out.split("Summary")
    assert ("ddp" in summary) == (not statistics)
    cells = [line.replace("│", " ").split() for line in summary.splitlines() if "captured" in line]
    best = {cell[2]: cell[4] for cell in cells}
    assert best == ({"single": "1"} if statistics else {"ddp": "1", "single": "0"})
