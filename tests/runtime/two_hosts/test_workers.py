"""Two workers on each of two hosts: how tensors go, what the probe finds; training.

this test = controller on a ◄── torchrun agent on a ── cpu:0, cpu:1
                            ◄── torchrun agent on b ── cpu:2, cpu:3
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from benchmarks.two_hosts.hosts import TwoHosts
from netsplit.cluster.probe import Samples, fit_link, probe_links
from netsplit.graph import capture, initial_values
from netsplit.program import GPipe
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.runtime.workers.worker import Worker
from tests.builders import compile_placed, cpus
from tests.nets import CASES, SGD, TOLERANCE, plain_training
from tests.runtime.two_hosts.conftest import NAMES, workers_on

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


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
