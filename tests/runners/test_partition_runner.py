"""`python -m runners.partition`: the table, `result.json`, and one sentence for each mistake."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from netsplit.formats.own import save_workload
from netsplit.formats.read import read_workload
from netsplit.graph import capture
from netsplit.planning import verify_score
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


def test_the_most_loaded_device_of_a_pipedream_file_has_the_whole_period(run: Run) -> None:
    asked = ["graph=g.txt", *FAST, "cluster.capacity=100%", "objective=max_load", "result=r.json"]
    assert run(*asked, "partitioner=round_robin", "explain=true").code == 0
    written = result()
    loads = [device["seconds"] for device in written["per_device"].values()]
    assert written["objective"] == max(loads)
    assert 1e3 * written["explanation"]["objective_s"] == pytest.approx(max(loads))


def test_the_simulated_objective_follows_the_schedule(run: Run) -> None:
    same = ["graph=g.txt", *FAST, "partitioner=m_topo", "objective=simulated", "result=r.json"]
    assert run(*same, "schedule=single_batch").code == 0
    # d0 has 0, 1 and 2: 3 forward, 1 to send, 3 and 1 on d1, 1 back, 3 backward.
    assert result()["objective"] == pytest.approx(12.0)
    assert run(*same, "schedule=gpipe", "schedule.microbatches=3", "cluster.capacity=100%").code == 0
    # d0 forwards until 9; d1's last backward ends at 16; d0's backwards begin at 15 and take 3 each.
    assert result()["objective"] == pytest.approx(24.0)


def test_the_result_lies_in_the_folder_of_the_run_unless_it_is_told_where(run: Run, tmp_path: Path) -> None:
    assert run("graph=g.json", "partitioner=m_topo").code == 0
    assert len(list(tmp_path.glob("outputs/*/runs/*/result.json"))) == 1


def test_a_multirun_plans_with_each_method(run: Run, tmp_path: Path) -> None:
    assert run("--multirun", "graph=g.json", "partitioner=m_topo,random").code in (0, 2)
    results = [result(str(path)) for path in tmp_path.glob("outputs/*/multiruns/*/*/result.json")]
    assert {each["method"] for each in results} == {"m_topo", "random"}


def test_infeasible_is_said_with_the_missing_bytes(run: Run) -> None:
    ended = run("graph=g.txt", *FAST, "cluster.capacity=1000", "partitioner=m_topo", "result=r.json")
    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert "10000 bytes are missing in total" in ended.err
    written = result()
    assert (written["status"], written["objective"], written["device_of"]) == ("infeasible", None, {})
    assert "missing" in written["message"]


def test_a_plan_of_a_method_that_heeds_no_memory_is_refused_where_it_does_not_fit(run: Run) -> None:
    ended = run("graph=g.txt", *FAST, "partitioner=single", "result=r.json")
    assert ended.code == 2
    assert "single needs" in ended.err
    assert "3000 bytes are missing there" in ended.err
    assert result()["status"] == "infeasible"


def test_explain_and_compare_say_why_and_what_moved(run: Run) -> None:
    same = ["graph=g.txt", *FAST, "partitioner=m_topo", "result=r.json"]
    ended = run(*same, "explain=true", "compare_with=single")
    assert ended.code == 0, ended.err
    assert {"explanation", "compared_with"} <= result().keys()
    assert result()["explanation"]["what_if"]
    ended = run(
        "graph=g.txt", *FAST, "partitioner=auto", "explain=true", "time_limit=0.2", "result=auto.json"
    )
    assert ended.code == 0, ended.err
    searched = [
        line for line in (ended.out + ended.err).splitlines() if "auto: " in line and " s by " in line
    ]
    assert len(searched) < 5
    Path("r.json").rename("before.json")
    ended = run(*same, "compare_with=before.json")
    assert ended.code == 0, ended.err
    assert result()["compared_with"]["nodes"] == 0


def test_a_plan_is_compared_with_a_method_of_one_s_own(run: Run, tmp_path: Path) -> None:
    (tmp_path / "conf" / "partitioner").mkdir(parents=True)
    text = "# @package partitioner.mine\n_target_: netsplit.partition.RoundRobin\n"
    (tmp_path / "conf" / "partitioner" / "mine.yaml").write_text(text)
    asked = ["graph=g.txt", *FAST, "cluster.capacity=100%", "partitioner=m_topo", "result=r.json"]
    ended = run(*asked, "hydra.searchpath=[conf]", "compare_with=mine")
    assert ended.code == 0, ended.err
    assert "from round_robin" in ended.out
    ended = run(*asked, "hydra.searchpath=[conf]", "compare_with=min")
    assert (ended.code, "did you mean mine?" in ended.err) == (2, True)


def test_a_plan_is_compared_with_a_method_by_its_dotted_name(run: Run) -> None:
    asked = ["graph=g.txt", *FAST, "cluster.capacity=100%", "partitioner=m_topo", "result=r.json"]
    ended = run(*asked, "compare_with=netsplit.partition.RoundRobin")
    assert ended.code == 0, ended.err
    assert "from round_robin" in ended.out
    ended = run(*asked, "compare_with=netsplit.partition.RoundRobbin")
    assert (ended.code, "there is no netsplit.partition.RoundRobbin" in ended.err) == (2, True)
    ended = run(*asked, "compare_with=pathlib.Path")
    assert (ended.code, "name a partitioner" in ended.err) == (2, True)


@pytest.mark.parametrize("method", ["heft", "pipedream"])
def test_an_earlier_plan_keeps_its_order_and_its_stages(run: Run, method: str) -> None:
    objective = "max_load" if method == "pipedream" else "latency"
    same = [
        "graph=wide.txt",
        *FAST,
        "cluster.capacity=100%",
        "cluster.bandwidth=1e9",
        f"objective={objective}",
    ]
    rows = [f"n{i} -- Layer({i}) -- forward_compute_time={1 + 9 * (i == 4)}.0, backward_compute_time=1.0, "
            "activation_size=1000, parameter_size=500" for i in range(6)]  # fmt: skip
    edges = [f"\tn{u} -- n{v}" for u, v in ((0, 1), (0, 2), (0, 3), (0, 4), *((i, 5) for i in range(1, 5)))]
    Path("wide.txt").write_text("\n".join([*rows, *edges]))
    ended = run(*same, f"partitioner={method}", "result=a.json")
    assert ended.code == 0, ended.err
    ended = run(*same, "partitioner=round_robin", "compare_with=a.json", "result=r.json")
    assert ended.code == 0, ended.err
    assert result()["compared_with"]["before_s"] * 1e3 == pytest.approx(result("a.json")["objective"])
    old = result("a.json")
    assert method != "pipedream" or any(stage["replicas"] > 1 for stage in old["stages"])
    del old["priority"], old["stages"]
    Path("old.json").write_text(json.dumps(old))
    ended = run(*same, "partitioner=round_robin", "compare_with=old.json", "result=r.json")
    assert ended.code == 0, ended.err
    assert "old.json has no priority and no stages" in ended.out + ended.err


def test_an_earlier_plan_that_breaks_a_rule_is_refused(run: Run) -> None:
    same = ["graph=g.txt", *FAST, "partitioner=m_topo"]
    assert run(*same, "result=a.json").code == 0
    earlier = result("a.json")
    Path("a.json").write_text(json.dumps(earlier | {"priority": earlier["priority"][::-1]}))
    ended = run(*same, "compare_with=a.json")
    assert ended.code == 2
    assert "compare_with is 'a.json', which does not hold" in ended.err


def test_a_plan_that_is_not_contiguous_is_refused_in_words(run: Run) -> None:
    asked = ["graph=g.json", "objective=max_load_contiguous", "result=r.json"]
    ended = run(*asked, "partitioner=round_robin")
    assert ended.code == 2
    assert "round_robin did not heed contiguity" in ended.err
    assert "auto" in ended.err
    ended = run(*asked, "partitioner=layerwise", "compare_with=round_robin")
    assert ended.code == 0, ended.err


def test_a_largest_load_that_the_definition_contradicts_is_no_plan(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["graph=g.json", "partitioner=m_topo", "objective=max_load", "result=r.json"]
    assert run(*asked).code == 0
    most = verify_score.recomputed_max_load_s
    monkeypatch.setattr(verify_score, "recomputed_max_load_s", lambda *args: most(*args) * (1 + 1e-8))
    ended = run(*asked)
    assert ended.code == 2
    assert "max_load of m_topo is" in ended.err


def test_jobs_of_a_multirun_do_not_write_one_file(run: Run) -> None:
    ended = run("--multirun", "graph=g.json", "partitioner=m_topo,random", "result=r.json")
    assert ended.code == 2
    assert "result='out/${hydra:job.num}.json'" in ended.err
    assert not Path("r.json").exists()
    ended = run(
        "--multirun", "graph=g.json", "partitioner=m_topo,m_etf", "result='out/${hydra:job.num}.json'"
    )
    assert ended.code == 0, ended.err
    assert [result(f"out/{i}.json")["method"] for i in range(2)] == ["m_topo", "m_etf"]


def test_what_is_no_file_is_not_replaced(run: Run, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ended = run("graph=g.json", "partitioner=m_topo", "result=pipe")
    assert ended.code == 2
    assert "result cannot be written: 'pipe' is a folder or a device" in ended.err
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["graph must be given", "as in graph=vgg16.txt"]),
        (["graph=none.txt"], ["'none.txt' is not there"]),
        (["graph=''"], ["graph is empty"]),
        (["graph=g.txt"], ["describes no devices", "cluster=uniform cluster.devices=4"]),
        (["graph=g.txt", "cluster=cpu2"], ["cluster=cpu2", "uniform, mixed3"]),
        (["graph=g.txt", "cluster=uniform", "cluster.bandwidth=0"], ["cluster.bandwidth is 0"]),
        (["graph=g.txt", "cluster=uniform", "cluster.capcity=1"], ["cluster.capcity", "known:"]),
        (["graph=g.json", "partitioner=[m_topo,single]"], ["m_topo, single", "exactly one"]),
        (["graph=g.json", "partitioner=[]"], ["exactly one"]),
        (["graph=g.json", "partitioner=none"], ["partitioner=none is not an option"]),
        (["graph=g.json", "objective=speed"], ["objective is 'speed'", "latency"]),
        (["graph=g.json", "contiguous=true"], ["contiguous=true goes with objective=max_load"]),
        (["graph=g.json", "time_limit=0"], ["time_limit is 0"]),
        (["graph=g.json", "time_limit=soon"], ["time_limit is 'soon'"]),
        (["graph=g.json", "seed=-1"], ["seed is -1"]),
        (["graph=g.json", "alpha=3"], ["alpha is 3", "whole"]),
        (["graph=g.json", "+limit=3"], ["limit is not a config key", "did you mean time_limit?"]),
        (["graph=g.json", "result=."], ["result is '.'"]),
        (["graph=g.json", "result=g.txt/r.json"], ["g.txt' is no folder to write in"]),
        (["graph=g.json", "result=./g.json"], ["the graph file itself"]),
        (["graph=g.json", "inputs=profiled"], ["inputs is profiled", "PipeDream"]),
        (["graph=g.json", "compare_with=none"], ["compare_with is 'none'", "m_topo"]),
        (["graph=g.json", "compare_with=g.json"], ["compare_with is 'g.json'", "or result.json"]),
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


def test_help_says_how_to_begin(run: Run) -> None:
    ended = run("--help")
    assert ended.code == 0
    assert "cluster=uniform" in ended.out
    assert "compare_with" in ended.out


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


def test_lifetimes_are_refused_where_the_file_has_none(run: Run) -> None:
    ended = run("graph=g.txt", "partitioner=single", *FAST, "memory=lifetimes")
    assert ended.code == 2
    assert "g.txt" in ended.err
    assert "memory=static" in ended.err
    assert run("graph=g.txt", "partitioner=single", *FAST, "cluster.capacity=100%", "memory=static").code == 0


def test_a_file_without_what_is_saved_is_read_still(run: Run, captured: Workload, tmp_path: Path) -> None:
    data = json.loads((tmp_path / "own.json").read_text())
    for node in data["nodes"]:
        del node["saved"], node["saved_bytes"]
    for variable in data["variables"]:
        del variable["alias_of"]
    (tmp_path / "old.json").write_text(json.dumps(data))
    old = read_workload(tmp_path / "old.json")
    assert not old.knows_lifetimes
    assert list(old.graph.nodes) == list(captured.graph.nodes)
    assert run("graph=old.json", "partitioner=single", *FAST, "cluster.capacity=100%").code == 0
    assert run("graph=old.json", "partitioner=single", *FAST, "memory=lifetimes").code == 2
