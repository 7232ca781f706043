"""The JSON of dnn-partitioning: loads as its authors define them, its own cluster, mistakes by place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from netsplit.errors import InfeasibleError, NetSplitError
from netsplit.formats.msr import read_msr
from netsplit.partition.common.instance import Instance
from netsplit.placement.placement import Placement, SolverReport
from netsplit.planning.workload import Workload


def task(i: int, ms: float, **more: Any) -> dict[str, Any]:
    return {"id": i, "cpuLatency": 10 * ms, "fpgaLatency": ms, "size": 100.0 * i, **more}


def edge(u: int, v: int, cost: float, **more: Any) -> dict[str, Any]:
    return {"sourceId": u, "destId": v, "cost": cost, **more}


def data(nodes: Any = None, edges: Any = None, **more: Any) -> dict[str, Any]:
    """Node 30 feeds 10 and 20, 10 feeds 40; the ids are in no order."""
    some = [task(10, 1.0), task(20, 2.0), task(30, 4.0), task(40, 8.0)]
    links = [edge(30, 10, 0.25), edge(30, 20, 0.25), edge(10, 40, 0.5)]
    whole = {"maxSizePerFPGA": 5000.0, "maxFPGAs": 2, "maxCPUs": 1}
    return (
        whole | {"nodes": some if nodes is None else nodes, "edges": links if edges is None else edges} | more
    )


def read(record: dict[str, Any] | None = None) -> Workload:
    record = data() if record is None else record
    return read_msr(record, "g.json", "g")


def loads(work: Workload, where: dict[str, str]) -> dict[str, float]:
    problem = work.problem(objective="max_load")
    instance = Instance.of(problem)
    loads_s = instance.loads(instance.encode(where)) / work.unit_s
    return dict(zip(instance.devices, loads_s.tolist(), strict=True))


def test_loads_are_those_of_the_authors_by_hand() -> None:
    # acc0: 4 + 2, and 0.25 for what 30 sends. acc1: 8, and 0.5 for what it reads. The CPU pays no transfer.
    where = {"30": "acc0", "20": "acc0", "10": "cpu0", "40": "acc1"}
    assert loads(read(), where) == pytest.approx({"acc0": 6.25, "acc1": 8.5, "cpu0": 10.0})


def test_colours_share_a_device() -> None:
    nodes = [task(3, 1, colorClass=7), task(1, 1, colorClass=8), task(2, 1, colorClass=7), task(4, 1)]
    assert read(data(nodes, [edge(2, 3, 1.0)])).graph.colocated == (("2", "3"),)


def test_real_bytes_where_costs_follow_sizes() -> None:
    edges = [edge(30, 10, 0.25, size=500), edge(30, 20, 0.25, size=500), edge(10, 40, 0.5, size=1000)]
    work = read(data(edges=edges))
    assert [work.graph.variables[k].nbytes for k in ("30", "10", "40")] == [500, 1000, 0]
    assert not work.remarks
    assert loads(work, dict.fromkeys(("30", "20", "10"), "acc0") | {"40": "acc1"})["acc1"] == pytest.approx(
        8.5
    )


def test_a_node_that_accelerators_cannot_run_is_never_better_there() -> None:
    nodes = [task(10, 1.0), task(20, 2.0, supportedOnFpga=0)]
    work = read(data(nodes, [edge(10, 20, 0.5)]))
    assert work.unsupported == {"20"}
    problem = work.problem()
    instance = Instance.of(problem)
    forbidden, cpu = instance.forward_s[instance.names.index("20"), [0, 2]]
    assert np.isfinite(forbidden)
    assert forbidden > 0.010 + cpu  # all work on the CPU
    rank = {"10": 0, "20": 1}
    wrong = Placement("m", {"10": "acc0", "20": "acc1"}, rank, SolverReport("heuristic", 0.0))
    with pytest.raises(InfeasibleError, match="puts node 20 on 'acc1'"):
        work.check_supported(problem, wrong)


def broken(**changes: Any) -> dict[str, Any]:
    record = data()
    record["nodes"][1] |= changes
    return {**record, "nodes": [{k: v for k, v in n.items() if v is not ...} for n in record["nodes"]]}


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (broken(fpgaLatency=...), ["nodes[1]", "'fpgaLatency' is missing"]),
        (broken(id=10), ["nodes[1]", "node id 10", "twice"]),
        (data(edges=[edge(10, 40, 1), edge(10, 50, 1)]), ["edges[1]", "names 50", "not a node"]),
        (
            data(edges=[edge(10, 20, 1), edge(20, 30, 1), edge(30, 10, 1)]),
            ["edges[", "cycle of 3 nodes", "20"],
        ),
    ],
)
def test_a_mistake_is_named_with_its_place(record: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(NetSplitError) as caught:
        read(record)
    text = str(caught.value)
    assert text.startswith("g.json")
    assert "\n" not in text
    assert all(word in text for word in words), text
