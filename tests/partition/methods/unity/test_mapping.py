"""`best_mapping` finds the least of all tasks and views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from math import inf

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.cluster.described import DescribedDevice, LinkCost, described_cluster
from netsplit.graph import capture
from netsplit.graph.ir import Graph
from netsplit.partition.base import Problem
from netsplit.partition.methods.unity.choices import DIMENSIONS, Machines
from netsplit.partition.methods.unity.costed import Costed
from netsplit.partition.methods.unity.mapping import best_mapping
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs
from tests.partition.methods.unity.brute_force import least, least_beside, seconds_of

MODEL = "TITAN RTX"


class Attention(nn.Module):
    """One head's products apart, as a block has them."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.keys, self.values = (nn.Linear(128, 128) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        heads = (f(x).view(8, 16, 4, 32).transpose(1, 2) for f in (self.query, self.keys, self.values))
        return F.scaled_dot_product_attention(*heads).mean((2, 3))


class Towers(nn.Module):
    """Two, of which the outputs are put together."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.Sequential(nn.Linear(512, 1024), nn.Linear(1024, 64)) for _ in range(2))
        self.top = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.top(torch.cat([self.one(x[:, :512]), self.other(x[:, 512:])], 1))


class Recommender(nn.Module):
    """Two tables and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(1000, 64) for _ in range(2))
        self.bottom, self.top = nn.Linear(512, 64), nn.Linear(192, 10)

    def forward(self, numbers: Tensor, first: Tensor, second: Tensor) -> Tensor:
        tables = [table(each) for table, each in zip(self.tables, (first, second), strict=True)]
        return self.top(torch.cat([*tables, self.bottom(numbers)], 1))


def layers(*widths: int) -> nn.Module:
    made: list[nn.Module] = []
    for n, m in pairwise(widths):
        made += [nn.Linear(n, m), nn.ReLU()]
    return nn.Sequential(*made[:-1])


SAMPLES = 8
INDEX = torch.zeros(SAMPLES, dtype=torch.long)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "two layers": (lambda: layers(1024, 4096, 10), (torch.randn(SAMPLES, 1024),)),
    "three layers": (lambda: layers(256, 4096, 4096, 10), (torch.randn(SAMPLES, 256),)),
    "attention": (Attention, (torch.randn(SAMPLES, 16, 128),)),
    "towers": (Towers, (torch.randn(SAMPLES, 1024),)),
    "recommender": (Recommender, (torch.randn(SAMPLES, 512), INDEX, INDEX)),
}


@cache
def graph_of(name: str) -> Graph:
    build, inputs = MODELS[name]
    return capture(build(), nn.CrossEntropyLoss(), (inputs, torch.zeros(SAMPLES, dtype=torch.long)))


def problem_of(name: str, device_speeds: Sequence[float], bandwidth: float = 2e10) -> Problem:
    devices = [DescribedDevice(f"d{p}", each, "16GB", MODEL) for p, each in enumerate(device_speeds)]
    cluster = described_cluster("some", devices, LinkCost(bandwidth, 2e-6))
    return Workload(name, graph_of(name), Costs({}, 3)).problem(cluster, "simulated", memory="lifetimes")


def costed_of(problem: Problem) -> Costed:
    machines = Machines.of(problem)
    return Costed(problem.graph, problem.costs, machines, DIMENSIONS)


@pytest.mark.parametrize("device_speeds", [(1.0, 1.0), (2.0, 1.0), (1.0, 1.0, 1.0, 1.0)], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_no_choice_of_tasks_and_views_takes_less(name: str, device_speeds: Sequence[float]) -> None:
    costed = costed_of(problem_of(name, device_speeds))
    every = tuple(range(len(device_speeds)))
    mapped = best_mapping(costed, split=False)
    bound = mapped.seconds * (1 + 1e-9)
    seconds, chosen = least(costed, range(len(costed.vertices)), every, {}, bound)
    assert chosen
    assert mapped.seconds == pytest.approx(seconds, rel=1e-9)
    assert mapped.seconds == pytest.approx(seconds_of(costed, chosen), rel=1e-9)
    assert not mapped.fixed


@pytest.mark.parametrize("device_speeds", [(1.0, 1.0), (3.0, 1.0), (1.0, 1.0, 1.0)], ids=str)
@pytest.mark.parametrize("name", ["towers", "recommender"])
def test_branches_have_devices_of_their_own_where_that_takes_less(
    name: str, device_speeds: Sequence[float]
) -> None:
    costed = costed_of(problem_of(name, device_speeds, 1e9))
    every, join = tuple(range(len(device_speeds))), by_name(costed, "cat")
    branches = branches_to(costed, join)
    behind = [v for v in range(len(costed.vertices)) if v != join and not any(v in each for each in branches)]
    best = inf
    for n in range(len(costed.options(join, every).choices)):
        at = {join: (every, n)}
        own = float(costed.options(join, every).seconds[n])
        after = least(costed, behind, every, at, inf)[0]
        best = min(best, own + after + least_beside(costed, branches, every, at, inf))
    mapped = best_mapping(costed)
    assert mapped.seconds == pytest.approx(best, rel=1e-9)
    assert mapped.seconds <= best_mapping(costed, split=False).seconds


def by_name(costed: Costed, name: str) -> int:
    return next(v for v, vertex in enumerate(costed.vertices) if vertex.name == name)


def branches_to(costed: Costed, join: int) -> list[list[int]]:
    """What leads to a vertex, apart: one branch for each of its feeders."""
    branches = []
    for link in costed.links:
        if link.target == join:
            branch = [link.source]
            for v in branch:
                branch += [e.source for e in costed.links if e.target == v and e.source not in branch]
            branches.append(branch[::-1])
    return branches


def test_a_tied_weight_lies_alike_for_all_who_read_it() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(512, 256), nn.Linear(256, 512, bias=False)
            self.head.weight = self.words.weight

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(F.relu(self.words(tokens)))

    graph = capture(Tied(), nn.CrossEntropyLoss(), (INDEX, INDEX))
    devices = [DescribedDevice(f"d{p}", 1.0, "16GB", MODEL) for p in range(2)]
    cluster = described_cluster("two", devices, LinkCost(1e11, 1e-7))
    costed = costed_of(Workload("tied", graph, Costs({}, 3)).problem(cluster, "simulated"))
    mapped = best_mapping(costed)
    assert mapped.seconds == pytest.approx(least(costed, range(len(costed.vertices)), (0, 1), {}, inf)[0])
    words, head = mapped.choices["embedding"], mapped.choices["linear"]
    assert words.reads("weight", 2) == head.reads("weight", 2)
