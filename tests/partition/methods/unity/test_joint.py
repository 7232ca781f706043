"""Algebra and mappings together: no rules with any tasks and views take less than what `unity` finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

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
from netsplit.partition.methods.unity.unity import UnitySearch
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs
from netsplit.program.schedules import SingleBatch
from netsplit.rewrite import (
    Algebra,
    OperatorTasks,
    applied,
    applied_rule,
    matches,
    rewritten_costs,
    rules_builtin,
)
from tests.nets import SGD, Case
from tests.partition.methods.unity.brute_force import least
from tests.runtime.equivalence.running import assert_same, compiled, local
from tests.runtime.references import plain_loop

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


def problem_of(
    name: str, device_speeds: Sequence[float], bandwidth: float = 2e10, samples: int = SAMPLES
) -> Problem:
    build, inputs = MODELS[name]
    if samples != SAMPLES:  # else a tensor that is two inputs stays one
        inputs = tuple(x.repeat(samples // SAMPLES, 1) for x in inputs)
    graph = capture(build(), nn.CrossEntropyLoss(), (inputs, torch.zeros(samples, dtype=torch.long)))
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
    machines = Machines.of(problem)
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


@pytest.mark.parametrize("name", MODELS)
def test_tasks_changed_one_by_one_take_no_less(name: str) -> None:
    """As Unity's search has them: `paper` beside `joint`."""
    problem = problem_of(name, (1.0, 1.0))
    paper, joint = (
        Unity(split=False, search=each, budget=60).choose(problem).notes["programme_s"]
        for each in ("paper", "joint")
    )
    assert joint <= paper * (1 + 1e-9)


def test_algebra_is_chosen_anew_where_bytes_have_a_price() -> None:
    """Other rules are applied than without a price, and nothing fits without these."""
    problem = problem_of("two products", (1.0, 1.0))
    assert problem.simulator is not None
    peaks = problem.simulator(next(UnitySearch(Unity(), problem).programmes()).placement).peak_bytes
    room = int(0.97 * max(peaks.values()))
    small = tuple(replace(each, capacity_bytes=room) for each in problem.cluster.devices)
    cluster = replace(problem.cluster, devices=small)
    tight = replace(problem, cluster=cluster, simulator=replace(problem.simulator, cluster=cluster))
    judged = {each.origin: each for each in UnitySearch(Unity(), tight).programmes()}
    dear = "the programme with algebra for less memory"
    assert [origin for origin, each in judged.items() if not each.missing] == [dear]
    steps = [judged[origin].searched for origin in ("the programme", dear)]
    assert all(steps)
    assert len({str(each.steps) for each in steps if each}) == 2


def test_a_product_of_a_cat_becomes_products_where_its_parts_are() -> None:
    """Figure 16 of Unity: the towers' halves stay where they are made, and only their products are added."""
    choice = Unity().choose(problem_of("towers", (1.0, 1.0)))
    foreseen = choice.notes["foreseen_s"]
    assert choice.notes["answered"].startswith("the programme")
    assert [rule for rule, *_ in choice.notes["substitutions"]] == [
        "a product of a cat as a sum (linear with bias), 2"
    ]
    products = {name: at for name, at in choice.device_of.items() if name.startswith("cat+linear")}
    assert {*products.values()} == {"d0", "d1"}
    others = (s for name, s in foreseen.items() if not name.startswith("the programme"))
    assert foreseen["the programme"] < 0.8 * min(others)


def test_a_bag_becomes_an_embedding_whose_samples_are_cut() -> None:
    """Figure 16, too: no bag can be cut, and an embedding and its sum can."""
    search = UnitySearch(Unity(), problem_of("bags", (1.0,) * 4, samples=4096))
    first = next(search.programmes())
    tasks = {each.node: each for each in first.placement.rewrites if isinstance(each, OperatorTasks)}
    for name in ("embedding_bag+embedding", "embedding_bag+sum"):
        assert 0 in {cut.axis for cut in tasks[name].cuts}


@pytest.mark.parametrize("name", ["towers", "bags"])
def test_its_parts_train_as_plain_pytorch_does(name: str) -> None:
    """In one process, in float64."""
    build, inputs = MODELS[name]
    double = tuple(x.double() if x.is_floating_point() else x for x in inputs)
    case = Case(name, build, double, torch.arange(SAMPLES) % 10)
    problem = problem_of(name, (1.0, 1.0))
    placement = next(UnitySearch(Unity(), problem).programmes()).placement
    graph = applied(capture(case.fresh(), case.loss, case.batch(SAMPLES)), placement.rewrites)
    assert any(isinstance(each, Algebra) for each in graph.rewrites)
    device_of = {v: f"cpu:{device[1:]}" for v, device in placement.device_of.items()}
    program = compiled(graph, device_of, 2, SingleBatch())
    batches = [case.another(seed, SAMPLES) for seed in range(3)]
    assert_same(local(program, case, batches), plain_loop(case.fresh(), case.loss, batches, SAMPLES, SGD))
