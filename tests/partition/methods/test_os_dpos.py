"""OS-DPOS: the splits of Algorithm 2, beside one read off the page; what it begins with and where it ends."""

from dataclasses import dataclass, replace
from functools import cache
from math import ceil

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import netsplit
from netsplit.cluster.cluster import Link
from netsplit.errors import InfeasibleError
from netsplit.graph import Graph, capture
from netsplit.graph.quotient import topological_priority
from netsplit.partition import Choice, OsDpos, Placement, Problem, SolverReport
from netsplit.partition.base import MemoryRule
from netsplit.partition.common.homes import devices_of_nodes
from netsplit.partition.common.instance import Instance
from netsplit.partition.methods.os_dpos import sums_s
from netsplit.partition.partitioner import needed_bytes
from netsplit.planning.fitting import fitted
from netsplit.planning.verify import verify
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program import GPipe, Schedule, SingleBatch
from netsplit.rewrite import CopyWeights, Rewrite, along_samples, applied, replicate, rewritten_costs
from netsplit.simulate.simulator import Simulator
from tests.builders import cluster_of, costs_of
from tests.cover import covering
from tests.examples import tried
from tests.nets import CASES, SGD
from tests.partition.methods import naive_fastt
from tests.rewrite.models import STEPS, assert_same_step
from tests.runtime.references import plain_loop
from tests.workers import Pools, lent_to_sessions

quiet = settings(deadline=None, suppress_health_check=list(HealthCheck))
ROOMY = 10**9


