"""Where devices are, in files of NetSplit: what is written is read, and older ones mean what they meant."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from netsplit.cluster.cluster import Cluster, Device, Nic
from netsplit.formats.own import save_workload
from netsplit.formats.read import read_workload
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.profile.measure.messages import trivial_step
from netsplit.simulate.contention import contends
from tests.builders import cpus

COSTS = Costs({"cpu": DeviceCosts({"mul": NodeSeconds(1e-3, 1e-3)}, contention=1.5)}, 2)


def written(path: Path, hosts: tuple[str | None, str | None]) -> dict[str, object]:
    cluster = cpus(2)
    devices = tuple(replace(d, host=host) for d, host in zip(cluster.devices, hosts, strict=True))
    save_workload(Workload("w", trivial_step(), COSTS, replace(cluster, devices=devices)), path)
    return json.loads(path.read_text())  # type: ignore[no-any-return]


def devices_in(path: Path) -> tuple[Device, ...]:
    cluster = read_workload(path).cluster
    assert cluster is not None
    return cluster.devices


def test_hosts_survive_the_file(tmp_path: Path) -> None:
    hosts = ("here", "there")
    written(tmp_path / "graph.json", hosts)
    assert tuple(device.host for device in devices_in(tmp_path / "graph.json")) == hosts


def test_in_files_without_hosts_devices_named_as_processors_share_one(tmp_path: Path) -> None:
    data = written(tmp_path / "graph.json", ("here", "there"))
    for device in data["cluster"]["devices"]:  # type: ignore[index]
        del device["host"]
    (tmp_path / "graph.json").write_text(json.dumps(data))
    work = read_workload(tmp_path / "graph.json")
    assert work.cluster is not None
    assert contends(work.cluster, work.costs)
    (tmp_path / "graph.json").write_text(json.dumps(data).replace("cpu:", "d"))
    assert [device.host for device in devices_in(tmp_path / "graph.json")] == [None, None]


def test_a_host_that_is_no_name_is_refused(tmp_path: Path) -> None:
    data = written(tmp_path / "graph.json", (None, None))
    data["cluster"]["devices"][1]["host"] = 3  # type: ignore[index]
    (tmp_path / "graph.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match="device 'cpu:1' has the host 3"):
        read_workload(tmp_path / "graph.json")


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


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"out_s_per_byte": 9.0}, "the NIC of 'here' takes 9.0 s a byte"),
        ({"devices": ["cpu:7"]}, "'cpu:7' behind a NIC"),
    ],
)
def test_a_nic_that_cannot_be_is_refused(tmp_path: Path, wrong: dict[str, object], said: str) -> None:
    path = tmp_path / "graph.json"
    _, data = with_nics(path)
    data["cluster"]["nics"][0] |= wrong  # type: ignore[index]
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=said):
        read_workload(path)
