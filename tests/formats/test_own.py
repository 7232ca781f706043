"""Our own JSON: what is saved comes back equal, and one sentence for each mistake."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsplit.cluster.cluster import Cluster, Device, Nic
from netsplit.cluster.described import uniform_cluster
from netsplit.errors import NetSplitError
from netsplit.formats.own import save_workload
from netsplit.formats.read import read_workload
from netsplit.graph.ir import Initializer
from netsplit.partition.objectives import MaxLoad, StageTime
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs, DeviceCosts, NodeBytes, NodeSeconds
from netsplit.profile.measure.clock import trivial_step
from tests.builders import chain, cluster_of, costs_of, cpus
from tests.partition.builders import problems


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    problem = draw(problems())
    names = st.frozensets(st.sampled_from(list(problem.graph.nodes)))
    tree = uniform_cluster([2, 2], [4e9, 1e9], 100).cluster("cpu", 0)
    counts = st.integers(0, 2**40)
    transients = st.builds(NodeBytes, counts, counts)
    costs, rate = problem.costs, st.just(0.0) | st.floats(0.0, 1.0)
    for kind in draw(st.sets(st.sampled_from(list(costs.devices)))):
        costs = costs.with_device(
            kind,
            step_s_per_byte=draw(rate),
            instruction_s=draw(rate),
            message_s=draw(st.none() | rate),
            contention=draw(st.just(1.0) | st.floats(1.0, 9.0)),
            copy_s_per_byte=draw(rate),
            accumulate_s_per_byte=draw(rate),
            transients=draw(st.dictionaries(st.sampled_from(list(problem.graph.nodes)), transients)),
        )
    return Workload(
        name=draw(st.text(st.characters(codec="utf-8"), max_size=8)),
        graph=problem.graph,
        costs=costs,
        cluster=draw(st.sampled_from([None, problem.cluster, tree])),
        unit=draw(st.sampled_from(["s", "ms"])),
        unit_s=draw(st.floats(1e-9, 10.0)),
        period=draw(st.sampled_from([MaxLoad(), StageTime()])),
        backward_nodes=draw(names),
        unsupported=draw(names),
        remarks=tuple(draw(st.lists(st.text(max_size=4), max_size=2))),
    )


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(work=workloads())
def test_what_is_saved_comes_back_equal(work: Workload, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("own") / "any name.txt"
    save_workload(work, file)
    assert read_workload(file) == work


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Write a good file of three nodes, changed by a function of its data."""

    def write(change: Callable[[dict[str, Any]], Any]) -> Path:
        graph = chain([4, 4, 4])
        file = tmp_path / "own.json"
        save_workload(Workload("w", graph, costs_of(graph), cluster_of([100, 100])), file)
        data = json.loads(file.read_text())
        change(data)
        file.write_text(json.dumps(data, indent=1))
        return file

    return write


def test_users_of_one_initializer_share_a_device_as_in_captured_graphs(saved: Callable[..., Path]) -> None:
    def share(data: dict[str, Any]) -> None:
        data["initializers"].append(asdict(Initializer("w", "float32", (4,), True, True)))
        data["nodes"][0]["initializers"] = data["nodes"][2]["initializers"] = ["w"]

    work = read_workload(saved(share))
    first, _, last, *_ = work.graph.nodes
    assert work.graph.colocated == ((first, last),)
    assert work.remarks == ("nodes that share an initializer must be on one device: w",)


def seconds(data: dict[str, Any]) -> dict[str, Any]:
    return next(iter(data["costs"]["seconds"].values()))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.pop("nodes"), ["'nodes'"]),
        (lambda d: d["nodes"].append(d["nodes"][0]), ["nodes has '", "' twice"]),
        (lambda d: d["nodes"].reverse(), ["nodes[", "topological order"]),
        (lambda d: seconds(d).update({min(seconds(d)): [1, -1]}), ["-1"]),
        (lambda d: d["cluster"]["links"].pop(), ["no link from"]),
        (lambda d: d["cluster"]["devices"][0].update(capacity_bytes=0), ["capacity of 0", "1 or more"]),
    ],
)
def test_a_mistake_is_named(
    saved: Callable[..., Path], change: Callable[[dict[str, Any]], Any], words: list[str]
) -> None:
    with pytest.raises(NetSplitError) as caught:
        read_workload(saved(change))
    text = str(caught.value)
    assert "own.json" in text
    assert "\n" not in text
    assert all(word in text for word in words), text


COSTS = Costs({"cpu": DeviceCosts({"mul": NodeSeconds(1e-3, 1e-3)}, contention=1.5)}, 2)


def devices_in(path: Path) -> tuple[Device, ...]:
    cluster = read_workload(path).cluster
    assert cluster is not None
    return cluster.devices


def test_processors_survive_the_file_and_are_enough_in_files_without_them(tmp_path: Path) -> None:
    file, cluster = tmp_path / "graph.json", cpus(2)
    devices = tuple(replace(d, processors=n) for d, n in zip(cluster.devices, (1.5, None), strict=True))
    save_workload(Workload("w", trivial_step(), COSTS, replace(cluster, devices=devices)), file)
    assert devices_in(file) == devices
    data = json.loads(file.read_text())
    for device in data["cluster"]["devices"]:
        del device["processors"]
    file.write_text(json.dumps(data))
    assert [device.processors for device in devices_in(file)] == [None, None]


def with_nics(path: Path) -> tuple[Cluster, dict[str, object]]:
    cluster = cpus(2)
    pace = cluster.links["cpu:0", "cpu:1"].seconds_per_byte
    nics = (Nic("here", ("cpu:0",), pace, pace / 2), Nic("there", ("cpu:1",), pace / 4, 0.0))
    cluster = replace(cluster, nics=nics)
    save_workload(Workload("w", trivial_step(), COSTS, cluster), path)
    return cluster, json.loads(path.read_text())


def test_nics_survive_the_file_and_older_files_have_none(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    cluster, data = with_nics(path)
    assert read_workload(path).cluster == cluster
    del data["cluster"]["nics"]  # type: ignore[attr-defined]
    path.write_text(json.dumps(data))
    assert read_workload(path).cluster == replace(cluster, nics=())