class Branches(nn.Module):
    """Ways of different lengths from one layer to another."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        super().__init__()
        self.ways = nn.ModuleList(nn.Sequential(*(nn.Linear(6, 6) for _ in range(n))) for n in lengths)
        self.last = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.stack([torch.tanh(way(x)) for way in self.ways]).sum(0))


@cache
def branches(lengths: tuple[int, ...]) -> Graph:
    return capture(Branches(lengths), nn.CrossEntropyLoss(), (torch.randn(4, 6), torch.randint(3, (4,))))


@st.composite
def models(draw: st.DrawFn) -> Problem:
    """Small models; seconds of nodes, and links, drawn; devices of two kinds with room for anything."""
    lengths = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    graph = branches(tuple(lengths))
    seconds = st.floats(0.01, 3.0)
    kinds = draw(st.sampled_from([("cpu",), ("cpu", "gpu")]))
    reached = graph.requires_backward
    costs = Costs(
        {
            kind: DeviceCosts(
                {
                    v: NodeSeconds(draw(seconds), draw(seconds) if reached & {*node.outputs} else 0.0)
                    for v, node in graph.nodes.items()
                },
                accumulate_s_per_byte=1e-6,
            )
            for kind in kinds
        },
        2,
    )
    devices = draw(st.integers(2, 3))
    cluster = cluster_of([ROOMY] * devices, kinds=[draw(st.sampled_from(kinds)) for _ in range(devices)])
    link = st.builds(Link, st.floats(0.0, 0.1), st.floats(0.0, 0.001))
    return Problem(graph, costs, cluster.with_links({ends: draw(link) for ends in cluster.links}))


@pytest.mark.parametrize("start", ["whole", "data_parallel"])
@settings(quiet, max_examples=tried(8))
@given(problem=models())
def test_splits_and_finish_are_those_of_the_algorithm_read_off_the_page(start: str, problem: Problem) -> None:
    whole = naive_fastt.dpos(problem)
    begins: list[tuple[Rewrite, ...]] = [()]
    if start == "data_parallel":
        count = len(problem.cluster.devices)
        begins += [replicate(problem.graph, count), along_samples(problem.graph, count)]
    begin = min(begins, key=lambda each: naive_fastt.os_dpos_start(problem, each).finish_s)
    splits, best = naive_fastt.os_dpos(problem, begin)
    placement = OsDpos(start=start, time_limit_s=10**6).partition(problem)  # type: ignore[arg-type]
    assert placement.rewrites == splits
    assert placement.report.objective == pytest.approx(best.finish_s, rel=1e-9)
    assert placement.report.objective <= whole.finish_s * (1 + 1e-9)
    after = replace(best.problem, graph=applied(problem.graph, placement.rewrites))
    verify(after, placement).require()


def long_layer(seconds: float, devices: int = 2, pace: float = 0.0) -> Problem:
    """One way of three layers, the second of which takes `seconds` each way."""
    graph = branches((2,))
    second = [v for v in graph.nodes if "linear" in v][1]
    reached = graph.requires_backward
    each = {
        v: NodeSeconds(seconds, seconds)
        if v == second
        else NodeSeconds(0.1, 0.1 * bool(reached & {*n.outputs}))
        for v, n in graph.nodes.items()
    }
    costs = Costs({"cpu": DeviceCosts(each, accumulate_s_per_byte=1e-9)}, 2)
    return Problem(graph, costs, cluster_of([ROOMY] * devices, seconds_per_byte=pace))


def layers_of_weights(pace: float) -> Problem:
    """Layers that take a second each way, and all else a tenth of that."""
    graph = branches((2,))
    reached = graph.requires_backward
    seconds = {v: 1.0 if node.initializers else 0.1 for v, node in graph.nodes.items()}
    nodes = {
        v: NodeSeconds(seconds[v], seconds[v] * bool(reached & {*node.outputs}))
        for v, node in graph.nodes.items()
    }
    costs = Costs({"cpu": DeviceCosts(nodes, accumulate_s_per_byte=1e-9)}, 2)
    return Problem(graph, costs, cluster_of([ROOMY] * 2, seconds_per_byte=pace))


def test_weights_are_copied_where_that_ends_sooner() -> None:
    """The sums of copies count in what the answer takes."""
    problem = layers_of_weights(pace=3e-4)
    placement = OsDpos().partition(problem)
    assert any(isinstance(each, CopyWeights) for each in placement.rewrites)
    graph = applied(problem.graph, placement.rewrites)
    after = replace(problem, graph=graph, costs=rewritten_costs(problem.costs, problem.graph, graph))
    assert sums_s(after, placement.device_of) > 0
    served = along_samples(problem.graph, 2)
    assert placement.report.objective < naive_fastt.os_dpos_start(problem, served).finish_s
    verify(after, placement).require()


def test_what_is_foreseen_to_take_longer_is_not_answered() -> None:
    """Messages wait for one another, which DPOS does not see: nothing of the kind is better than whole."""
    problem = long_layer(1.0, devices=3, pace=0.002)
    alone = OsDpos().partition(problem)
    assert alone.rewrites
    evaluate = Simulator(problem.graph, problem.cluster, problem.costs, SingleBatch())
    answered = OsDpos().partition(replace(problem, simulator=evaluate))
    seconds = answered.report.notes["foreseen_s"]
    assert evaluate(answered).iteration_s == pytest.approx(min(seconds))


@covering(name=STEPS, parts=[2, 3])
def test_data_parallelism_by_splits_is_the_same_step(name: str, parts: int) -> None:
    step = STEPS[name]
    graph = step.graph()
    splits = along_samples(graph, parts)
    assert splits
    assert_same_step(step, applied(graph, splits))


class Recurrences(nn.Module):
    """One that begins with the same state for every sample, one and a cell that begin with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.begin = nn.Parameter(torch.linspace(-1, 1, 4).view(1, 1, 4))
        self.gated, self.long = nn.GRU(6, 4, batch_first=True), nn.LSTM(4, 6)
        self.cell, self.head = nn.GRUCell(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        said = self.gated(x, self.begin.expand(-1, len(x), -1).contiguous())[0]
        state = torch.zeros(len(x), 6)
        for step in self.long(said.transpose(0, 1))[0]:
            state = self.cell(step, state)
        return self.head(state)


@cache
def recurrences() -> Graph:
    return capture(Recurrences(), nn.CrossEntropyLoss(), (torch.randn(4, 3, 6), torch.randint(3, (4,))))


@pytest.mark.parametrize("model", ["branches", "recurrences"])
def test_data_parallelism_leaves_independent_copies(model: str) -> None:
    """Between the batch and the sum of the loss no part reads what another part made; what is made of weights
    alone is read by all."""
    graph = branches((2, 1)) if model == "branches" else recurrences()
    splits = along_samples(graph, 2)
    of_weights = {node.name for node in graph if node.initializers and not node.inputs}
    assert {each.node for each in splits} == set(graph.nodes) - of_weights
    cut = applied(graph, splits)
    for name, node in cut.nodes.items():
        number = name[-1] if name[-2:] in (":0", ":1") else ""
        feeders = {u[-1] for u in cut.predecessors[name] if u[-2:] in (":0", ":1")}
        assert not number or feeders <= {number}, node


@dataclass(frozen=True)
class Unhindered(OsDpos):
    """OS-DPOS where nothing that moves takes time, so that it splits."""

    def choose(self, problem: Problem) -> Choice:
        links = dict.fromkeys(problem.cluster.links, Link(0.0, 1e-15))
        return super().choose(replace(problem, simulator=None, cluster=problem.cluster.with_links(links)))


@pytest.mark.usefixtures("unmeasured")
def test_its_plan_trains_what_one_device_trains(pools: Pools) -> None:
    case = CASES["attention"]
    batches = [case.another(seed, 8) for seed in range(4)]
    wanted = plain_loop(case.fresh(), case.loss, batches, 2, SGD)
    with (
        lent_to_sessions(pools),
        netsplit.parallelize(
            case.fresh(), case.loss, case.batch(), partitioner=Unhindered(order="fifo"), schedule=GPipe(2),
            optimizer=SGD, progress=False,
        ) as trained,
    ):  # fmt: skip
        placement = trained.plan.placement
        assert placement.rewrites
        assert len(set(placement.device_of.values())) == 2
        losses = [trained.train_batch(*batch) for batch in batches]
        state = trained.state_dict()
    assert losses == pytest.approx(wanted.losses, rel=1e-9)
    for k, tensor in wanted.state.items():
        torch.testing.assert_close(state[k], tensor, rtol=1e-9, atol=1e-9)


def test_a_layer_that_fits_no_device_is_cut_until_it_does() -> None:
    """Capacities that hold no layer whole, and all of them together: the answer keeps them."""
    model = nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Linear(1024, 64))
    graph = capture(model, nn.MSELoss(), (torch.randn(4, 64), torch.randn(4, 64)))
    layer = 4 * 64 * 1024
    room = layer * 8 // 5
    problem = Problem(graph, costs_of(graph), cluster_of([room] * 4))
    assert max(problem.memory_model.load((v,)).nbytes for v in graph.nodes) > room
    placement = OsDpos().partition(problem)
    assert placement.report.notes["start"] == "narrow"
    rewritten = applied(graph, placement.rewrites)
    after = replace(problem, graph=rewritten, costs=rewritten_costs(problem.costs, graph, rewritten))
    verify(after, placement).require()
    little = replace(problem, cluster=cluster_of([layer] * 4))
    with pytest.raises(InfeasibleError, match="missing"):
        OsDpos().partition(little)


