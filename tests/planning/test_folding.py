"""A folded plan is what the simulation of all devices says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from netsplit.cluster.described import ClusterDescription, uniform_cluster
from netsplit.graph import capture
from netsplit.partition.methods.mesh import layer_runs
from netsplit.placement.parallelism import Parallelism
from netsplit.placement.placement import ShardName, Stage
from netsplit.planning.folding import FoldedPlan
from netsplit.profile.predict import predicted_costs
from netsplit.program.schedules import ZBH1, Interleaved, OneFOneB, Schedule
from netsplit.simulate.simulator import Simulator

WIDTH = 512


def network(layers: int = 8) -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(layers)))


def hosts(devices: int = 4, count: int = 2, nic: float | str = "auto") -> ClusterDescription:
    return uniform_cluster(
        [devices, count], [300e9, 25e9], latency=[1e-6, 2e-6], model="A100-SXM4-80GB", nic=nic
    )


def simulated(
    given: Parallelism, schedule: Schedule, cluster: ClusterDescription
) -> tuple[tuple[float, int], tuple[float, int]]:
    """Seconds and the most bytes of a device, folded and of all devices."""
    batch = torch.zeros(256, WIDTH, device="meta"), torch.zeros(256, WIDTH, device="meta")
    graph = capture(network().to("meta"), nn.MSELoss(), batch)
    whole = cluster.cluster("", 1)
    kind = whole.devices[0].kind
    costs = predicted_costs(graph, {kind: cluster.accelerators["d0"]}, 4)
    seconds = {name: each.total_s for name, each in costs.of(kind).nodes.items()}
    layers, _ = layer_runs(graph, seconds, given.pipeline * given.chunks)
    folded = FoldedPlan(layers, graph, costs, whole, given)
    own = Simulator(graph, folded.folded, folded.priced, folded.of_rank(schedule))(folded.placement)
    members: dict[str, list[str]] = {}
    for name, device in folded.placement.device_of.items():
        members.setdefault(device, []).append(name)
    stages = tuple(Stage(tuple(names), folded.placement.alike[p]) for p, names in members.items())
    placement = replace(folded.placement, alike={}, stages=stages)
    full = Simulator(graph, whole, costs, replace(schedule, shard=given.shard))(placement)
    return (own.iteration_s, max(own.peak_bytes.values())), (
        full.iteration_s,
        max(full.peak_bytes.values()),
    )


@pytest.mark.parametrize("shard", ["none", "optimizer", "gradients", "parameters"])
@pytest.mark.parametrize("schedule", [OneFOneB(16), Interleaved(16), ZBH1(16)])
def test_as_all_devices_are_simulated(schedule: Schedule, shard: ShardName) -> None:
    chunks = 2 if schedule.name == "interleaved_1f1b" else 1
    given = Parallelism(data=4, pipeline=2, shard=shard, chunks=chunks)
    own, full = simulated(given, schedule, hosts(nic=400e9))
    assert own == pytest.approx(full, rel=0.02)
