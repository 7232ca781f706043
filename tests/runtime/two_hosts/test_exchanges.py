"""A program on two hosts: what two devices of one host read passes the link once, and its gradients, too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import pytest
import torch
from torch import Tensor, nn

from benchmarks.two_hosts.hosts import TwoHosts
from netsplit.cluster.cluster import Cluster, Link, nics_of
from netsplit.graph import capture, initial_values
from netsplit.partition import Placement, Problem, SimulatedIteration
from netsplit.placement.placement import SolverReport
from netsplit.planning.decide import verified
from netsplit.planning.plan import Plan
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program import GPipe
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.simulate.simulator import Simulator
from tests.builders import linked
from tests.nets import SGD
from tests.runtime.equivalence.running import assert_same
from tests.runtime.references import Batch, Trained, plain_loop
from tests.runtime.two_hosts.conftest import NAMES, workers_on

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SAMPLES, WIDTH, MICROBATCHES = 64, 2048, 4
LOSS = nn.CrossEntropyLoss()


class Shared(nn.Module):
    """An activation of a megabyte, which small layers read."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.inward = nn.Linear(8, WIDTH)
        self.heads = nn.ModuleList(nn.Linear(WIDTH, 5) for _ in range(heads))

    def forward(self, x: Tensor) -> Tensor:
        shared = torch.tanh(self.inward(x))
        first, *others = (head(shared) for head in self.heads)
        return sum(others, start=first)


def fresh(heads: int = 2) -> Shared:
    torch.manual_seed(4)
    return Shared(heads).double()


def batch(seed: int, samples: int = MICROBATCHES * SAMPLES) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 8, generator=draw, dtype=torch.float64)
    return (x,), torch.randint(5, (samples,), generator=draw)


@pytest.fixture(scope="module")
def pool(hosts: TwoHosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    with workers_on(hosts, (2, 2), tmp_path_factory.mktemp("exchanges")) as opened:
        yield opened


def cluster_at(bytes_per_s: float) -> Cluster:
    """Behind two NICs of that rate."""
    near = linked(NAMES, Link(1e-4, 1e-9))
    hosts = {"a": NAMES[:2], "b": NAMES[2:]}
    far = Link(3e-4, 1 / bytes_per_s)
    links = {
        (p, q): link if (p in NAMES[:2]) == (q in NAMES[:2]) else far for (p, q), link in near.links.items()
    }
    return replace(near, links=links, nics=nics_of(hosts, links))


def plans_at(bytes_per_s: float) -> dict[str, Plan]:
    """Both heads on the host that the activation is not made on."""
    graph = capture(fresh(), LOSS, batch(0, SAMPLES))
    device_of = dict.fromkeys(graph.nodes, "cpu:3")
    device_of |= {"linear": "cpu:0", "tanh": "cpu:0", "linear_1": "cpu:2"}
    costs = Costs({"cpu": DeviceCosts(dict.fromkeys(graph.nodes, NodeSeconds(5e-4, 1e-3)))}, 3)
    cluster = cluster_at(bytes_per_s)
    placement = Placement("given", device_of, graph.position, SolverReport("heuristic", 0.0))
    plans = {}
    for exchange in ("send_receive", "auto"):
        evaluate = Simulator(graph, cluster, costs, GPipe(MICROBATCHES, exchange=exchange))
        problem = Problem(graph, costs, cluster, simulator=evaluate, objective=SimulatedIteration())
        plans[exchange] = verified(problem, placement)
    return plans


def test_training_takes_what_is_predicted_and_is_the_plain_loop_s(pool: WorkerPool, hosts: TwoHosts) -> None:
    """One after the other, as workers hold one model; the first iteration of each is not timed."""
    plans = plans_at(hosts.bytes_per_s)
    assert [hop[1] for hop in plans["auto"].placement.exchanges[0].hops] == ["cpu:2", "cpu:3"]
    batches = [batch(seed) for seed in range(4)]
    wanted = plain_loop(fresh(), LOSS, batches, SAMPLES, SGD)
    seconds: dict[str, float] = {}
    for name, plan in plans.items():
        values = initial_values(fresh(), plan.problem.graph)
        runtime = DistributedRuntime(plan.simulated[0], pool, values, SGD)
        losses, taken = [], []
        for each in batches:
            began = time.perf_counter()
            losses.append(runtime.train_batch(*each))
            taken.append(time.perf_counter() - began)
        assert_same(Trained(losses, runtime.state()), wanted)
        seconds[name] = median(taken[1:])
        assert seconds[name] == pytest.approx(plan.objective_s, rel=0.1), name
    assert seconds["send_receive"] / seconds["auto"] > 1.7
