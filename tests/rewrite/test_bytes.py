"""What moves between devices is what the formulas of collectives say: all of it, and through each NIC."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from netsplit.graph import Graph, capture
from netsplit.partition.common.homes import devices_of_nodes
from netsplit.rewrite import OperatorTasks, TaskCut, lowered
from tests.builders import cpus

SIZE = 48
NBYTES = 8 * SIZE * SIZE
MESHES = {"one host": (1, 8), "two hosts of four": (2, 4)}
COLLECTIVES = {
    "all-gather": (0, None),
    "reduce-scatter": ("input.1", 0),
    "all-reduce": ("input.1", None),
    "all-to-all": (0, 1),
    "shift": (0, 0),
}


def cuts(axis: int | str, hosts: int, per_host: int) -> tuple[TaskCut, ...]:
    inner = TaskCut(axis, (SIZE // hosts // per_host,) * per_host)
    return (inner,) if hosts == 1 else (TaskCut(axis, (SIZE // hosts,) * hosts), inner)


def moved(
    maker: int | str, reader: int | None, mesh: tuple[int, int]
) -> tuple[Graph, tuple[OperatorTasks, ...]]:
    """A product cut along an axis, and what reads it, along another, or whole on every device."""
    model = nn.Sequential(nn.Linear(SIZE, SIZE, bias=False), nn.GELU(), nn.Tanh()).double()
    batch = torch.randn(SIZE, SIZE, dtype=torch.float64), torch.randn(SIZE, SIZE, dtype=torch.float64)
    graph = capture(model, nn.MSELoss(), batch)
    copies = mesh[1:] if mesh[0] == 1 else mesh
    read = (
        OperatorTasks("gelu", copies=copies) if reader is None else OperatorTasks("gelu", cuts(reader, *mesh))
    )
    tasks = OperatorTasks("linear", cuts(maker, *mesh), sliced_bytes=0), read
    behind = OperatorTasks("tanh", cuts(0, *mesh))  # reads every copy
    return lowered(graph, (*tasks, behind)), tasks


def sent(graph: Graph, device_of: dict[str, str]) -> Counter[tuple[str, str]]:
    """Bytes from device to device of what lies between both operators: each variable once to a device."""
    between = {
        node.name
        for node in graph
        if node.part is not None and node.part.operator == "linear" and node.kind != "alias"
    }
    total: Counter[tuple[str, str]] = Counter()
    for name in between:
        for variable in (graph.variables[k] for k in graph.nodes[name].outputs):
            readers = [v for v in variable.consumers if v in between or graph.nodes[v].kind == "gelu"]
            for device in {device_of[v] for v in readers} - {device_of[name]}:
                total[device_of[name], device] += variable.nbytes
    return total


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", COLLECTIVES)
def test_bytes_are_the_formula_s(name: str, mesh: str) -> None:
    maker, reader = COLLECTIVES[name]
    hosts, per_host = MESHES[mesh]
    n = hosts * per_host
    graph, _ = moved(maker, reader, (hosts, per_host))
    device_of = devices_of_nodes(graph, cpus(n).names)
    if name == "shift":
        order = [device.name for device in cpus(n).devices]
        for node in graph:
            if node.part is not None and node.part.operator == "gelu":
                device_of[node.name] = order[(order.index(device_of[node.name]) + 1) % n]
    total = sent(graph, device_of)
    into: Counter[str] = Counter()
    nics: Counter[int] = Counter()
    for (source, target), nbytes in total.items():
        into[target] += nbytes
        a, b = (int(device.partition(":")[2]) // per_host for device in (source, target))
        if a != b:
            nics[b] += nbytes
    whole = {
        "all-gather": (n - 1) * NBYTES // n,
        "reduce-scatter": (n - 1) * NBYTES // n,
        "all-reduce": 2 * (n - 1) * NBYTES // n,
        "all-to-all": (n - 1) * NBYTES // n**2,
        "shift": NBYTES // n,
    }[name]
    if hosts == 1:
        assert set(into.values()) == {whole}
        assert len(into) == n
        return
    assert sum(into.values()) <= n * whole
    through = {
        "all-gather": (hosts - 1) * NBYTES // hosts,
        "reduce-scatter": (hosts - 1) * NBYTES // hosts,
        "all-reduce": 2 * (hosts - 1) * NBYTES // hosts,
        "all-to-all": (hosts - 1) * NBYTES // hosts**2,
        "shift": NBYTES // n,
    }[name]
    assert set(nics.values()) == {through}
    assert len(nics) == hosts
