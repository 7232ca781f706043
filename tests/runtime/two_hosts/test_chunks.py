"""A program on four hosts: what three of them read goes along a chain in chunks, on all its hops at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from statistics import median

import pytest

from benchmarks.two_hosts.hosts import FourHosts
from netsplit.cluster.cluster import Cluster, Link, nics_of
from netsplit.graph import capture, initial_values
from netsplit.partition import Placement, Problem, SimulatedIteration
from netsplit.placement.exchange import Exchange, chain
from netsplit.placement.placement import SolverReport
from netsplit.planning.decide import verified
from netsplit.planning.plan import Plan
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program import SingleBatch
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.simulate.simulator import Simulator
from tests.builders import linked
from tests.nets import SGD
from tests.runtime.equivalence.running import assert_same
from tests.runtime.references import Trained, plain_loop
from tests.runtime.two_hosts.conftest import NAMES, RATE_MBIT, lacking, workers_on
from tests.runtime.two_hosts.test_exchanges import LOSS, SAMPLES, batch, fresh

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def switched() -> Iterator[FourHosts]:
    if lacking():
        pytest.skip(f"no hosts here: {lacking()}")
    with FourHosts(RATE_MBIT) as joined:
        yield joined


@pytest.fixture(scope="module")
def pool(switched: FourHosts, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerPool]:
    with workers_on(switched, (1, 1, 1, 1), tmp_path_factory.mktemp("chunks")) as opened:
        yield opened


def cluster_at(bytes_per_s: float) -> Cluster:
    """A device behind each of four NICs of that rate."""
    cluster = linked(NAMES, Link(3e-4, 1 / bytes_per_s))
    return replace(cluster, nics=nics_of({f"host of {name}": (name,) for name in NAMES}, cluster.links))


def plans_at(bytes_per_s: float) -> dict[str, Plan]:
    """A head on each host but the one that the activation is made on: it goes whole, and as is chosen."""
    graph = capture(fresh(3), LOSS, batch(0, SAMPLES))
    device_of = dict.fromkeys(graph.nodes, "cpu:3")
    device_of |= {"linear": "cpu:0", "tanh": "cpu:0", "linear_1": "cpu:1", "linear_2": "cpu:2"}
    costs = Costs({"cpu": DeviceCosts(dict.fromkeys(graph.nodes, NodeSeconds(5e-4, 1e-3)))}, 3)
    evaluate = Simulator(graph, cluster_at(bytes_per_s), costs, SingleBatch())
    problem = Problem(graph, costs, evaluate.cluster, simulator=evaluate, objective=SimulatedIteration())
    given = Placement("given", device_of, graph.position, SolverReport("heuristic", 0.0))
    whole = replace(given, exchanges=(chain("tanh", NAMES[0], NAMES[1:]),))
    return {name: verified(problem, each) for name, each in {"whole": whole, "chosen": given}.items()}


def test_a_chain_in_chunks_takes_what_is_predicted(pool: WorkerPool, switched: FourHosts) -> None:
    """And trains the plain loop's numbers; the first iteration of each is not timed."""
    plans = plans_at(switched.bytes_per_s)
    hops = tuple(pairwise(NAMES))
    assert plans["chosen"].placement.exchanges == (Exchange("tanh", hops, chunks=16),)
    batches = [batch(seed, SAMPLES) for seed in range(4)]
    wanted = plain_loop(fresh(3), LOSS, batches, SAMPLES, SGD)
    seconds: dict[str, float] = {}
    for name, plan in plans.items():
        runtime = DistributedRuntime(
            plan.simulated[0], pool, initial_values(fresh(3), plan.problem.graph), SGD
        )
        losses, taken = [], []
        for each in batches:
            began = time.perf_counter()
            losses.append(runtime.train_batch(*each))
            taken.append(time.perf_counter() - began)
        assert_same(Trained(losses, runtime.state()), wanted)
        seconds[name] = median(taken[1:])
        assert seconds[name] == pytest.approx(plan.objective_s, rel=0.15), name
    assert seconds["whole"] / seconds["chosen"] > 2.0
