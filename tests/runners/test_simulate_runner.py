"""`python -m runners.simulate`: the tables, the program, the trace, and one sentence for each mistake."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from netsplit.cluster.cluster import Cluster, Device, Link
from netsplit.formats.own import save_workload
from netsplit.placement.placement import Placement, SolverReport
from netsplit.planning.workload import Workload
from runners._entry import entry
from runners.simulate import job
from tests.commands import Command, Ended
from tests.simulate.drawn import chain, drawn_costs

Run = Callable[..., Ended]


@pytest.fixture
def run(command: Command, tmp_path: Path) -> Run:
    """Run the command in a folder with a graph of six nodes on two devices, and a placement of it."""
    save_workload(workload(), tmp_path / "graph.json")
    (tmp_path / "placement.json").write_text(json.dumps(halves().to_dict()))
    return partial(command, entry("simulate")(job), "simulate")


def workload() -> Workload:
    graph = chain(6, {f"n{i}": 4 for i in range(6)})
    names = ("cpu:0", "cpu:1")
    links = {(p, q): Link(0.01, 0.001) for p in names for q in names if p != q}
    cluster = Cluster("pair", tuple(Device(name, "slow", 2**30, host="here") for name in names), links)
    costs = drawn_costs(graph, random.Random(1)).with_device(
        "slow", message_s=0.03, contention=1.25, copy_s_per_byte=1e-4
    )
    return Workload("six", graph, costs, cluster)


def halves() -> Placement:
    device_of = {f"n{i}": f"cpu:{i // 3}" for i in range(6)}
    return Placement("halves", device_of, {f"n{i}": i for i in range(6)}, SolverReport("heuristic", 0.0))


def written() -> Path:
    (folder,) = Path("outputs/simulate/runs").iterdir()
    return folder


def test_a_given_placement_is_simulated_and_explained(run: Run) -> None:
    end = run("graph=graph.json", "placement=placement.json", "schedule=1f1b", "show_program=true")
    assert (end.code, end.err) == (0, "")
    assert "six, halves, 1f1b with 4 micro-batches" in end.out
    assert "critical path: " in end.out
    assert "cpu:0 waits " in end.out
    assert "forward of segment 0, micro-batch 3" in end.out
    tables = end.out.split("segment 0 on")[0].splitlines()
    assert max(map(len, tables)) <= 100
    trace = json.loads((written() / "trace.json").read_text())
    assert {"X", "M"} == {event["ph"] for event in trace["traceEvents"]}
    assert (written() / "timeline.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "graph must be given: the path of a graph file, as in graph="),





        (["graph=graph.json", "cluster=cpu2"], "which netsplit simulate does not start"),
        (["graph=graph.json", "placement=placement.json", "cluster=uniform", "cluster.devices=2",
          "cluster.bandwidth=1e9", "cluster.capacity=1e9"], "which uses device 'cpu:0'"),
    ],
)  # fmt: skip
def test_a_mistake_ends_in_one_sentence(run: Run, arguments: list[str], sentence: str) -> None:
    end = run(*arguments)
    assert end.code == 2
    assert sentence in end.err
    assert end.err.count("\n") == 1
