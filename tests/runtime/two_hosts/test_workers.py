"""Two workers on each of two hosts: how tensors go, what the probe finds, what a host has once; training.

this test = controller on a ◄── torchrun agent on a ── cpu:0, cpu:1
                            ◄── torchrun agent on b ── cpu:2, cpu:3
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import median

import pytest
import torch
import torch.distributed as dist

from benchmarks.two_hosts.hosts import TwoHosts
from netsplit.cluster.probe import Samples, fit_link, probe_links
from netsplit.graph import capture, initial_values
from netsplit.program import GPipe
from netsplit.reshard import Layout, Mesh, Network, ReshardPlan, plan_reshard
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.resharding.reshard_piece import reshard_piece
from netsplit.runtime.workers.messages import Worker
from netsplit.runtime.workers.pool import WorkerPool
from tests.builders import compile_placed, cpus
from tests.nets import CASES, SGD, TOLERANCE, plain_training
from tests.runtime.two_hosts.conftest import NAMES, TIMEOUT_S, workers_on

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NBYTES = 2_000_000  # a sixth of a second at 100 Mbit/s


@pytest.fixture(scope="module")
def pool(hosts: TwoHosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    with workers_on(hosts, (2, 2), tmp_path_factory.mktemp("two_hosts")) as opened:
        yield opened


def _neighbours(worker: Worker) -> set[str]:
    return {worker.devices[rank].name for rank in worker.neighbours.wires}


def test_only_workers_of_one_host_read_one_another_s_memory(pool: WorkerPool) -> None:
    """Though the kernel would let all of this machine: what goes from host to host takes the link."""
    assert pool.call(_neighbours) == [{"cpu:1"}, {"cpu:0"}, {"cpu:3"}, {"cpu:2"}]


def _probe(worker: Worker, sizes: Sequence[int]) -> dict[tuple[str, str], Samples]:
    return probe_links(worker.transport, worker.device.name, NAMES, "cpu", sizes, repeats=6)


def test_the_probe_finds_the_rate_of_the_link(pool: WorkerPool, hosts: TwoHosts) -> None:
    """Probes all pairs of devices of two hosts, either way: one at a time has the link for itself.

    The least of several packets counts, so what is left of noise only slows; 3,100 bytes, which may pass at
    once, are a twentieth of the smallest size.
    """
    sizes = [2**power for power in range(16, 21)]
    samples = pool.call(_probe, sizes)[0]
    links = {pair: fit_link(points) for pair, points in samples.items()}
    over = {pair for pair in links if (pair[0] in NAMES[:2]) != (pair[1] in NAMES[:2])}
    assert len(over) == 8
    for pair in over:
        assert links[pair].bandwidth == pytest.approx(hosts.bytes_per_s, rel=0.1), pair
        assert links[pair].latency_s < 5e-3, pair
    for pair in set(links) - over:
        assert links[pair].bandwidth > 5 * hosts.bytes_per_s, pair


def _reshard(worker: Worker, plan: ReshardPlan) -> tuple[float, bool]:
    """Seconds from a common begin to this worker's end, and whether all has arrived."""
    whole = torch.arange(plan.shape[0], dtype=torch.float64)
    piece = whole if worker.device.name == "cpu:0" else None
    transport, kind = worker.transport, torch.empty(0, dtype=torch.float64)
    dist.barrier()
    began = time.perf_counter()
    new = reshard_piece(plan, worker.device.name, piece, transport, kind, TIMEOUT_S)
    return time.perf_counter() - began, new is None or torch.equal(new, whole)


def test_a_broadcast_and_sending_to_each_take_what_is_predicted(pool: WorkerPool, hosts: TwoHosts) -> None:
    """From a device of a to both of b, by the link's given rate: over it once, and twice."""
    network = Network.uniform({"a": NAMES[:2], "b": NAMES[2:]}, hosts.bytes_per_s, 1e9, 3e-4, 1e-4)
    source, both = Layout(Mesh(("cpu:0",), (1,)), "R"), Layout(Mesh(("cpu:2", "cpu:3"), (2,)), "R")
    elements = 2 * NBYTES // 8
    plans = {
        way: plan_reshard(source, both, (elements,), 8, network, way, chunks=16)
        for way in ("broadcast", "send_receive")
    }
    taken: dict[str, list[float]] = {way: [] for way in plans}
    for _ in range(5):
        for way, plan in plans.items():
            told = pool.call(_reshard, plan)
            assert all(right for _, right in told)
            taken[way].append(max(seconds for seconds, _ in told))
    for way, plan in plans.items():
        assert median(taken[way]) == pytest.approx(plan.seconds, rel=0.1), way
    assert median(taken["send_receive"]) / median(taken["broadcast"]) > 1.7


@pytest.mark.parametrize("name", ["chain", "u_shape", "tied"])
def test_training_on_two_hosts_is_the_plain_loop_s(pool: WorkerPool, name: str) -> None:
    """Nodes in turn on the four devices, so that nearly all variables change hosts; in double precision."""
    case = CASES[name]
    graph = capture(case.fresh(), case.loss, case.batch(4))
    device_of = {node: NAMES[2 * i % 3 + i // 3 % 2] for i, node in enumerate(graph.nodes)}
    for group in graph.colocated:
        device_of.update(dict.fromkeys(group, device_of[group[0]]))
    assert len(set(device_of.values())) > 2
    program = compile_placed(graph, device_of, graph.position, cpus(4), GPipe(2))
    runtime = DistributedRuntime(program, pool, initial_values(case.fresh(), graph), SGD)
    losses = [runtime.train_batch(case.inputs, case.targets) for _ in range(3)]
    state = runtime.state()
    plain_losses, plain = plain_training(case, 2)
    assert losses == pytest.approx(plain_losses, rel=TOLERANCE)
    for key, tensor in state.items():
        torch.testing.assert_close(tensor, plain[key], rtol=TOLERANCE, atol=TOLERANCE)
