"""The JSON of dnn-partitioning: tasks with milliseconds on an accelerator ("FPGA") and on a CPU.

Source: Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020
(github msr-fiddle/dnn-partitioning).

A file carries its own cluster: accelerators that reach one another through host memory, and CPUs. An edge's
`cost` is the milliseconds to move its source's output over one accelerator's port to or from host memory.

    acc0 ──port──► host memory ──port──► acc1      one hop to or from a CPU, two hops between accelerators
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from netsplit.cluster.cluster import Cluster, Device, Link
from netsplit.errors import NetSplitError
from netsplit.formats.text import ProfiledTask, checked_number, reading, task_graph, topological
from netsplit.planning.workload import ACCELERATOR, CPU, Workload
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds

__all__ = ["MOST_BYTES", "PSEUDO_BYTES", "read_msr"]

PSEUDO_BYTES = 1e9
"""Bytes for one millisecond of transfer where the file gives no sizes, or too coarse ones."""

MOST_BYTES = 2**50
"""Capacity of a CPU, which the format gives no limit."""

UNIT_S = 1e-3
MOST_DEVICES = 1024
COARSE = 1e-7  # of all costs: what rounding one variable to whole bytes may change
TOLERANCE = 1e-9  # relative; costs that follow sizes do so to the last digits of a double


@dataclass(frozen=True)
class _FileTask:
    name: str
    accelerator: float  # milliseconds
    cpu: float  # milliseconds
    supported: bool  # on an accelerator
    backward: bool
    color: str | None  # tasks of one colour share a device; None: free
    size: int


def read_msr(data: dict[str, Any], where: str, name: str) -> Workload:
    """The workload of a parsed file.

    Every node is a forward task, also those that the file calls backward nodes, and makes one variable
    without gradient. Its memory is its `size` alone (alpha 1, variables count 0 times). A node that no
    accelerator supports gets more seconds there than all the work takes on CPUs.

    Args:
        where: the file, for errors.

    Raises:
        NetSplitError: the first thing that is wrong, by its place.
    """
    with reading(where):
        counts = {key: _whole(data, key, where) for key in ("maxFPGAs", "maxCPUs")}
        most = checked_number(data["maxSizePerFPGA"], "maxSizePerFPGA", where, most=math.inf)
        tasks = _tasks(list(data["nodes"]), where)
        edges, costs, sizes, remarks = _edges(list(data["edges"]), tasks, where)
    if not sum(counts.values()):
        raise NetSplitError(f"{where}: maxFPGAs and maxCPUs are both 0: the work needs a device.")
    capacity = min(MOST_BYTES, round(most))
    order = topological(
        list(tasks), list(edges), {ends: f"{where}, edges[{i}]" for ends, i in edges.items()}, where
    )
    nbytes, seconds_per_byte, measured = _bytes(costs, sizes)
    if not measured and any(costs.values()):
        remarks.append("transfer costs do not follow sizes: variables get bytes that give their cost")
    unsupported = frozenset(task for task in tasks if not tasks[task].supported)
    if unsupported and not counts["maxCPUs"]:
        first = next(task for task in tasks if task in unsupported)
        raise NetSplitError(
            f"{where}: node {first} cannot run on an accelerator, but maxCPUs is 0: no device can run it."
        )
    forbidden = 2 * sum(task.cpu + task.accelerator for task in tasks.values()) + 1
    colors: dict[str, list[str]] = {}
    for v in order:
        if (color := tasks[v].color) is not None:
            colors.setdefault(color, []).append(v)
    ops = {v: "msr.backward" if task.backward else "msr.forward" for v, task in tasks.items()}
    graph = task_graph(
        order,
        list(edges),
        {
            v: ProfiledTask(ops[v], each.name, nbytes.get(v, 0), each.size, "size")
            for v, each in tasks.items()
        },
        tuple(tuple(together) for together in colors.values() if len(together) > 1),
    )
    return Workload(
        name=name,
        graph=graph,
        costs=Costs(
            {
                ACCELERATOR: _forward(
                    {v: forbidden if v in unsupported else tasks[v].accelerator for v in order}
                ),
                CPU: _forward({v: tasks[v].cpu for v in order}),
            },
            alpha=1,
            variable_copies=0,
        ),
        cluster=_cluster(name, counts["maxFPGAs"], counts["maxCPUs"], capacity, seconds_per_byte),
        unit="ms",
        unit_s=UNIT_S,
        backward_nodes=frozenset(v for v in order if tasks[v].backward),
        unsupported=unsupported,
        remarks=tuple(remarks),
    )


def _forward(milliseconds: dict[str, float]) -> DeviceCosts:
    return DeviceCosts({v: NodeSeconds(each * UNIT_S, 0.0) for v, each in milliseconds.items()})


def _tasks(items: list[Any], where: str) -> dict[str, _FileTask]:
    tasks: dict[str, _FileTask] = {}
    for i, item in enumerate(items):
        place = f"{where}, nodes[{i}]"
        with reading(place):
            key, color = str(item["id"]), item.get("colorClass")
            if key in tasks:
                raise NetSplitError(f"{place}: node id {key} appears twice.")
            tasks[key] = _FileTask(
                name=str(item.get("name", key)),
                accelerator=checked_number(item["fpgaLatency"], "fpgaLatency", place),
                cpu=checked_number(item["cpuLatency"], "cpuLatency", place),
                supported=_flag(item, "supportedOnFpga", True, place),
                backward=_flag(item, "isBackwardNode", False, place),
                color=None if color is None else str(color),
                size=round(checked_number(item["size"], "size", place)),
            )
    if not tasks:
        raise NetSplitError(f"{where}: the file has no nodes.")
    return tasks


def _edges(
    items: list[Any], tasks: dict[str, _FileTask], where: str
) -> tuple[dict[tuple[str, str], int], dict[str, float], dict[str, float | None], list[str]]:
    """(u, v) -> index in the file; by source: milliseconds, and bytes (None: missing or unequal); remarks."""
    edges: dict[tuple[str, str], int] = {}
    costs: dict[str, float] = {}
    sizes: dict[str, float | None] = {}
    uneven: dict[str, None] = {}
    for i, item in enumerate(items):
        place = f"{where}, edges[{i}]"
        with reading(place):
            ends = str(item["sourceId"]), str(item["destId"])
            cost = checked_number(item["cost"], "cost", place)
            size = checked_number(item["size"], "size", place) if "size" in item else None
        for end in ends:
            if end not in tasks:
                raise NetSplitError(f"{place}: the edge names {end}, which is not a node of the file.")
        u = ends[0]
        if cost != costs.get(u, cost):
            uneven[u] = None
        costs[u] = max(cost, costs.get(u, 0.0))
        sizes[u] = size if sizes.get(u, size) == size else None
        edges.setdefault(ends, i)
    remarks = []
    if uneven:
        first = ", ".join(list(uneven)[:5])
        remarks.append(
            f"edges out of one node differ in cost at {len(uneven)} nodes ({first}): the largest is used"
        )
    return edges, costs, sizes, remarks


def _bytes(costs: dict[str, float], sizes: dict[str, float | None]) -> tuple[dict[str, int], float, bool]:
    """Bytes of every variable, seconds per byte of a port, and whether the bytes are the file's own.

    A variable's bytes are its cost at the median rate of the file: loads are those of the costs, and bytes
    still make sense on another cluster.
    """
    pairs = [(cost, sizes[u]) for u, cost in costs.items()]
    rates = sorted(size / cost for cost, size in pairs if size and cost > 0)
    per_ms = rates[len(rates) // 2] if rates else PSEUDO_BYTES
    if any(
        abs(round(cost * per_ms) - cost * per_ms) > COARSE * per_ms * sum(costs.values()) for cost, _ in pairs
    ):
        per_ms, rates = PSEUDO_BYTES, []
    own = bool(rates) and all(
        size is not None and abs(size - cost * per_ms) <= TOLERANCE * size for cost, size in pairs
    )
    return {u: round(cost * per_ms) for u, cost in costs.items()}, UNIT_S / per_ms, own


def _cluster(name: str, accelerators: int, cpus: int, capacity: int, seconds_per_byte: float) -> Cluster:
    port = Link(0.0, seconds_per_byte)
    devices = [Device(f"acc{i}", ACCELERATOR, capacity, port=port) for i in range(accelerators)]
    devices += [Device(f"cpu{i}", CPU, MOST_BYTES, port=Link(0.0, 0.0)) for i in range(cpus)]
    links = {
        (p.name, q.name): Link(0.0, sum(d.port.seconds_per_byte for d in (p, q) if d.port))
        for p in devices
        for q in devices
        if p is not q
    }
    return Cluster(name, tuple(devices), links)


def _whole(data: dict[str, Any], key: str, where: str) -> int:
    number = checked_number(data[key], key, where)
    if number != round(number) or number > MOST_DEVICES:
        raise NetSplitError(f"{where}: {key} is {number:g}: it must be a whole number up to {MOST_DEVICES}.")
    return round(number)


def _flag(item: dict[str, Any], key: str, default: bool, place: str) -> bool:
    value = item.get(key, default)
    if value not in (0, 1):
        raise NetSplitError(f"{place}: {key} is {value!r}: it must be true or false.")
    return bool(value)
