"""Every placement and schedule trains what plain PyTorch trains (DESIGN.md, invariant 1)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from netsplit.cluster.local import LocalDevice, local_cluster
from netsplit.graph import Graph, capture, initial_values
from netsplit.partition import MTopo, NetSplit, Partitioner, Problem, Single
from netsplit.profile.costs import Costs, NodeSeconds
from netsplit.program import GPipe, Program, Schedule, SingleBatch, compile_program
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.pool import WorkerPool
from tests.nets import CASES, SGD, TOLERANCE, Case, cluster_of, placements, plain_training

SCHEDULES: dict[str, Schedule] = {"single_batch": SingleBatch(), "gpipe": GPipe(4)}
METHODS: dict[str, Partitioner] = {
    "single": Single(),
    "m_topo": MTopo(),
    "netsplit": NetSplit(time_limit_s=20),
}


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    """Two worker processes for the whole module."""
    spec = local_cluster("cpu2", [LocalDevice("cpu:0"), LocalDevice("cpu:1")], timeout_s=30)
    with WorkerPool(spec, Path(tempfile.mkdtemp())) as found:
        yield found


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def graph_of(case: Case, schedule: Schedule) -> Graph:
    inputs, targets = case.batch(schedule.microbatch_size(8))
    return capture(case.fresh(), case.loss, (inputs, targets))


def assert_same(state: dict[str, Tensor], losses: list[float], case: Case, schedule: Schedule) -> None:
    plain_losses, plain = plain_training(case, schedule.microbatches)
    assert losses == pytest.approx(plain_losses, rel=TOLERANCE)
    for key in state.keys() & plain.keys():
        torch.testing.assert_close(state[key], plain[key], rtol=TOLERANCE, atol=TOLERANCE)
    missing = set(plain) - set(state)
    assert all(any(torch.equal(plain[key], plain[k]) for k in state) for key in missing), missing


def train_locally(program: Program, case: Case, devices: int) -> tuple[dict[str, Tensor], list[float]]:
    values = initial_values(case.fresh(), program.graph)
    runtime = LocalRuntime(program, cluster_of(devices), values, SGD)
    losses = [runtime.train_batch(case.inputs, case.targets) for _ in range(3)]
    return runtime.state(), losses


def train_on_workers(program: Program, case: Case, pool: WorkerPool) -> tuple[dict[str, Tensor], list[float]]:
    runtime = DistributedRuntime(program, pool, initial_values(case.fresh(), program.graph), SGD)
    losses = [runtime.train_batch(case.inputs, case.targets) for _ in range(3)]
    return runtime.state(), losses


def decided(method: str, graph: Graph, schedule: Schedule, devices: int) -> Program:
    """A method's program under a capacity that is too small for one device but not for all together."""
    seconds = {node.name: NodeSeconds(1e-4 * (1 + i % 3), 2e-4) for i, node in enumerate(graph)}
    costs = Costs({"cpu": seconds}, alpha=3)
    need = _single_bytes(graph, costs, schedule)
    cluster = cluster_of(devices, capacity=int(0.95 * need))
    problem = Problem(graph, costs, cluster, in_flight=schedule.in_flight)
    placement = METHODS[method].partition(problem)
    return compile_program(graph, placement.device_of, placement.priority, cluster, schedule)


def _single_bytes(graph: Graph, costs: Costs, schedule: Schedule) -> int:
    from netsplit.profile.memory import memory_of

    return memory_of(graph, graph.nodes, costs.alpha, costs.copies(schedule.in_flight))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_placement_in_one_process_trains_as_plain_pytorch(
    name: str, schedule: str, data: st.DataObject
) -> None:
    case, order = CASES[name], SCHEDULES[schedule]
    graph = graph_of(case, order)
    device_of, priority = data.draw(placements(graph, 3))
    program = compile_program(graph, device_of, priority, cluster_of(3), order)
    assert_same(*train_locally(program, case, 3), case, order)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_placement_on_worker_processes_trains_as_plain_pytorch(
    pool: WorkerPool, name: str, schedule: str, data: st.DataObject
) -> None:
    case, order = CASES[name], SCHEDULES[schedule]
    graph = graph_of(case, order)
    device_of, priority = data.draw(placements(graph, 2))
    program = compile_program(graph, device_of, priority, cluster_of(2), order)
    assert_same(*train_on_workers(program, case, pool), case, order)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["cells", "chain"])
def test_every_method_trains_as_plain_pytorch_on_both_runtimes(
    pool: WorkerPool, name: str, schedule: str, method: str
) -> None:
    case, order = CASES[name], SCHEDULES[schedule]
    program = decided(method, graph_of(case, order), order, 2)
    assert_same(*train_locally(program, case, 2), case, order)
    assert_same(*train_on_workers(program, case, pool), case, order)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", CASES)
def test_one_device_trains_bit_for_bit_as_plain_pytorch(name: str, schedule: str) -> None:
    case, order = CASES[name], SCHEDULES[schedule]
    program = decided("single", graph_of(case, order), order, 1)
    state, losses = train_locally(program, case, 1)
    plain_losses, plain = plain_training(case, order.microbatches)
    assert losses == plain_losses
    assert all(torch.equal(state[key], plain[key]) for key in state.keys() & plain.keys())


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_cut_chain_trains_bit_for_bit_on_worker_processes(
    pool: WorkerPool, schedule: str, cut: float
) -> None:
    """On a chain no gradient is a sum over devices, so even rounding is the same."""
    case, order = CASES["chain"], SCHEDULES[schedule]
    graph = graph_of(case, order)
    device_of = {name: f"cpu:{int(i >= cut * len(graph))}" for i, name in enumerate(graph.nodes)}
    for group in graph.colocated:
        device_of.update(dict.fromkeys(group, device_of[group[0]]))
    program = compile_program(graph, device_of, graph.position, cluster_of(2), order)
    state, losses = train_on_workers(program, case, pool)
    plain_losses, plain = plain_training(case, order.microbatches)
    assert losses == plain_losses
    assert all(torch.equal(state[key], plain[key]) for key in state.keys() & plain.keys())


def test_a_device_holds_only_its_own_parameters() -> None:
    case, order = CASES["chain"], SCHEDULES["gpipe"]
    graph = graph_of(case, order)
    device_of = {name: "cpu:0" if i < 6 else "cpu:1" for i, name in enumerate(graph.nodes)}
    for group in graph.colocated:
        device_of.update(dict.fromkeys(group, device_of[group[0]]))
    program = compile_program(graph, device_of, graph.position, cluster_of(2), order)
    runtime = LocalRuntime(program, cluster_of(2), initial_values(case.fresh(), graph), SGD)
    held = [set(share.tensors) for share in runtime.shares.values()]
    assert held[0]
    assert held[1]
    assert not held[0] & held[1]
    assert held[0] | held[1] == set(graph.initializers)
