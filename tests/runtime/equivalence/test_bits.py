"""Where no sum is cut in another way, not a bit may differ from plain PyTorch; and whole methods' plans."""

from __future__ import annotations

import pytest
import torch

from netsplit.graph import Graph, initial_values
from netsplit.partition import MTopo, NetSplit, Partitioner, Problem, Single
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.profile.memory import memory_of
from netsplit.program import GPipe, Program, Schedule, SingleBatch, compile_program
from netsplit.program.schedules import OneFOneB
from netsplit.runtime.local import LocalRuntime
from tests.builders import cpus
from tests.nets import CASES, SGD, STAGES
from tests.runtime.equivalence.running import (
    SCHEDULES,
    assert_same,
    batches_of,
    captured_for,
    compiled,
    cut,
    local,
    on_workers,
    plain,
)
from tests.runtime.references import Trained
from tests.workers import Pools

METHODS: dict[str, Partitioner] = {
    "single": Single(),
    "m_topo": MTopo(),
    "netsplit": NetSplit(time_limit_s=20),
}
PLANNED: dict[str, Schedule] = {"single_batch": SingleBatch(), "gpipe": GPipe(4), "1f1b": OneFOneB(4)}


def assert_bits(trained: Trained, wanted: Trained) -> None:
    assert trained.losses == wanted.losses
    for key in trained.state.keys() & wanted.state.keys():
        assert torch.equal(trained.state[key], wanted.state[key]), key


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", CASES)
def test_one_device_trains_bit_for_bit_as_plain_pytorch(name: str, schedule: str) -> None:
    case, order = CASES[name], SCHEDULES[schedule]
    graph = captured_for(case, order)
    program = compiled(graph, dict.fromkeys(graph.nodes, "cpu:0"), 1, order)
    assert_bits(local(program, case, batches_of(case)), plain(name, order.microbatch_size(8)))


@pytest.mark.parametrize("at", [[0.5], [0.2, 0.7]])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["chain", "stages"])
def test_a_cut_chain_trains_bit_for_bit(name: str, schedule: str, at: list[float]) -> None:
    """On a chain no gradient is a sum over devices, so even rounding is the same."""
    case, order = CASES.get(name, STAGES), SCHEDULES[schedule]
    graph = captured_for(case, order)
    program = compiled(graph, cut(graph, at), len(at) + 1, order)
    assert_bits(local(program, case, batches_of(case)), plain(name, order.microbatch_size(8)))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_cut_chain_trains_bit_for_bit_on_worker_processes(pools: Pools, schedule: str) -> None:
    case, order = CASES["chain"], SCHEDULES[schedule]
    graph = captured_for(case, order)
    program = compiled(graph, cut(graph, [0.5]), 2, order)
    trained = on_workers(program, case, batches_of(case), pools(2))
    assert_bits(trained, plain("chain", order.microbatch_size(8)))


def decided(method: str, graph: Graph, schedule: Schedule, devices: int) -> Program:
    """A method's program under a capacity that is too small for one device but not for all together."""
    seconds = {node.name: NodeSeconds(1e-4 * (1 + i % 3), 2e-4) for i, node in enumerate(graph)}
    costs = Costs({"cpu": DeviceCosts(seconds)}, alpha=3)
    copies = costs.copies(schedule.in_flight(devices))
    need = memory_of(graph, graph.nodes, costs.alpha, copies)
    cluster = cpus(devices, capacity=int(0.95 * need))
    problem = Problem(graph, costs, cluster, in_flight=schedule.in_flight(devices))
    placement = METHODS[method].partition(problem)
    return compile_program(graph, placement.device_of, placement.priority, cluster, schedule)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("schedule", PLANNED)
@pytest.mark.parametrize("name", ["cells", "chain"])
def test_every_method_trains_as_plain_pytorch_on_both_runtimes(
    pools: Pools, name: str, schedule: str, method: str
) -> None:
    case, order = CASES[name], PLANNED[schedule]
    program = decided(method, captured_for(case, order), order, 2)
    assert_same(local(program, case, batches_of(case)), plain(name, order.microbatch_size(8)))
    assert_same(on_workers(program, case, batches_of(case), pools(2)), plain(name, order.microbatch_size(8)))


def test_a_device_holds_only_its_own_parameters() -> None:
    case, order = CASES["chain"], GPipe(4)
    graph = captured_for(case, order)
    program = compiled(graph, cut(graph, [0.5]), 2, order)
    runtime = LocalRuntime(program, cpus(2), initial_values(case.fresh(), graph), SGD)
    held = [set(share.tensors) for share in runtime.shares.values()]
    assert held[0]
    assert held[1]
    assert not held[0] & held[1]
    assert held[0] | held[1] == set(graph.initializers)
