"""`python -m runners.partition`: the table, `result.json`, and one sentence for each mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from netsplit.formats.own import save_workload
from netsplit.graph import capture
from netsplit.planning.workload import Workload
from runners._entry import entry
from runners.partition import job
from tests.builders import costs_of
from tests.commands import Command, Ended

FAST = ["cluster=uniform", "cluster.devices=2", "cluster.bandwidth=1e6", "cluster.capacity=75%"]


Run = Callable[..., Ended]


@pytest.fixture
def run(command: Command, tmp_path: Path) -> Run:
    """Run the command in a folder with two graph files."""
    rows = [f"n{i} -- Layer({i}) -- forward_compute_time={i}.0, backward_compute_time=1.0, "
            "activation_size=1000, parameter_size=500" for i in range(4)]  # fmt: skip
    edges = [f"\tn{i} -- n{i + 1}" for i in range(3)]
    (tmp_path / "g.txt").write_text("\n".join([*rows, *edges]))
    task = {"cpuLatency": 9.0, "size": 10}
    tasks = [{"id": i, "fpgaLatency": i + 1, **task} for i in range(4)]
    data = {"maxSizePerFPGA": 25, "maxFPGAs": 2, "maxCPUs": 1, "nodes": tasks,
            "edges": [{"sourceId": i, "destId": i + 1, "cost": 0.5} for i in range(3)]}  # fmt: skip
    (tmp_path / "g.json").write_text(json.dumps(data))
    return partial(command, entry("partition")(job), "partition")


def result(path: str = "r.json") -> dict[str, Any]:
    return json.loads(Path(path).read_text())  # type: ignore[no-any-return]


def test_a_plan_has_every_field_in_the_unit_of_the_file(run: Run) -> None:
    ended = run("graph=g.txt", "partitioner=single", *FAST, "cluster.capacity=100%", "result=r.json")
    assert ended.code == 0, ended.err
    written = result()
    assert (written["method"], written["status"], written["unit"]) == ("single", "optimal", "ms")
    assert written["objective_name"] == "latency"
    assert written["objective"] == pytest.approx(10.0)
    assert (written["bound"], written["gap"]) == (pytest.approx(10.0), pytest.approx(0.0))
    assert written["device_of"] == dict.fromkeys(["n0", "n1", "n2", "n3"], "d0")
    assert written["per_device"]["d0"]["seconds"] == pytest.approx(10.0)
    assert written["per_device"]["d0"]["bytes"] == 2 * 2000 + 2 * 4000
    assert written["per_device"]["d1"]["seconds"] == 0.0
    assert written["seconds"] < 5
    assert "latency 10 ms" in ended.out
    assert "d1" in ended.out


def test_max_load_is_that_of_the_file_s_own_devices(run: Run) -> None:
    assert run("graph=g.json", "objective=max_load", "partitioner=m_topo", "result=r.json").code == 0
    written = result()
    loads = [device["seconds"] for device in written["per_device"].values()]
    assert written["objective"] == max(loads)
    assert all(device["bytes"] <= device["capacity"] for device in written["per_device"].values())
    # Two neighbours on each accelerator: 1 + 2 + 0.5 and 0.5 + 3 + 4.
    assert written["objective"] == pytest.approx(7.5)


def test_infeasible_is_said_with_the_missing_bytes(run: Run) -> None:
    ended = run("graph=g.txt", *FAST, "cluster.capacity=1000", "partitioner=m_topo", "result=r.json")
    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert "10000 bytes are missing in total" in ended.err
    written = result()
    assert (written["status"], written["objective"]) == ("infeasible", None)
    assert "missing" in written["message"]


def test_explain_and_compare_say_why_and_what_moved(run: Run) -> None:
    same = ["graph=g.txt", *FAST, "partitioner=m_topo", "result=r.json"]
    ended = run(*same, "explain=true", "compare_with=single")
    assert ended.code == 0, ended.err
    assert {"explanation", "compared_with"} <= result().keys()
    Path("r.json").rename("before.json")
    ended = run(*same, "compare_with=before.json")
    assert ended.code == 0, ended.err
    assert result()["compared_with"]["change"]["moved"] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["graph must be given", "as in graph=vgg16.txt"]),
        (["graph=g.txt"], ["describes no devices", "cluster=uniform cluster.devices=4"]),
        (["graph=g.json", "result=./g.json"], ["the graph file itself"]),
        (["graph=g.json", "compare_with=none"], ["compare_with is 'none'", "m_topo"]),
    ],
)
def test_a_mistake_gives_one_sentence_and_leaves_nothing(
    run: Run, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    ended = run(*arguments)
    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert all(word in ended.err for word in words), ended.err
    assert not list(tmp_path.glob("outputs/*/runs/*"))


@pytest.fixture
def captured(run: Run, tmp_path: Path) -> Workload:
    """A captured step, saved as `own.json`; every operator takes a millisecond forward and two backward."""
    net = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.GELU())))
    graph = capture(net, nn.CrossEntropyLoss(), (torch.randn(256, 64), torch.randint(64, (256,))))
    work = Workload("own", graph, costs_of(graph, 1e-3, 2e-3, alpha=3))
    save_workload(work, tmp_path / "own.json")
    return work


def test_a_captured_graphs_file_is_planned_by_lifetimes(run: Run, captured: Workload) -> None:
    """Its plan fits where the static count is refused, and the bytes told are those of the simulation."""
    assert captured.knows_lifetimes
    here = ["graph=own.json", "partitioner=single", "cluster=uniform", "cluster.devices=1", "result=r.json"]
    here += ["cluster.bandwidth=1e9"]
    kept = run(*here, "cluster.capacity=70%")
    assert kept.code == 0, kept.err
    peak = result()["per_device"]["d0"]["bytes"]
    refused = run(*here, "cluster.capacity=70%", "memory=static")
    assert refused.code == 2
    static = run(*here, "cluster.capacity=100%", "memory=static")
    assert static.code == 0, static.err
    assert 0 < peak < 0.7 * result()["per_device"]["d0"]["bytes"]
    assert result()["per_device"]["d0"]["bytes"] == captured.need_bytes()
