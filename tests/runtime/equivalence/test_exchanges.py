"""Variables that devices hand on to one another, and their gradients: what is trained stays the same."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from netsplit.errors import ConfigError
from netsplit.graph import capture, initial_values
from netsplit.graph.ir import Graph
from netsplit.partition.base import Problem
from netsplit.placement.exchange import Exchange, chain
from netsplit.placement.placement import Placement, SolverReport, Stage
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.profile.measure.predicted_bytes import predicted_transients
from netsplit.program import Program, Schedule
from netsplit.program.other_batches import with_tail
from netsplit.program.schedules import AsyncOneFOneB, OneFOneB
from netsplit.program.transfers import readers_elsewhere
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.share import UpdateRule
from netsplit.simulate import predicted_peak_bytes
from netsplit.simulate.simulate import simulate
from netsplit.simulate.simulator import Simulator
from tests.builders import cpus
from tests.cover import covering
from tests.examples import tried
from tests.nets import CASES, SGD
from tests.rewrite.test_training import drawn
from tests.runtime.equivalence.running import (
    PATIENT,
    SCHEDULES,
    assert_same,
    batches_of,
    captured_for,
    compiled,
    local,
    on_workers,
    plain,
    scattered,
)
from tests.runtime.references import Trained, plain_loop
from tests.simulate.test_memory import MOMENTUM, measured_peak_bytes
from tests.simulate.timeline_check import wrong_in
from tests.workers import Pools, by_gloo

DEVICES = 4


def read_elsewhere(graph: Graph, device_of: dict[str, str]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Variables that several other devices read: home and readers."""
    made = [k for k, variable in graph.variables.items() if variable.producer is not None]
    known = {k: readers_elsewhere(graph, device_of, k) for k in made}
    return {k: (home, readers) for k, (home, readers) in known.items() if len(readers) > 1}


def chains(graph: Graph, device_of: dict[str, str]) -> tuple[Exchange, ...]:
    elsewhere = read_elsewhere(graph, device_of).items()
    return tuple(chain(k, home, readers) for k, (home, readers) in elsewhere)


@st.composite
def trees(draw: st.DrawFn, graph: Graph, device_of: dict[str, str]) -> tuple[Exchange, ...]:
    """Any way of handing on, for every variable that several devices read."""
    exchanges = []
    for k, (home, readers) in read_elsewhere(graph, device_of).items():
        order = draw(st.permutations(readers))
        having, hops = [home], []
        for q in order:
            hops.append((having[draw(st.integers(0, len(having) - 1))], q))
            having.append(q)
        exchanges.append(Exchange(k, tuple(hops)))
    return tuple(exchanges)


def require_same_order(
    program: Program, graph: Graph, device_of: dict[str, str], priority: dict[str, int], schedule: Schedule
) -> None:
    """The simulator's timeline is checked by code that knows exchanges from its messages alone."""
    nodes = {node.name: NodeSeconds(1.0, 2.0, float(bool(node.initializers))) for node in graph}
    costs, cluster = Costs({"cpu": DeviceCosts(nodes)}, 2), cpus(len(program.devices))
    problem = Problem(graph, costs, cluster, simulator=Simulator(graph, cluster, costs, schedule))
    stages = tuple(
        Stage(tuple(name for name, device in device_of.items() if device == first), each)
        for first, each in program.replicas.items()
    )
    report = SolverReport("heuristic", 0.0)
    placement = Placement("drawn", device_of, priority, report, stages, exchanges=program.exchanges)
    assert wrong_in(problem, placement, program, simulate(program, cluster, costs)) == []


