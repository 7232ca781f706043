"""A folded plan is what the simulation of all devices says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from netsplit.cluster.described import ClusterDescription, uniform_cluster
from netsplit.graph import capture
from netsplit.partition import Mesh3D
from netsplit.partition.methods.mesh import layer_runs
from netsplit.placement.parallelism import Parallelism
from netsplit.placement.placement import ShardName
from netsplit.planning.folding import FoldedPlan, rank_graph
from netsplit.planning.workload import Workload
from netsplit.profile.predict import predicted_costs
from netsplit.program.schedules import ZBH1, Interleaved, OneFOneB, Schedule
from netsplit.rewrite import applied
from netsplit.rewrite.megatron import tensor_parallel_tasks
from netsplit.rewrite.one_rank import rank_move
from netsplit.simulate.simulator import Simulator
from netsplit.simulate.timeline import Timeline
from tests.language_models import LANGUAGE_MODELS, NextTokens, tokens

WIDTH = 512


def hosts(nic: float | str, collectives: str) -> ClusterDescription:
    """Two hosts of four devices."""
    return uniform_cluster(
        [4, 2], [300e9, 25e9], latency=[1e-6, 2e-6], model="A100-SXM4-80GB", nic=nic, collectives=collectives
    )  # type: ignore[arg-type]


def timelines(
    given: Parallelism, schedule: Schedule, cluster: ClusterDescription
) -> tuple[Timeline, Timeline]:
    """Folded, and of all devices as the method `mesh` places them."""
    layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(8))
    batch = torch.zeros(256, WIDTH, device="meta"), torch.zeros(256, WIDTH, device="meta")
    graph = capture(nn.Sequential(*layers).to("meta"), nn.MSELoss(), batch)
    whole = cluster.cluster("", 1)
    kind = whole.devices[0].kind
    costs = predicted_costs(graph, {kind: cluster.accelerators["d0"]}, 4)
    seconds = {name: each.total_s for name, each in costs.of(kind).nodes.items()}
    runs, _ = layer_runs(graph, seconds, given.pipeline * given.chunks)
    folded = FoldedPlan(runs, graph, costs, whole, given)
    own = Simulator(graph, folded.folded, folded.priced, folded.of_rank(schedule))(folded.placement)
    full = schedule if given.recompute == "none" else schedule.recomputing(given.recompute)
    problem = Workload("", graph, costs).problem(
        whole, "simulated", schedule=replace(full, shard=given.shard), memory="lifetimes"
    )
    method = Mesh3D(given.data, given.tensor, given.pipeline, chunks=given.chunks)
    return own, problem.the_simulator(method.partition(problem))


@pytest.mark.parametrize("shard", ["none", "optimizer", "gradients", "parameters"])
@pytest.mark.parametrize("schedule", [OneFOneB(16), Interleaved(16), ZBH1(16)])
def test_as_all_devices_are_simulated(schedule: Schedule, shard: ShardName) -> None:
    chunks = 2 if schedule.name == "interleaved_1f1b" else 1
    given = Parallelism(
        data=4, pipeline=2, shard=shard, chunks=chunks, recompute="full" if shard == "optimizer" else "none"
    )
    own, full = timelines(given, schedule, hosts(nic=400e9, collectives="nccl"))
    assert own.iteration_s == pytest.approx(full.iteration_s, rel=0.02)
    assert max(own.peak_bytes.values()) == pytest.approx(max(full.peak_bytes.values()), rel=0.02)


def test_ranks_that_share_a_nic_wait_for_one_another() -> None:
    given, wide = Parallelism(data=4, pipeline=2), hosts(nic=100e9, collectives="ring")
    fast = timelines(given, OneFOneB(16), wide)[0].iteration_s
    slow = timelines(given, OneFOneB(16), hosts(nic="auto", collectives="ring"))[0].iteration_s
    assert slow > 1.1 * fast


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_a_rank_has_what_the_first_of_all_parts_has(name: str, sequence: bool) -> None:
    graph = capture(LANGUAGE_MODELS[name](), NextTokens(), tokens(4))
    own = rank_graph(graph, 2, sequence)
    parts = applied(graph, tensor_parallel_tasks(graph, 2, sequence))
    first = 0
    for part in parts:
        if part.part is None or part.part.moves or part.part.place != (0,):
            continue
        node, first = own.nodes[part.part.operator], first + 1
        shapes = [[g.variables[k].shape for k in n.outputs if k] for g, n in ((own, node), (parts, part))]
        assert shapes[0] == shapes[1], node.name
    assert first > len(graph) / 2


def test_a_weight_of_two_stages_is_summed_over_both() -> None:
    graph = capture(LANGUAGE_MODELS["tied"](), NextTokens(), tokens(4))
    cluster = hosts(nic=400e9, collectives="nccl")
    whole = cluster.cluster("", 1)
    costs = predicted_costs(graph, {whole.devices[0].kind: cluster.accelerators["d0"]}, 4)
    runs, _ = layer_runs(graph, dict.fromkeys(graph.nodes, 1.0), 2)
    folded = FoldedPlan(runs, graph, costs, whole, Parallelism(data=2, pipeline=2))
    simulator = Simulator(graph, folded.folded, folded.priced, OneFOneB(2))
    program = simulator.program(folded.placement)
    assert program.holders["words.weight"] == ("d0", "d1", "d2", "d3")
    assert program.summed(("d0", "d1", "d2", "d3")) == ("words.weight",)


def test_what_ranks_move_is_megatrons() -> None:
    graph = capture(LANGUAGE_MODELS["llama"](), NextTokens(), tokens(4))
    plain = [move for node in rank_graph(graph, 2, False) if (move := rank_move(node))]
    of_layers = [(each.forward, each.backward) for each in plain]
    assert of_layers.count(("identity", "all_reduce")) >= 4  # into two products of each of two layers
    assert of_layers.count(("all_reduce", "identity")) >= 4  # out of them
    pieces = [move for node in rank_graph(graph, 2, True) if (move := rank_move(node))]
    conjugates = [(each.forward, each.backward) for each in pieces]
    assert conjugates.count(("all_gather", "reduce_scatter")) >= 4
    assert conjugates.count(("reduce_scatter", "all_gather")) >= 4
