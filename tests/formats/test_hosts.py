"""Where devices are, in files of NetSplit: what is written is read, and older ones mean what they meant."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from netsplit.cluster.cluster import Cluster, Device, Nic
from netsplit.formats.own import save_workload
from netsplit.formats.read import read_workload
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.profile.measure.overhead import trivial_step
from tests.builders import cpus

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
