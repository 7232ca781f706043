"""Algebra and mappings together: no rules with any tasks and views take less than what `unity` finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from netsplit.cluster.described import DescribedDevice, LinkCost, described_cluster
from netsplit.errors import RewriteError
from netsplit.graph import capture
from netsplit.graph.ir import Graph
from netsplit.partition import Unity
from netsplit.partition.base import Problem
from netsplit.partition.methods.unity.choices import DIMENSIONS, Machines
from netsplit.partition.methods.unity.costed import Costed
from netsplit.partition.methods.unity.unity import hosts, speeds
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs
from netsplit.rewrite import applied_rule, matches, rewritten_costs, rules_builtin
from tests.partition.methods.unity.brute_force import least

SAMPLES = 1024


class Pair(nn.Module):
    """Two products of one input added up, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.Linear(64, 64, bias=False) for _ in range(2))
        self.top = nn.Linear(64, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(self.one(x) + self.other(x))


class UnlikeTowers(nn.Module):
    """Two towers of which one is wider: no cut of what is put together is where they meet."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Linear(512, 1000), nn.ReLU())
        self.other = nn.Sequential(nn.Linear(512, 1500), nn.ReLU())
        self.top = nn.Linear(2500, 10)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.top(torch.cat([self.one(x), self.other(y)], 1))


class Bags(nn.Module):
    """Two tables, of bags."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(100, 1024, mode="sum") for _ in range(2))
        self.top = nn.Linear(2048, 10)

    def forward(self, index: Tensor) -> Tensor:
        return self.top(torch.cat([table(index) for table in self.tables], 1))


X = torch.randn(SAMPLES, 512)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "two products": (Pair, (torch.randn(SAMPLES, 64),)),
    "towers": (UnlikeTowers, (X, X)),
    "bags": (Bags, (torch.zeros(SAMPLES, 2, dtype=torch.long),)),
}


def problem_of(name: str, device_speeds: Sequence[float], bandwidth: float = 2e10) -> Problem:
    build, inputs = MODELS[name]
    graph = capture(build(), nn.CrossEntropyLoss(), (inputs, torch.zeros(SAMPLES, dtype=torch.long)))
    devices = [DescribedDevice(f"d{p}", each, "16GB", "TITAN RTX") for p, each in enumerate(device_speeds)]
    cluster = described_cluster("some", devices, LinkCost(bandwidth, 2e-6))
    return Workload(name, graph, Costs({}, 3)).problem(cluster, "simulated", memory="lifetimes")


def sequences(graph: Graph, depth: int) -> Iterator[Graph]:
    """What all sequences of rules make of a graph, itself among them."""
    yield graph
    for match in matches(graph, rules_builtin()) if depth else ():
        try:
            made = applied_rule(graph, match)
        except RewriteError:
            continue
        yield from sequences(made, depth - 1)


def costed_of(problem: Problem, graph: Graph) -> Costed:
    machines = Machines.of(problem.cluster, speeds(problem.graph, problem), hosts(problem.cluster))
    costs = rewritten_costs(problem.costs, problem.graph, graph)
    return Costed(graph, costs, machines, DIMENSIONS)


@pytest.mark.parametrize("device_speeds", [(1.0, 1.0), (2.0, 1.0), (1.0,) * 4], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_no_rules_and_mapping_take_less(name: str, device_speeds: Sequence[float]) -> None:
    problem = problem_of(name, device_speeds)
    best = problem.graph
    notes = Unity(split=False).choose(problem).notes
    bound, every, reached = notes["programme_s"] * (1 + 1e-9), range(len(device_speeds)), 0.0
    for graph in sequences(problem.graph, 3):
        costed = costed_of(problem, graph)
        seconds, chosen = least(costed, range(len(costed.vertices)), tuple(every), {}, bound)
        if chosen:
            best, reached, bound = graph, seconds, seconds
    assert notes["programme_s"] == pytest.approx(reached, rel=1e-9)
    assert best.rewrites, "algebra gains here"