@pytest.mark.parametrize("name", ["tied", "fan", "u_shape", "two_inputs", "attention"])
@settings(PATIENT, max_examples=tried(8))
@given(data=st.data())
def test_any_way_of_handing_on_trains_what_one_device_trains(name: str, data: st.DataObject) -> None:
    case = CASES[name]
    schedule = SCHEDULES[data.draw(st.sampled_from(sorted(SCHEDULES)), label="schedule")]
    graph = captured_for(case, schedule)
    device_of, priority = scattered(data, graph, DEVICES)
    exchanges = data.draw(trees(graph, device_of), label="exchanges")
    program = compiled(graph, (device_of, priority), DEVICES, schedule, exchanges=exchanges)
    require_same_order(program, graph, device_of, priority, schedule)
    trained = local(program, case, batches_of(case))
    assert_same(trained, plain(name, schedule.microbatch_size(8)))


class Codes(nn.Module):
    """An activation with readers that give no gradient back, beside parameters that have one."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.middle, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.codes, self.more = nn.Embedding(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inward(x))
        looked_up = self.codes(h.argmax(-1)) + self.more(h.detach())
        mask = (h > 0).to(h.dtype)
        return self.head(torch.relu(self.middle(h)) + looked_up * mask + self.more(mask))


@cache
def codes(size: int) -> Graph:
    torch.manual_seed(3)
    return capture(Codes().double(), nn.CrossEntropyLoss(), coded(0, size))


def coded(seed: int, size: int = 8) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 8, generator=draw, dtype=torch.float64)
    return x, torch.randint(5, (size,), generator=draw)


def coded_model() -> nn.Module:
    torch.manual_seed(3)
    return Codes().double()


@settings(PATIENT, max_examples=tried(40))
@given(data=st.data())
def test_readers_that_give_no_gradient_back(data: st.DataObject) -> None:
    """Who hands on waits for the gradients that come, and for no others."""
    schedule = SCHEDULES[data.draw(st.sampled_from(sorted(SCHEDULES)), label="schedule")]
    size = schedule.microbatch_size(8)
    graph = codes(size)
    device_of, priority = scattered(data, graph, DEVICES)
    exchanges = data.draw(trees(graph, device_of), label="exchanges")
    program = compiled(graph, (device_of, priority), DEVICES, schedule, exchanges=exchanges)
    require_same_order(program, graph, device_of, priority, schedule)
    assert_same(*coded_and_plain(program, graph, size))


def coded_and_plain(program: Program, graph: Graph, size: int) -> tuple[Trained, Trained]:
    batches = [((x,), y) for x, y in (coded(seed) for seed in range(2))]
    cluster = cpus(len(program.devices))
    runtime = LocalRuntime(program, cluster, initial_values(coded_model(), graph), SGD)
    trained = Trained([runtime.train_batch(*batch) for batch in batches], runtime.state())
    return trained, plain_loop(coded_model(), nn.CrossEntropyLoss(), batches, size, SGD)


FAN = CASES["fan"]


def fanned(schedule: Schedule, size: int = 8) -> tuple[Graph, dict[str, str]]:
    """One activation is made on the first device and read on all others, each of which has a piece."""
    graph = captured_for(FAN, schedule, size)
    names = list(graph.nodes)
    return graph, {name: f"cpu:{min(max(n + 1, 0) // 3, 3)}" for n, name in enumerate(names)}


@settings(PATIENT, max_examples=tried(12))
@given(data=st.data())
def test_weights_and_parts_are_handed_on(data: st.DataObject) -> None:
    """With rewrites, of which some make weights variables: those go once for all micro-batches."""
    name = data.draw(st.sampled_from(("attention", "tied", "u_shape")), label="name")
    schedule = SCHEDULES[data.draw(st.sampled_from(sorted(SCHEDULES)), label="schedule")]
    graph = drawn(data, captured_for(CASES[name], schedule))
    device_of, priority = scattered(data, graph, DEVICES)
    exchanges = data.draw(trees(graph, device_of), label="exchanges")
    program = compiled(graph, (device_of, priority), DEVICES, schedule, exchanges=exchanges)
    require_same_order(program, graph, device_of, priority, schedule)
    assert_same(
        local(program, CASES[name], batches_of(CASES[name])), plain(name, schedule.microbatch_size(8))
    )


@covering(name=["1f1b", "zb_h1"], gloo=[False, True])
def test_on_workers(pools: Pools, name: str, gloo: bool) -> None:
    """Whether workers read one another's memory or not, what they hand on arrives; with a clipped norm."""
    schedule = SCHEDULES[name]
    graph, device_of = fanned(schedule)
    exchanges = chains(graph, device_of)
    program = compiled(graph, device_of, DEVICES, schedule, exchanges=exchanges, shared_norm=True)
    rule = UpdateRule(clip_norm=0.05)
    with by_gloo(pools(DEVICES)) if gloo else nullcontext(pools(DEVICES)) as pool:
        trained = on_workers(program, FAN, batches_of(FAN, 3), pool, rule=rule)
    assert_same(trained, plain("fan", 2, 3, clip_norm=0.05))


