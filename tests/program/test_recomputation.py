"""Parts of segments that are computed again: which they are, and that training is what it was."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from netsplit.graph import Graph, capture, initial_values
from netsplit.profile.measure.predicted_bytes import transient_bytes
from netsplit.program import GPipe, OneFOneB, Program, Schedule
from netsplit.program.instructions import Forward
from netsplit.program.schedules import ZBH1, ZBV, AsyncOneFOneB, DualPipeV, VMin
from netsplit.simulate import predicted_peak_bytes
from tests.cover import covering
from tests.nets import CASES, DRAWING, DROPPED, Case
from tests.runtime.equivalence.running import (
    PATIENT,
    SCHEDULES,
    assert_same,
    batches_of,
    captured_for,
    compiled,
    cut,
    local,
    plain,
    scattered,
)
from tests.runtime.references import assert_same_bits
from tests.simulate.test_memory import MOMENTUM, chain_of, measured_peak_bytes, node_of

IN_TWO_PARTS = (ZBH1(4), ZBV(4), VMin(4), DualPipeV(4))

ON_ONE_DEVICE = (GPipe(4), OneFOneB(4, delay_weights=True))


def drawn_nodes(data: st.DataObject, graph: Graph) -> frozenset[str]:
    """Any nodes, or a run of them."""
    names = list(graph.nodes)
    if data.draw(st.booleans(), label="a run"):
        ends = data.draw(st.tuples(*[st.integers(0, len(names))] * 2))
        return frozenset(names[min(ends) : max(ends)])
    return frozenset(data.draw(st.sets(st.sampled_from(names)), label="recomputed"))


def again(program: Program) -> list[tuple[str, ...]]:
    """Nodes of the parts that are recomputed, of micro-batch 0."""
    return [
        program.segments[ins.segment].nodes
        for each in program.instructions.values()
        for ins in each
        if isinstance(ins, Forward) and ins.recompute and ins.microbatch == 0
    ]


@covering(name=CASES, schedule=SCHEDULES)
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_any_recomputation_trains_as_plain_pytorch_does(
    name: str, schedule: str, data: st.DataObject
) -> None:
    case, order = CASES[name], SCHEDULES[schedule]
    graph = captured_for(case, order)
    placed = scattered(data, graph, 3)
    program = compiled(graph, placed, 3, order, recomputed=drawn_nodes(data, graph))
    wanted = plain(name, order.microbatch_size(8))
    assert_same(local(program, case, batches_of(case)), wanted)


@pytest.mark.parametrize("order", [GPipe(4), AsyncOneFOneB(4)], ids=lambda order: order.name)
@pytest.mark.parametrize("case", [DROPPED, DRAWING], ids=lambda case: case.name)
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_random_operators_draw_the_same_numbers_again(
    case: Case, order: Schedule, data: st.DataObject
) -> None:
    graph = captured_for(case, order)
    kept = compiled(graph, cut(graph, [0.4]), 2, order)
    anew = compiled(graph, cut(graph, [0.4]), 2, order, recomputed=drawn_nodes(data, graph))
    assert_same_bits(local(anew, case, batches_of(case)), local(kept, case, batches_of(case)))


def test_replicas_recompute_what_the_first_does() -> None:
    case = CASES["tied"]
    graph = captured_for(case, GPipe(4))
    options = {"replicas": {"cpu:0": ("cpu:0", "cpu:2")}}
    placed = cut(graph, [0.5])
    kept = compiled(graph, placed, 3, GPipe(4), **options)
    anew = compiled(graph, placed, 3, GPipe(4), recomputed=frozenset(graph.nodes), **options)
    assert {ins.segment for ins in anew.instructions["cpu:2"] if isinstance(ins, Forward) and ins.recompute}
    assert_same(local(anew, case, batches_of(case)), local(kept, case, batches_of(case)))


def bytes_of(name: str, order: Schedule, program: Program) -> tuple[dict[str, int], dict[str, int]]:
    """What is metered and what is predicted of every device that has something to do."""
    case, graph = CASES[name], captured_for(CASES[name], order)
    values = initial_values(case.fresh(), graph)
    rows = tuple(tensor[: order.microbatch_size(8)] for tensor in (*case.inputs, case.targets))
    transients = dict.fromkeys(program.devices, transient_bytes(graph, rows, values, "cpu"))
    metered = measured_peak_bytes(program, values, case.inputs, case.targets)
    return metered, predicted_peak_bytes(program, MOMENTUM, transients)


def assert_metered_on_one_device(name: str, order: Schedule, recomputed: frozenset[str]) -> None:
    graph = captured_for(CASES[name], order)
    program = compiled(graph, cut(graph, []), 1, order, recomputed=recomputed)
    metered, predicted = bytes_of(name, order, program)
    assert predicted["cpu:0"] == pytest.approx(metered["cpu:0"], rel=0.01)


@covering(name=["chain", "cells", "u_shape"], order=ON_ONE_DEVICE)
@settings(PATIENT, max_examples=3)
@given(data=st.data())
def test_bytes_are_those_that_are_metered(name: str, order: Schedule, data: st.DataObject) -> None:
    """On one device."""
    graph = captured_for(CASES[name], order)
    assert_metered_on_one_device(name, order, drawn_nodes(data, graph))


@covering(name=["chain", "cells", "u_shape"], order=IN_TWO_PARTS)
@settings(PATIENT, max_examples=2)
@given(data=st.data())
def test_devices_that_are_come_back_to_take_no_more_than_predicted(
    name: str, order: Schedule, data: st.DataObject
) -> None:
    """But for 1 %, or scalars of the loss."""
    graph = captured_for(CASES[name], order)
    at = sorted(data.draw(st.lists(st.floats(0, 1), min_size=3, max_size=3), label="cuts"))
    back = ["cpu:0", "cpu:1", "cpu:1", "cpu:0"]
    placed = {node: back[int(device[4:])] for node, device in cut(graph, at).items()}
    program = compiled(graph, placed, 2, order, recomputed=drawn_nodes(data, graph))
    metered, predicted = bytes_of(name, order, program)
    assert all(nbytes <= max(1.01 * predicted[q], predicted[q] + 64) for q, nbytes in metered.items())


def test_no_part_divides_a_unit_or_the_models_own_checkpoint() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(6))
            self.out = nn.Linear(12, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers[:2]:
                x = torch.relu(layer(x))
            x = checkpoint(self._inner, x, use_reentrant=False)
            return self.out(x)

        def _inner(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers[2:]:
                x = torch.tanh(layer(x))
            return x

    graph = capture(Own(), nn.CrossEntropyLoss(), (torch.randn(2, 12), torch.randint(0, 5, (2,))))
    own = {node.name for node in graph if node.checkpoint}
    assert len(own) == 8
    program = compiled(graph, cut(graph, []), 1, GPipe(4), recomputed=frozenset(graph.nodes))
    assert sum(not own.isdisjoint(segment.nodes) for segment in program.segments) == 1
    half = frozenset(sorted(own)[:3])
    assert not again(compiled(graph, cut(graph, []), 1, GPipe(4), recomputed=half))
    in_place = captured_for(CASES["in_place"], GPipe(4))
    program = compiled(in_place, cut(in_place, []), 1, GPipe(4), recomputed=frozenset(in_place.nodes))
    for unit in in_place.units:
        assert sum(not set(unit).isdisjoint(segment.nodes) for segment in program.segments) == 1


def test_segments_of_a_device_are_cut_together() -> None:
    """Parts within each would hand on more, all in all, than the largest has inside."""
    narrow, wide = nn.Linear(64, 16), nn.Linear(16, 64)
    layers = (nn.Sequential(wide, nn.Tanh(), narrow, wide, nn.Tanh(), narrow) for _ in range(12))
    batch = torch.zeros(64, 16), torch.zeros(64, 16)
    graph = capture(nn.Sequential(*layers), nn.MSELoss(), batch)
    cuts = tuple(graph.nodes)[6::6]
    placed, every = cut(graph, []), frozenset(graph.nodes)
    program = compiled(graph, placed, 1, GPipe(1), recomputed=every, cuts=cuts)
    assert len(program.segments) == len(cuts) + 1


def test_full_recomputation_is_block_by_block() -> None:
    blocks = (
        nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(5)
    )
    batch = torch.zeros(64, 16), torch.zeros(64, 16)
    graph = capture(nn.Sequential(*blocks), nn.MSELoss(), batch)
    program = compiled(graph, cut(graph, []), 1, GPipe(2, recompute="full"))
    assert [len(segment.nodes) for segment in program.segments] == [4, 4, 4, 4, 4, 2]  # the loss has two
    chain = captured_for(CASES["chain"], GPipe(4))  # whose numbered modules have one product at most
    few = compiled(chain, cut(chain, []), 1, GPipe(4, recompute="full"))
    assert len(few.segments) < len(chain) / 2


def saving_chain(sizes: Sequence[int]) -> Graph:
    """Each node saves what it reads (100 bytes) and so many bytes beside."""
    nodes, reads = [], "x"
    for n, size in enumerate(sizes):
        nodes.append(node_of(f"n{n}", reads, saved=(reads,), saved_bytes=size))
        reads = f"k_n{n}"
    return chain_of(*nodes)
