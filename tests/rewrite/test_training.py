"""A rewritten graph trains what plain PyTorch trains: any placement, several schedules, both runtimes."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import netsplit
from netsplit.errors import RewriteError
from netsplit.formats.placements import read_placement
from netsplit.graph import Graph, capture, initial_values
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.program import GPipe, Schedule
from netsplit.program.other_batches import with_tail
from netsplit.program.schedules import ZBH1, OneFOneB
from netsplit.rewrite import ReadWeights, Rewrite, Split, applied, rewrite_from, split_axes
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.share import UpdateRule
from tests.cover import covering
from tests.examples import tried
from tests.nets import CASES, SGD
from tests.runtime.equivalence.running import (
    PATIENT,
    assert_same,
    batches_of,
    captured,
    captured_for,
    compiled,
    local,
    on_workers,
    plain,
    scattered,
)
from tests.runtime.references import plain_loop
from tests.workers import Pools, lent_to_sessions

SCHEDULES: dict[str, Schedule] = {
    "gpipe": GPipe(4),
    "gpipe+recompute": GPipe(4, recompute=True),
    "1f1b": OneFOneB(4),
    "zb_h1": ZBH1(4),
}
NAMES = ("attention", "chain", "cells", "tied", "two_inputs", "u_shape")
HEADS: tuple[Rewrite, ...] = (
    Split("linear", 2, (4, 4), blocks=3),
    Split("unflatten", 3, (1, 1)),
    Split("permute", 2, (1, 1)),
    Split("unbind", 1, (1, 1)),
    Split("scaled_dot_product_attention", 1, (1, 1)),
    Split("transpose", 2, (1, 1)),
    Split("flatten", 2, (1, 1)),
    Split("linear_1", "input.2", (4, 4)),
    Split("linear_2", 2, (10, 6)),
    Split("gelu", 2, (10, 6)),
    Split("linear_3", "input.2", (10, 6)),
    ReadWeights("layer_norm"),
)
"""Rewrites of the case "attention": heads apart, and the two layers behind them by columns and rows."""


def drawn(data: st.DataObject, graph: Graph) -> Graph:
    """With some operators in parts, and one that reads its weights as variables."""
    for _ in range(data.draw(st.integers(1, 4), label="rewrites")):
        few = [node.name for node in graph if len(node.outputs) < 8]
        node = data.draw(st.sampled_from(few), label="node")
        axes = split_axes(graph, node) if len(graph) < 100 else {}
        if axes:
            axis = data.draw(st.sampled_from(list(axes)), label="axis")
            first = data.draw(st.integers(1, axes[axis] - 1), label="first")
            with suppress(RewriteError):  # what reads it might need it as it lay
                graph = applied(graph, (*graph.rewrites, Split(node, axis, (first, axes[axis] - first))))
    kinds = ("linear", "conv2d", "layer_norm")
    users = [node.name for node in graph if node.initializers and node.kind in kinds]
    if users:
        reader = ReadWeights(data.draw(st.sampled_from(users), label="reader"))
        graph = applied(graph, (*graph.rewrites, reader))
    return graph


@covering(name=NAMES, schedule=SCHEDULES)
@settings(PATIENT, max_examples=tried(3))
@given(data=st.data())
def test_any_rewrites_under_any_placement(name: str, schedule: str, data: st.DataObject) -> None:
    case, order = CASES[name], SCHEDULES[schedule]
    graph = drawn(data, captured_for(case, order))
    program = compiled(graph, scattered(data, graph, 3), 3, order)
    assert_same(local(program, case, batches_of(case)), plain(name, order.microbatch_size(8)))


def side_by_side(graph: Graph) -> dict[str, str]:
    """Second parts, with what is colocated with them, and whole biases on the second device."""

    def second(name: str) -> bool:
        role = graph.nodes[name].part
        return (role is not None and role.place[-1:] == (1,)) or name.endswith("bias:read")

    device_of = {name: f"cpu:{int(second(name))}" for name in graph.nodes}
    for group in graph.colocated:
        home = next((name for name in group if graph.nodes[name].initializers), "")
        there = second(home) if home else any(map(second, group))
        device_of.update(dict.fromkeys(group, f"cpu:{int(there)}"))
    return device_of


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_heads_side_by_side_on_workers(pools: Pools, schedule: str) -> None:
    """With the gradients' norm, over three steps."""
    case, order = CASES["attention"], SCHEDULES[schedule]
    graph = applied(captured_for(case, order), HEADS)
    homes = side_by_side(graph)
    assert [homes[f"scaled_dot_product_attention:{i}"] for i in range(2)] == ["cpu:0", "cpu:1"]
    program = compiled(graph, homes, 2, order, shared_norm=True)
    trained = on_workers(program, case, batches_of(case, 3), pools(2), rule=UpdateRule(clip_norm=0.1))
    assert_same(trained, plain("attention", order.microbatch_size(8), steps=3, clip_norm=0.1))