def test_a_smaller_last_microbatch() -> None:
    schedule = OneFOneB(4)
    graph, device_of = fanned(schedule)
    tail, _ = fanned(OneFOneB(1), 1)
    program = compiled(graph, device_of, DEVICES, schedule, exchanges=chains(graph, device_of))
    batches = [FAN.another(seed, 7) for seed in range(2)]
    trained = local(with_tail(program, graph, tail), FAN, batches)
    assert_same(trained, plain_loop(FAN.fresh(), FAN.loss, batches, 2, SGD))


def test_devices_that_step_within_the_batch_train_the_same_with_chains() -> None:
    """Each micro-batch's version of what is read is handed on."""
    schedule = AsyncOneFOneB(8)
    graph, device_of = fanned(schedule)
    each, handed = (
        local(compiled(graph, device_of, DEVICES, schedule, exchanges=exchanges), FAN, batches_of(FAN))
        for exchanges in ((), chains(graph, device_of))
    )
    assert_same(handed, each)


def test_a_chain_that_leaves_a_reader_out_is_refused() -> None:
    schedule = OneFOneB(4)
    graph, device_of = fanned(schedule)
    (whole,) = chains(graph, device_of)
    for hops, why in (
        (whole.hops[:-1], "does not get it"),
        ((*whole.hops, ("cpu:3", "cpu:1")), "has it already"),
        (whole.hops[::-1], "before it has it"),
    ):
        with pytest.raises(ConfigError, match=why):
            compiled(graph, device_of, DEVICES, schedule, exchanges=(replace(whole, hops=hops),))


@pytest.mark.parametrize("schedule", [OneFOneB(4), SCHEDULES["gpipe"], SCHEDULES["zb_h1"]])
def test_bytes_of_what_is_handed_on_are_predicted(schedule: Schedule) -> None:
    """Never too few; at most a send too many, which is held until the next computation is over."""
    torch.manual_seed(1)
    model = Wide()
    draw = torch.Generator().manual_seed(2)
    x, y = torch.randn(512, 40, generator=draw), torch.randint(10, (512,), generator=draw)
    graph = capture(model, nn.CrossEntropyLoss(), (x[:128], y[:128]))
    transients = {f"cpu:{p}": predicted_transients(graph) for p in range(3)}
    device_of = {name: f"cpu:{(n > 1) + (n > 3)}" for n, name in enumerate(graph.nodes)}
    program = compiled(graph, device_of, 3, schedule, exchanges=chains(graph, device_of))
    assert len(program.exchanges) == 1
    measured = measured_peak_bytes(program, initial_values(model, graph), (x,), y)
    for device, nbytes in predicted_peak_bytes(program, MOMENTUM, transients).items():
        assert 0.999 * measured[device] <= nbytes <= 1.05 * measured[device]


class Wide(nn.Module):
    """An activation that is read by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.middle, self.head = nn.Linear(40, 300), nn.Linear(300, 300), nn.Linear(300, 10)

    def forward(self, x: Tensor) -> Tensor:
        shared = torch.tanh(self.inward(x))
        return self.head(torch.sigmoid(self.middle(shared)) * shared)
