"""What is the same in all micro-batches is sent once in a step, and one sum of gradients comes back."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from netsplit.graph import Graph, capture, initial_values
from netsplit.graph.operators import unchanging
from netsplit.partition.base import Problem
from netsplit.partition.bounds.iteration_bound import iteration_bound_s
from netsplit.partition.bounds.iteration_tasks import AnySchedule
from netsplit.placement.placement import Placement, SolverReport
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.profile.measure.predicted_bytes import predicted_transients
from netsplit.program import GPipe, OneFOneB, Program, Schedule
from netsplit.program.instructions import Send
from netsplit.program.schedules import ZBH1, AsyncOneFOneB
from netsplit.rewrite import ReadWeights, applied
from netsplit.runtime.local import LocalRuntime
from netsplit.simulate import predicted_peak_bytes, simulate
from netsplit.simulate.simulator import Simulator
from tests.builders import cpus
from tests.examples import tried
from tests.nets import CASES, SGD
from tests.rewrite.test_training import drawn
from tests.runtime.equivalence.running import (
    PATIENT,
    SCHEDULES,
    Placed,
    assert_same,
    batches_of,
    captured_for,
    compiled,
    local,
    plain,
    scattered,
)
from tests.runtime.references import Trained, assert_same_bits, plain_loop
from tests.simulate.test_memory import MOMENTUM, measured_peak_bytes
from tests.simulate.timeline_check import wrong_in

NAMES = ("attention", "tied", "u_shape")
LOSS = nn.CrossEntropyLoss()


def mlp() -> nn.Sequential:
    torch.manual_seed(3)
    layers = nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 9), nn.GELU(), nn.Linear(9, 4)
    return nn.Sequential(*layers).double()


def batch(seed: int = 0, samples: int = 8) -> tuple[tuple[Tensor], Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 6, generator=draw, dtype=torch.float64)
    return (x,), torch.randint(4, (samples,), generator=draw)


def read_elsewhere(samples: int = 2) -> tuple[Graph, dict[str, str]]:
    """All weights at home on the first device; the middle layer computes on the second."""
    (x,), y = batch(0, samples)
    graph = applied(capture(mlp(), LOSS, (x, y)), [ReadWeights("linear_1")])
    return graph, {name: f"cpu:{int(name == 'linear_1')}" for name in graph.nodes}


def counted(program: Program) -> dict[tuple[str, bool], int]:
    """(variable, gradient?) -> how often it is sent."""
    sends = (ins for each in program.instructions.values() for ins in each if isinstance(ins, Send))
    return dict(Counter((ins.source, ins.gradient) for ins in sends))


def test_a_weight_travels_once_and_activations_with_every_microbatch() -> None:
    graph, homes = read_elsewhere()
    sent = counted(compiled(graph, homes, 2, OneFOneB(4)))
    for k in ("2.weight:read", "2.bias:read"):
        assert (sent[k, False], sent[k, True]) == (1, 1)
    assert (sent["gelu.0" if "gelu.0" in graph.variables else "gelu", False]) == 4


FEW = ("gpipe+recompute", "zb_v+recompute", "searched")
REST = [pytest.param(each, marks=pytest.mark.slow) for each in SCHEDULES if each not in FEW]


@pytest.mark.parametrize("schedule", [*FEW, *REST])
@pytest.mark.parametrize("name", NAMES)
@settings(PATIENT, max_examples=tried(1))
@given(data=st.data())
def test_it_trains_what_plain_pytorch_trains(name: str, schedule: str, data: st.DataObject) -> None:
    """Whatever is rewritten and placed: one transfer of what lasts to each device, and a right timeline."""
    case, order = CASES[name], SCHEDULES[schedule]
    graph = drawn(data, captured_for(case, order))
    placed = scattered(data, graph, 3)
    program = compiled(graph, placed, 3, order)
    readers = Counter(program.graph.nodes[k].inputs[0] for k in program.lasting)
    for (k, gradient), count in counted(program).items():
        if k in unchanging(graph):
            assert count == readers[k] or (gradient and count < readers[k])
        else:
            assert count % program.microbatches == 0
    assert_same(local(program, case, batches_of(case)), plain(name, order.microbatch_size(8)))
    assert_foreseen(graph, placed, program, order)


def assert_foreseen(graph: Graph, placed: Placed, program: Program, schedule: Schedule) -> None:
    """The timeline computes the step, and no iteration takes less than the bound says."""
    seconds = {name: NodeSeconds(1e-3 + 1e-4 * i, 2e-3, 1e-3) for i, name in enumerate(graph.nodes)}
    adding = DeviceCosts(seconds, step_s_per_byte=1e-6, instruction_s=1e-5, accumulate_s_per_byte=1e-6)
    cluster = cpus(3)
    costs = Costs({device.kind: adding for device in cluster.devices}, alpha=3)
    evaluate = Simulator(graph, cluster, costs, schedule)
    problem = Problem(graph, costs, cluster, simulator=evaluate)
    report = SolverReport("drawn", "feasible")
    placement = Placement("drawn", *placed, report)
    timeline = simulate(program, cluster, costs)
    assert wrong_in(problem, placement, program, timeline) == []
    if schedule.update_every is None:
        bound_s = iteration_bound_s(problem, AnySchedule.under(evaluate, False))
        assert bound_s <= timeline.iteration_s * (1 + 1e-9)


@pytest.mark.parametrize("schedule", [OneFOneB(4), ZBH1(4), GPipe(4, recompute=True)])
def test_the_sums_are_the_plain_loop_s_to_the_last_bit(schedule: Schedule) -> None:
    """Micro-batch by micro-batch a parameter that one operator reads gets the same additions."""
    graph, homes = read_elsewhere()
    batches = [batch(seed) for seed in range(3)]
    runtime = LocalRuntime(compiled(graph, homes, 2, schedule), cpus(2), initial_values(mlp(), graph), SGD)
    trained = Trained([runtime.train_batch(*each) for each in batches], runtime.state())
    assert_same_bits(trained, plain_loop(mlp(), LOSS, batches, 2, SGD))


def test_gradients_of_several_batches_are_added_up() -> None:
    """A step after two batches: each sends its own sum."""
    graph, homes = read_elsewhere()
    program = compiled(graph, homes, 2, OneFOneB(4))
    runtime = LocalRuntime(program, cpus(2), initial_values(mlp(), graph), SGD)
    batches = [batch(seed) for seed in range(4)]
    losses = [runtime.train_batch(*each, fraction=0.5, step=bool(n % 2)) for n, each in enumerate(batches)]
    trained = Trained(losses, runtime.state())
    assert_same(trained, plain_loop(mlp(), LOSS, batches, 2, SGD, group=2), 1e-12)


def test_a_replicated_reader_and_a_replicated_home() -> None:
    """Each replica is sent the weights once, and sends one gradient."""
    graph, homes = read_elsewhere()
    for first, expected in (("cpu:1", 2), ("cpu:0", 1)):
        groups = {first: (first, "cpu:2")}
        program = compiled(graph, homes, 3, OneFOneB(4), replicas=groups)
        sent = counted(program)
        assert (sent["2.weight:read", False], sent["2.weight:read", True]) == (expected, expected)
        runtime = LocalRuntime(program, cpus(3), initial_values(mlp(), graph), SGD)
        batches = [batch(seed) for seed in range(2)]
        trained = Trained([runtime.train_batch(*each) for each in batches], runtime.state())
        assert_same(trained, plain_loop(mlp(), LOSS, batches, 2, SGD), 1e-12)


def test_where_devices_step_within_the_batch_every_version_is_sent() -> None:
    graph, homes = read_elsewhere()
    program = compiled(graph, homes, 2, AsyncOneFOneB(4))
    assert program.lasting == frozenset()
    assert counted(program)["2.weight:read", False] == 4


class Written(nn.Module):
    """Two parameters put together, and then perhaps changed."""

    def __init__(self, changed: bool) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.ones(2, 6, dtype=torch.float64)) for _ in range(2))
        self.changed = changed

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.a, self.b])
        if self.changed:
            both.add_(1.0)
        return x @ both.t()


@pytest.mark.parametrize("changed", [False, True])
def test_what_is_written_in_place_does_not_last(changed: bool) -> None:
    (x,), y = batch(0, 2)
    assert len(unchanging(capture(Written(changed), LOSS, (x, y)))) == int(not changed)


class Wide(nn.Sequential):
    """Weights that are most of all bytes."""

    def __init__(self) -> None:
        layers = nn.Linear(40, 300), nn.GELU(), nn.Linear(300, 300), nn.GELU(), nn.Linear(300, 10)
        super().__init__(*layers)


@pytest.mark.parametrize("schedule", [GPipe(4), OneFOneB(4), ZBH1(4), GPipe(4, recompute=True)])
@pytest.mark.parametrize("readers", [("linear_1",), ("linear_1", "linear_2")])
def test_bytes_of_what_lasts_are_predicted(schedule: Schedule, readers: tuple[str, ...]) -> None:
    """The reader has the weight as long as it reads it, and one gradient of it."""
    draw = torch.Generator().manual_seed(2)
    x, y = torch.randn(16, 40, generator=draw), torch.randint(10, (16,), generator=draw)
    torch.manual_seed(1)
    model = Wide()
    graph = applied(capture(model, LOSS, (x[:4], y[:4])), [ReadWeights(each) for each in readers])
    homes = {name: f"cpu:{int(name in readers)}" for name in graph.nodes}
    program = compiled(graph, homes, 2, schedule)
    measured = measured_peak_bytes(program, initial_values(model, graph), (x,), y)
    predicted = predicted_peak_bytes(
        program, MOMENTUM, dict.fromkeys(program.devices, predicted_transients(graph))
    )
    assert measured == pytest.approx(predicted, rel=0.03)