@pytest.mark.parametrize("samples", [5, 6, 7])
def test_a_smaller_last_microbatch(samples: int) -> None:
    """Rewrites are done again at its size, those along the samples among them."""
    case = CASES["attention"]
    rewrites = (*HEADS, Split("embedding", 0, (1, 3)), Split("mean", 0, (2, 2)), Split("linear_4", 0, (1, 3)))
    rewrites = (*rewrites, Split("cross_entropy_loss", "self.0", (1, 3)))
    graph = captured("attention", 4)
    whole = applied(graph, rewrites)
    rest = applied(captured("attention", samples - 4), rewrites, whole)
    program = with_tail(compiled(whole, side_by_side(whole), 2, GPipe(2)), whole, rest)
    batches = [case.another(seed, samples) for seed in range(2)]
    assert_same(local(program, case, batches), plain_loop(case.fresh(), case.loss, batches, 4, SGD))


def test_a_loss_in_parts_is_the_mean_over_micro_batches_of_which_unlike_numbers_count(pools: Pools) -> None:
    model = nn.Linear(12, 5).double()
    x = torch.randn(8, 12, dtype=torch.float64)
    y = torch.arange(8) % 5
    y[:3] = -100
    graph = capture(model, nn.CrossEntropyLoss(), (x[:4], y[:4]))
    graph = applied(graph, (Split("cross_entropy_loss", "self.0", (2, 2)),))
    program = compiled(graph, side_by_side(graph), 2, GPipe(2))
    runtime = DistributedRuntime(program, pools(2), initial_values(model, graph), SGD)
    loss = runtime.train_batch((x,), y)
    pairs = zip(x.split(4), y.split(4), strict=True)
    wanted = [nn.functional.cross_entropy(model(a), b).item() for a, b in pairs]
    assert loss == pytest.approx(sum(wanted) / 2, rel=1e-12)


def test_rewrites_are_ready_for_json() -> None:
    again = tuple(rewrite_from(each) for each in json.loads(json.dumps([each.to_dict() for each in HEADS])))
    assert again == HEADS
    with pytest.raises(RewriteError, match="give what its to_dict"):
        rewrite_from({"kind": "split", "node": "linear"})


def test_the_same_rewrites_are_done_once() -> None:
    graph = captured("attention", 2)
    once = applied(graph, HEADS)
    assert applied(graph, list(HEADS)) is once
    assert applied(once, HEADS) is once
    assert once.rewrites == HEADS
    assert graph.rewrites == ()
    assert applied(once, ()) is once
    with pytest.raises(RewriteError, match="other steps"):
        applied(once, HEADS[1:])


@dataclass
class SideBySide(Partitioner):
    """The placement `side_by_side` of a graph that it rewrites."""

    name = "side_by_side"
    rewrites: tuple[Rewrite, ...] = HEADS

    def choose(self, problem: Problem) -> Choice:
        graph = applied(problem.graph, self.rewrites)
        return Choice(side_by_side(graph), rewrites=self.rewrites)


def test_parallelize_trains_parts(pools: Pools, tmp_path: Path, unmeasured: None) -> None:
    """A method that rewrites: batches of usual, odd and other sizes, prediction, a checkpoint, its file."""
    case = CASES["attention"]
    sizes = (8, 6, 8, 4)
    batches = [case.another(seed, size) for seed, size in enumerate(sizes)]
    wanted = plain_loop(case.fresh(), case.loss, batches, 4, SGD)
    plain_model = case.fresh()

    def split(partitioner: Partitioner | str) -> netsplit.ParallelModel:
        return netsplit.parallelize(
            plain_model, case.loss, case.batch(), partitioner=partitioner, schedule=GPipe(2), optimizer=SGD,
            progress=False,
        )  # fmt: skip

    with lent_to_sessions(pools), split(SideBySide()) as trained:
        placement = trained.plan.placement
        assert placement.rewrites == HEADS
        losses = [trained.train_batch(*batch) for batch in batches[:2]]
        trained.save_checkpoint(tmp_path / "two")
        losses += [trained.train_batch(*batch) for batch in batches[2:]]
        state = trained.state_dict()
        inputs, _ = batches[0]
        homes = trained.programs.program.holders
        assert "qkv.weight" not in homes
        assert homes["qkv.weight[0:4, :]"] != homes["qkv.weight[4:8, :]"]
        said = trained.predict(*inputs)
        problem = trained.plan.problem
        file = tmp_path / "placement.json"
        file.write_text(json.dumps(placement.to_dict()))
    assert losses == pytest.approx(wanted.losses, rel=1e-9)
    for k, tensor in wanted.state.items():
        torch.testing.assert_close(state[k], tensor, rtol=1e-9, atol=1e-9)
    reference: nn.Module = case.fresh()
    reference.load_state_dict(state)
    torch.testing.assert_close(said, reference.eval()(*inputs), rtol=1e-9, atol=1e-9)
    again = read_placement(file, problem)
    assert (again.rewrites, again.device_of) == (placement.rewrites, placement.device_of)
    with lent_to_sessions(pools), split("round_robin") as resumed:
        resumed.load_checkpoint(tmp_path / "two")
        rest = [resumed.train_batch(*batch) for batch in batches[2:]]
    assert rest == pytest.approx(wanted.losses[2:], rel=1e-9)
