"""Tensor x pipeline x data parallelism trains what plain PyTorch trains, under every kind of schedule."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from torch import nn

from netsplit.errors import ConfigError
from netsplit.formats.placements import read_placement
from netsplit.graph import capture, draws, initial_values
from netsplit.graph.ir import Graph
from netsplit.partition import Problem, SimulatedIteration
from netsplit.partition.methods.mesh import Mesh3D, layer_runs
from netsplit.planning.decide import decide
from netsplit.planning.plan import Plan
from netsplit.program import Program, Schedule
from netsplit.program.instructions import Backward, Forward
from netsplit.program.schedules import ZBH1, ZBV, GPipe, Interleaved, OneFOneB, Searched, SingleBatch
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.local import LocalRuntime
from netsplit.simulate.simulator import Simulator
from tests.builders import costs_of, cpus
from tests.cover import covering
from tests.language_models import LANGUAGE_MODELS, GptLike, NextTokens, tokens
from tests.nets import CASES, DRAWING, DROPPED, Case
from tests.nets import SGD as CASES_SGD
from tests.runtime.equivalence.running import assert_same, batches_of, captured_for, local
from tests.runtime.references import Trained, plain_loop
from tests.workers import Pools

EXACT = 1e-12
"""Relative: sums of a few dozen terms in another order, each rounded to 2^-53."""
SGD = partial(torch.optim.SGD, lr=0.5, momentum=0.9)
SCHEDULES: dict[str, tuple[Schedule, int]] = {  # with the chunks that they are for
    "1f1b": (OneFOneB(4), 1),
    "gpipe": (GPipe(4), 1),
    "interleaved_1f1b": (Interleaved(4), 2),
    "zb_h1": (ZBH1(4), 1),
    "zb_v": (ZBV(4), 2),
    "1f1b+delayed": (OneFOneB(4, delay_weights="minimal"), 1),
    "searched": (Searched(4), 1),
}


MODELS = LANGUAGE_MODELS | {"dropout": partial(GptLike, dropout=0.2)}


def fresh(name: str) -> nn.Module:
    torch.default_generator.manual_seed(7)
    return MODELS[name]().double()


@cache
def graph_of(name: str, samples: int) -> Graph:
    return capture(fresh(name), NextTokens(), tuple(each[:samples] for each in tokens()))


def planned(name: str, mesh: Mesh3D, schedule: Schedule) -> Plan:
    return planned_of(graph_of(name, 8 // schedule.microbatches), mesh, schedule)


def planned_of(graph: Graph, mesh: Mesh3D, schedule: Schedule) -> Plan:
    costs, devices = costs_of(graph), cpus(mesh.data * mesh.tensor * mesh.pipeline)
    simulator = Simulator(graph, devices, costs, schedule)
    problem = Problem(graph, costs, devices, simulator=simulator, objective=SimulatedIteration())
    return decide(problem, mesh, room=False)


def trained(name: str, runtime: LocalRuntime | DistributedRuntime) -> Trained:
    inputs, targets = tokens()
    losses = [runtime.train_batch(inputs.roll(n, 0), targets) for n in range(2)]
    return Trained(losses, runtime.state())


@cache
def plain(name: str, samples: int) -> Trained:
    inputs, targets = tokens()
    batches = [((inputs.roll(n, 0),), targets) for n in range(2)]
    graph = graph_of(name, samples)
    return plain_loop(
        fresh(name), NextTokens(), batches, samples, SGD, drawing=lambda n, i: draws(graph, 0, n, i)
    )


def require_same(own: Trained, wanted: Trained) -> None:
    assert own.losses == pytest.approx(wanted.losses, rel=EXACT)
    for k, tensor in wanted.state.items():
        if k in own.state:  # of tied weights the program has one name
            assert float((own.state[k] - tensor).abs().max()) <= EXACT * float(tensor.abs().max()), k


@covering(
    name=MODELS,
    schedule=SCHEDULES,
    sequence=[False, True],
    shard=["none", "optimizer", "gradients", "parameters"],
    recompute=[False, True, "selective", "full"],
)
def test_a_mesh_trains_what_plain_pytorch_trains(
    name: str, schedule: str, sequence: bool, shard: str, recompute: object
) -> None:
    order, chunks = SCHEDULES[schedule]
    order = replace(order, shard=shard, recompute=recompute)  # type: ignore[type-var]
    mesh = Mesh3D(2, 2, 2, sequence, chunks, v=schedule == "zb_v")
    plan = planned(name, mesh, order)
    program = plan.simulated[0]
    runtime = LocalRuntime(program, plan.problem.cluster, initial_values(fresh(name), program.graph), SGD)
    require_same(trained(name, runtime), plain(name, 2))


@covering(case=[*CASES.values(), DROPPED, DRAWING], degrees=[(2, 2), (2, 1), (1, 3), (3, 2)])
def test_models_of_any_kind_train_on_a_mesh(case: Case, degrees: tuple[int, int]) -> None:
    """Pictures, statistics, constants, tied weights, what is written in place, what draws."""
    graph = captured_for(case, OneFOneB(4))
    program = planned_of(graph, Mesh3D(1, *degrees, sequence=True), OneFOneB(4)).simulated[0]
    wanted = plain_loop(
        case.fresh(), case.loss, batches_of(case), 2, CASES_SGD, drawing=lambda n, i: draws(graph, 0, n, i)
    )
    assert_same(local(program, case, batches_of(case)), wanted)


def test_a_mesh_comes_back_from_its_file(tmp_path: Path) -> None:
    plan = planned("gpt", Mesh3D(2, 2, 2), OneFOneB(4, shard="gradients"))
    file = tmp_path / "placement.json"
    file.write_text(json.dumps(plan.placement.to_dict()))
    placement = read_placement(file, plan.asked)
    assert placement == replace(plan.placement, report=placement.report)


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_a_mesh_trains_on_worker_processes(pools: Pools, name: str) -> None:
    schedule = OneFOneB(4, shard="parameters") if name == "gpt" else ZBH1(4)
    program = planned(name, Mesh3D(2, 2, 2, sequence=name == "llama"), schedule).simulated[0]
    runtime = DistributedRuntime(program, pools(8), initial_values(fresh(name), program.graph), SGD)
    require_same(trained(name, runtime), plain(name, 2))


def test_parts_of_a_stage_go_through_its_micro_batches_in_one_order() -> None:
    """As under 1f1b on a pipeline of two devices: three forwards before the first backward."""
    plan = planned("gpt", Mesh3D(1, 2, 2), OneFOneB(4))
    for device, wanted in zip(plan.problem.cluster.devices, ["FFBFBFBB"] * 2 + ["FBFBFBFB"] * 2, strict=True):
        assert "".join(turns(plan.simulated[0], device.name)) == wanted, device.name
    assert {each.devices for each in planned("gpt", Mesh3D(2, 2, 2), OneFOneB(4)).placement.stages} == {
        ("cpu:0", "cpu:2"), ("cpu:1", "cpu:3"), ("cpu:4", "cpu:6"), ("cpu:5", "cpu:7"),
    }  # fmt: skip


def turns(program: Program, device: str) -> Iterator[str]:
    """Forwards and backwards of one micro-batch after another."""
    last = ""
    for each in program.instructions[device]:
        if isinstance(each, Forward | Backward):
            turn = f"{type(each).__name__[0]}{each.microbatch}"
            if turn != last:
                yield turn[0]
            last = turn


def test_layers_are_cut_where_one_tensor_crosses() -> None:
    graph = graph_of("llama", 2)
    runs, slowest_s = layer_runs(graph, dict.fromkeys(graph.nodes, 1.0), 2)
    crossing = {
        k
        for k, own in graph.variables.items()
        if len({runs[v] for v in (own.producer, *own.consumers) if v}) > 1
    }
    assert len(crossing) == 1
    assert slowest_s <= 1.1 * len(graph) / 2
    assert (
        max(layer_runs(graph, dict.fromkeys(graph.nodes, 1.0), len(graph) // 4)[0].values()) + 1
        == len(graph) // 4
    )


def test_a_mesh_says_which_devices_are_left_without_operators() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 16), nn.BatchNorm1d(16), nn.BatchNorm1d(16))
    graph = capture(model, nn.MSELoss(), (torch.zeros(8, 16), torch.zeros(8, 16)))
    plan = planned_of(graph, Mesh3D(tensor=2, pipeline=4), OneFOneB(4))
    assert "mesh leaves cpu:5 without operators" in str(plan.summary())
    assert "cpu:" not in planned("gpt", Mesh3D(tensor=2), OneFOneB(4)).placement.report.summary()


def test_a_mesh_is_refused_where_it_has_no_devices() -> None:
    with pytest.raises(ConfigError, match="mesh needs 8 devices"):
        Mesh3D(2, 2, 2).partition(replace(planned("gpt", Mesh3D(1, 2, 2), SingleBatch()).asked))
    with pytest.raises(ConfigError, match=r"4 replicas .* only 2 micro-batches: raise"):
        planned("gpt", Mesh3D(data=4), OneFOneB(2))
    with pytest.raises(ConfigError, match=r"mesh.v is True: give false, or two chunks"):
        Mesh3D(v=True)