SCHEDULES: tuple[Schedule, ...] = (SingleBatch(), GPipe(2))
MEMORY: tuple[MemoryRule, ...] = ("lifetimes", "static")


def ways(lengths: tuple[int, ...], samples: int) -> Graph:
    batch = torch.randn(samples, 6), torch.randint(3, (samples,))
    return capture(Branches(lengths), nn.CrossEntropyLoss(), batch)


GRAPHS = {"one way": ways((3,), 64), "two ways": ways((2, 1), 16), "recurrences": recurrences()}


def replicas_of(problem: Problem) -> tuple[Problem, Placement]:
    """Part j of every operator on device j."""
    own = problem.rewritten(replicate(problem.graph, len(problem.cluster.devices)))
    graph = own.graph
    order = topological_priority(graph, graph.position)
    device_of = devices_of_nodes(graph, problem.cluster.names)
    return own, Placement("given", device_of, order, SolverReport("heuristic", 0.0), rewrites=graph.rewrites)


def with_room(problem: Problem, nbytes: list[int]) -> Problem:
    devices = problem.cluster.devices
    given = tuple(replace(each, capacity_bytes=own) for each, own in zip(devices, nbytes, strict=True))
    return problem.moved_to(replace(problem.cluster, devices=given), problem.costs)


@st.composite
def replicas_that_fit(draw: st.DrawFn) -> Problem:
    """Small models; seconds and links drawn; room for one replica on each device, and little more."""
    graph, count = GRAPHS[draw(st.sampled_from(list(GRAPHS)))], draw(st.integers(2, 4))
    reached, seconds = graph.requires_backward, st.floats(0.01, 3.0)
    nodes = {
        v: NodeSeconds(draw(seconds), draw(seconds) if reached & {*node.outputs} else 0.0)
        for v, node in graph.nodes.items()
    }
    costs = Costs({"cpu": DeviceCosts(nodes, accumulate_s_per_byte=1e-6)}, 2)
    link = st.builds(Link, st.floats(0.0, 0.1), st.floats(0.0, 0.01))
    cluster = cluster_of([10**9] * count)
    cluster = cluster.with_links({ends: draw(link) for ends in cluster.links})
    problem = Workload("drawn", graph, costs, cluster).problem(
        objective="simulated", schedule=draw(st.sampled_from(SCHEDULES)), memory=draw(st.sampled_from(MEMORY))
    )
    own, placement = replicas_of(problem)
    needed = needed_bytes(Instance.of(own), placement).tolist()
    return with_room(problem, [ceil(each * draw(st.sampled_from([1.0, 1.01, 1.2]))) for each in needed])


@settings(quiet, max_examples=tried(24))
@given(problem=replicas_that_fit())
def test_what_fits_as_replicas_is_never_refused(problem: Problem) -> None:
    placement = fitted(problem, OsDpos(time_limit_s=1.0))
    instance = Instance.of(problem.rewritten(placement.rewrites))
    assert (needed_bytes(instance, placement) <= instance.capacity).all()
