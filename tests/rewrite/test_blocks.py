"""Wide layers of a transformer on described servers: sums in slices, norms on every device."""

from __future__ import annotations

from functools import cache
from math import prod

import pytest
import torch
from torch import Tensor, nn

from netsplit.cluster.catalogue import accelerator
from netsplit.cluster.cluster import Cluster
from netsplit.cluster.described import uniform_cluster
from netsplit.graph import Graph, capture
from netsplit.graph.quotient import topological_priority
from netsplit.partition import Placement, SolverReport
from netsplit.partition.common.homes import devices_of_nodes
from netsplit.profile.predict import predicted_costs
from netsplit.program import SingleBatch
from netsplit.rewrite import OperatorTasks, TaskCut, lowered
from netsplit.simulate.simulator import Simulator

WIDTH, ROWS, BLOCKS = 1024, 4096, 4
MODEL = "V100-SXM2-16GB"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        narrowed: Tensor = self.narrow(nn.functional.gelu(self.widen(self.norm(x))))
        return x + narrowed


@cache
def blocks() -> Graph:
    with torch.device("meta"):
        model = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        batch = torch.empty(ROWS, WIDTH), torch.empty(ROWS, WIDTH)
    return capture(model, nn.MSELoss(), batch)


def tasks_on(mesh: tuple[int, ...], whole_between: bool = False) -> list[OperatorTasks]:
    """Columns and rows; norms and sums on every device, or, with sums in one piece, on one."""

    def cuts(axis: int | str) -> tuple[TaskCut, ...]:
        ends = [4 * WIDTH // prod(mesh[: i + 1]) for i in range(len(mesh))]
        return tuple(TaskCut(axis, (size,) * count) for size, count in zip(ends, mesh, strict=True))

    axis_of = {"gelu": 1, "widen": 1, "narrow": "input.1"}
    made = []
    for node in blocks():
        axis = axis_of.get(node.kind, axis_of.get(node.module.rpartition(".")[2]))
        if axis is not None:
            least = 1 << 60 if whole_between else 1 << 15
            made.append(OperatorTasks(node.name, cuts(axis), sliced_bytes=least))
        elif node.kind in ("layer_norm", "add") and not whole_between:
            made.append(OperatorTasks(node.name, copies=mesh))
    return made


def simulated_s(cluster: Cluster, tasks: list[OperatorTasks]) -> tuple[float, float]:
    """An iteration; and what a device would take to compute its part, with each sum as a ring of all."""
    graph, kind = lowered(blocks(), tasks), cluster.devices[0].kind
    costs = predicted_costs(graph, {kind: accelerator(MODEL)}, 2)
    order, report = topological_priority(graph, graph.position), SolverReport("heuristic", 0.0)
    device_of = devices_of_nodes(graph, cluster.names)
    placement = Placement("blocks", device_of, order, report, rewrites=graph.rewrites)
    iteration_s = Simulator(graph, cluster, costs, SingleBatch())(placement).iteration_s
    computing = [node.name for node in graph if node.part is not None and not node.part.moves]
    work_s = sum(costs.total_s(name, kind) for name in computing) / len(cluster.devices)
    devices = [device.name for device in cluster.devices]
    return iteration_s, work_s + 2 * BLOCKS * cluster.ring_seconds(4 * ROWS * WIDTH, devices)


SERVERS = {
    (8,): uniform_cluster(8, 45e9, latency=1e-5, model=MODEL),
    (2, 8): uniform_cluster([8, 2], [45e9, 1.15e9], latency=[1e-5, 5e-5], model=MODEL),
}


@pytest.mark.parametrize("mesh", SERVERS)
def test_sums_in_slices_take_no_longer_than_rings(mesh: tuple[int, ...]) -> None:
    """13.4 ms on one server, 128 on two; with what lies between on one device 18.4, and 248 handed on."""
    cluster = SERVERS[mesh].cluster("accelerator", 0)
    sliced_s, ring_s = simulated_s(cluster, tasks_on(mesh))
    star_s, _ = simulated_s(cluster, tasks_on(mesh, whole_between=True))
    assert sliced_s <= 1.1 * ring_s
    assert sliced_s == pytest.approx({1: 13.4e-3, 2: 128e-3}[len(mesh)], rel=0.02)
    assert star_s == pytest.approx({1: 18.4e-3, 2: 0.248}[len(mesh)], rel=0.02)
