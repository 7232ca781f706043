"""Workloads: the reader is chosen by content, and a problem has the costs of its cluster."""

import json
from pathlib import Path

import pytest

from netsplit.cluster.described import DescribedDevice, LinkCost, described_cluster, uniform_cluster
from netsplit.errors import ConfigError, NetSplitError
from netsplit.formats import read_pipedream
from netsplit.formats.own import save_workload
from netsplit.formats.read import read_workload
from netsplit.partition.objectives import StageTime
from netsplit.placement.placement import Placement, SolverReport
from netsplit.planning.workload import Workload
from netsplit.program import GPipe, SingleBatch

COSTS = "forward_compute_time={}, backward_compute_time={}, activation_size={}, parameter_size={}"
PIPEDREAM = "\n".join(
    [
        "a -- Input -- " + COSTS.format("9.0", "0.0", "10", "0"),
        "b -- Conv -- " + COSTS.format("1.0", "2.0", "1000", "300"),
        "c -- Loss -- " + COSTS.format("0.5", "0.5", "4", "0"),
        "\ta -- b",
        "\tb -- c",
    ]
)
TASK = {"id": 1, "cpuLatency": 1, "fpgaLatency": 1, "size": 1}
MSR = {"maxSizePerFPGA": 9, "maxFPGAs": 1, "maxCPUs": 0, "nodes": [TASK], "edges": []}


def work() -> Workload:
    return read_pipedream(PIPEDREAM, "w.txt", "w")


def on(work: Workload, *devices: str) -> Placement:
    nodes = list(work.graph.nodes)
    rank = {node: i for i, node in enumerate(nodes)}
    return Placement("hand", dict(zip(nodes, devices, strict=True)), rank, SolverReport("heuristic", 0.0))


@pytest.mark.parametrize("name", ["g.json", "g.txt", "g", "g.md"])
def test_the_format_is_told_by_content_not_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("\ufeff\n" + PIPEDREAM if name == "g.md" else PIPEDREAM)
    assert read_workload(tmp_path / name).period == StageTime()
    (tmp_path / name).write_text("  \n" + json.dumps(MSR))
    assert read_workload(tmp_path / name).cluster is not None
    save_workload(work(), tmp_path / name)
    assert read_workload(tmp_path / name) == work()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["the file is empty"]),
        (b"\x89PNG\r\n\x1a\n\x00", ["line 1", "not text"]),
        (b"[1, 2]", ["not a graph file"]),
        (b'{"nodes": [\n{"id": 1},\n', ["line 3", "not JSON"]),
        (b"[" * 100_000, ["cannot be read as JSON"]),
        (b'{"format": "other"}', ["netsplit-graph"]),
        (b'{"nodes": []}', ["'maxFPGAs' is missing"]),
    ],
)
def test_a_file_that_is_no_graph_gets_one_sentence(tmp_path: Path, content: bytes, words: list[str]) -> None:
    (tmp_path / "g").write_bytes(content)
    with pytest.raises(NetSplitError) as caught:
        read_workload(tmp_path / "g")
    text = str(caught.value)
    assert str(tmp_path / "g") in text
    assert "\n" not in text
    assert all(word in text for word in words), text


def test_a_file_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(NetSplitError, match="does not exist"):
        read_workload(tmp_path / "none")
    with pytest.raises(NetSplitError, match="Is a directory"):
        read_workload(tmp_path)


def test_seconds_follow_speeds_and_fractions_follow_the_need() -> None:
    # need: alpha 2 x 300, and (1 + 1) x (10 + 1000 + 4) bytes.
    devices = [DescribedDevice("fast", 1.0, "50%"), DescribedDevice("slow", 0.5, "100%")]
    problem = work().problem(described_cluster("mix", devices, LinkCost(1e6)))
    assert [device.capacity_bytes for device in problem.cluster.devices] == [1314, 2628]
    assert problem.costs.total_s("b", "accelerator") == pytest.approx(0.003)
    assert problem.costs.total_s("b", problem.cluster.device("slow").kind) == pytest.approx(0.006)


def test_evaluate_simulates_forward_transfer_and_backward_by_hand() -> None:
    problem = work().problem(uniform_cluster(2, 1e6, "100%", latency=0.0))
    assert problem.simulator is not None
    # 1 forward, 1 ms for 1000 bytes, 0.5 + 0.5, 1 ms for the gradient, 2 backward
    assert problem.simulator(on(work(), "d0", "d0", "d1")).iteration_s == pytest.approx(0.006)
    # nothing comes back to the input; 10 bytes take 0.01 ms
    assert problem.simulator(on(work(), "d0", "d1", "d1")).iteration_s == pytest.approx(0.00401)


def test_micro_batches_in_flight_count_where_the_schedule_is_asked_for() -> None:
    cluster = uniform_cluster(1, 1, "100%")
    assert work().problem(cluster, "simulated", schedule=GPipe(3)).in_flight == 3
    assert work().problem(cluster, "simulated", schedule=GPipe(3)).cluster.devices[0].capacity_bytes == (
        2 * 300 + 4 * 1014
    )
    assert work().problem(cluster, "latency", schedule=GPipe(3)).in_flight == 1


def test_a_problem_without_devices_says_how_to_give_them() -> None:
    with pytest.raises(ConfigError, match=r"cluster=uniform cluster\.devices=4"):
        work().problem()


def test_a_kind_without_seconds_is_named() -> None:
    cluster = uniform_cluster(1, 1, 1).cluster("tpu", 0)
    with pytest.raises(ConfigError, match=r"'d0' is of kind 'tpu'.*accelerator"):
        work().problem(cluster)


def test_a_cpu_only_node_needs_a_cpu(tmp_path: Path) -> None:
    file = tmp_path / "g.json"
    file.write_text(json.dumps(MSR | {"maxCPUs": 1, "nodes": [TASK | {"supportedOnFpga": 0}]}))
    with pytest.raises(ConfigError, match="node 1 of 'g' runs on CPUs only"):
        read_workload(file).problem(uniform_cluster(2, 1, "100%"))


BRANCHES = "\n".join(
    [
        "x -- Conv -- " + COSTS.format("1.0", "0.0", "1000000", "0"),
        "y -- Conv -- " + COSTS.format("10.0", "0.0", "0", "0"),
        "z -- Conv -- " + COSTS.format("1.0", "0.0", "0", "0"),
        "l -- Loss -- " + COSTS.format("0.5", "0.0", "0", "0"),
        *("\tx -- y", "\tx -- z", "\ty -- l", "\tz -- l"),
    ]
)


@pytest.mark.parametrize(
    ("overlap", "latency", "milliseconds"), [(True, 0.0, 11.5), (False, 0.0, 12.5), (False, 0.003, 15.5)]
)
def test_transfers_stop_computing_where_they_do_not_overlap(
    overlap: bool, latency: float, milliseconds: float
) -> None:
    """x, y and l on one device, z on the other: 1 ms of transfer, and its latency, while y computes."""
    graph = read_pipedream(BRANCHES, "w.txt", "w")
    cluster = uniform_cluster(2, 1e9, "100%", latency=latency, overlap=overlap)
    problem = graph.problem(cluster, "simulated", schedule=SingleBatch(), passes="forward")
    assert problem.simulator is not None
    where = {"y": "d0", "z": "d1", "x": "d0", "l": "d0"}
    timeline = problem.simulator(on(graph, *(where[name] for name in graph.graph.nodes)))
    assert 1e3 * timeline.iteration_s == pytest.approx(milliseconds)
