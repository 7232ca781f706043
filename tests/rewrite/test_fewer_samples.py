"""Rewrites done again at fewer samples, fewer than there are parts too: empty parts compute nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import cast

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from netsplit.errors import RewriteError
from netsplit.graph import Graph
from netsplit.rewrite import Rewrite, Split, along_samples, also, applied, replicate, split_axes
from netsplit.rewrite.records import proportioned
from tests.examples import tried
from tests.rewrite.models import STEPS, Step, assert_same_step


def fewer(step: Step, samples: int) -> Step:
    return replace(step, inputs=step.inputs[:samples], targets=step.targets[:samples])


def assert_same_nodes(tail: Graph, graph: Graph) -> None:
    assert list(tail.nodes) == list(graph.nodes)
    assert list(tail.variables) == list(graph.variables)
    assert all(tail.nodes[name].inputs == graph.nodes[name].inputs for name in graph.nodes)


@pytest.mark.parametrize("name", STEPS)
def test_data_parallelism_of_fewer_samples_than_parts(name: str) -> None:
    """With copies of the weights and without, in uneven parts."""
    step = STEPS[name]
    for rewrites in (replicate(step.graph(), 2), along_samples(step.graph(), (3.0, 1.0, 1.0, 2.0))):
        graph = applied(step.graph(), rewrites)
        assert len(graph) > 1.5 * len(step.graph())
        for samples in (1, 3):
            tail = applied(fewer(step, samples).graph(), rewrites, graph)
            assert_same_nodes(tail, graph)
            assert_same_step(fewer(step, samples), tail)


class Filled(nn.Module):
    """First states that are made of numbers, one with a tensor's dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.cell, self.outer = nn.Linear(6, 5), nn.LSTMCell(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h, cell = x.new_ones(len(x), 5), torch.zeros(len(x), 5, dtype=x.dtype)
        h, cell = self.cell(self.inner(x), (h, cell))
        return cast(Tensor, self.outer(self.cell(torch.tanh(h), (h, cell))[0]))


@pytest.mark.parametrize("made", ["zeros", "new_ones"])
def test_what_is_made_of_a_number_is_cut_again_within_an_empty_part(made: str) -> None:
    draw = torch.Generator().manual_seed(3)
    x, y = torch.randn(8, 6, generator=draw).double(), torch.randint(3, (8,), generator=draw)
    step = Step(Filled, nn.CrossEntropyLoss(), x, y)
    rewrites: tuple[Rewrite, ...] = along_samples(step.graph(), 2)
    rewrites = (*rewrites, Split(f"{made}:1", 1, (3, 2)))
    graph = applied(step.graph(), rewrites)
    for samples in (1, 3):
        tail = applied(fewer(step, samples).graph(), rewrites, graph)
        assert_same_nodes(tail, graph)
        assert_same_step(fewer(step, samples), tail)


class Instances(nn.Module):
    """What torch has no forward of where there is no sample, and what it has no gradient of."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.head = nn.Conv2d(2, 8, 1), nn.Linear(2 * 4 * 4, 5)
        self.norm, self.plain = nn.InstanceNorm2d(8, affine=True), nn.InstanceNorm1d(2)
        self.shuffle = nn.PixelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.shuffle(self.norm(self.wide(x)))
        return cast(Tensor, self.head(self.plain(x.flatten(2)).flatten(1)))


def instances() -> Step:
    draw = torch.Generator().manual_seed(3)
    x, y = torch.randn(8, 2, 2, 2, generator=draw).double(), torch.randint(5, (8,), generator=draw)
    return Step(Instances, nn.CrossEntropyLoss(), x, y)


@pytest.mark.parametrize(
    "again", [None, *[(k, d) for k in ("instance_norm:1", "pixel_shuffle:1") for d in (0, 1)]]
)
def test_instances_and_shuffles_in_empty_parts_that_are_cut_again(again: tuple[str, int] | None) -> None:
    step = instances()
    rewrites: tuple[Rewrite, ...] = along_samples(step.graph(), 2)
    if again is not None:
        sizes = proportioned(split_axes(applied(step.graph(), rewrites), again[0])[again[1]], (1.0, 1.0))
        rewrites = (*rewrites, Split(*again, sizes))
    graph = applied(step.graph(), rewrites)
    assert {"instance_norm:1", "instance_norm_1:1", "pixel_shuffle:1"} <= graph.nodes.keys()
    for samples in (1, 3):
        tail = applied(fewer(step, samples).graph(), rewrites, graph)
        if again is None:
            assert_same_nodes(tail, graph)
        assert_same_step(fewer(step, samples), tail)


class Attending(nn.Module):
    """Attention with the samples in either place, whose views lay them between tokens and heads."""

    def __init__(self, inner: nn.Module, batch_first: bool, weights: bool) -> None:
        super().__init__()
        self.inner, self.head = inner, nn.Linear(8, 5)
        self.batch_first, self.weights = batch_first, weights

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        if isinstance(self.inner, nn.MultiheadAttention):
            x, weights = self.inner(x, x, x, need_weights=self.weights)
        else:
            x, weights = self.inner(x), None
        x = x if self.batch_first else x.transpose(0, 1)
        seen = 0.0 if weights is None else weights.square().sum((1, 2)).unsqueeze(1)
        return cast(Tensor, self.head(x.amax(1)) * (1.0 + seen))


@cache
def attending(layer: bool, batch_first: bool, weights: bool) -> Step:
    def build() -> nn.Module:
        if layer:
            return Attending(
                nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=batch_first), batch_first, False
            )
        return Attending(nn.MultiheadAttention(8, 2, batch_first=batch_first), batch_first, weights)

    draw = torch.Generator().manual_seed(3)
    x, y = torch.randn(8, 5, 8, generator=draw).double(), torch.randint(5, (8,), generator=draw)
    return Step(build, nn.CrossEntropyLoss(), x, y)


@settings(deadline=None, max_examples=tried(12))
@given(
    step=st.builds(attending, st.booleans(), st.booleans(), st.booleans()),
    parts=st.integers(2, 5),
    copies=st.booleans(),
    data=st.data(),
)
def test_attention_of_fewer_samples_than_parts(
    step: Step, parts: int, copies: bool, data: st.DataObject
) -> None:
    own = fewer(step, data.draw(st.integers(1, parts - 1), label="samples"))
    rewrites: tuple[Rewrite, ...] = (replicate if copies else along_samples)(step.graph(), parts)
    graph = applied(step.graph(), rewrites)
    assert any(f":{parts - 1}" in name for name in graph.nodes)
    tail = applied(own.graph(), rewrites, graph)
    assert_same_nodes(tail, graph)
    assert_same_step(own, tail)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_nearest_neighbours_of_fewer_samples_than_parts(dims: int) -> None:
    """torch has them of no sample, and cannot tell without data what they are."""

    def build() -> nn.Module:
        wider = nn.Upsample(scale_factor=2.0, mode="nearest")
        return nn.Sequential(nn.Linear(3, 3), wider, nn.Flatten(), nn.Linear(2 * 6**dims, 5))

    draw = torch.Generator().manual_seed(3)
    x = torch.randn(8, 2, *[3] * dims, generator=draw).double()
    step = Step(build, nn.CrossEntropyLoss(), x, torch.randint(5, (8,), generator=draw))
    rewrites = replicate(step.graph(), 3)
    graph = applied(step.graph(), rewrites)
    assert any(name.startswith("upsample") and name.endswith(":2") for name in graph.nodes)
    for samples in (1, 2):
        tail = applied(fewer(step, samples).graph(), rewrites, graph)
        assert_same_nodes(tail, graph)
        assert_same_step(fewer(step, samples), tail)


def drawn_rewrites(data: st.DataObject, graph: Graph) -> tuple[Rewrite, ...]:
    """Of any operators along any axes, parts of parts among them."""
    rewrites: list[Rewrite] = []
    for _ in range(data.draw(st.integers(1, 4), label="rewrites")):
        now = applied(graph, rewrites)
        node = data.draw(st.sampled_from(list(now.nodes)), label="node")
        axes = split_axes(now, node) if len(now) < 100 else {}
        if not axes:
            continue
        axis = data.draw(st.sampled_from(list(axes)), label="axis")
        size = axes[axis]
        parts = data.draw(st.integers(2, min(size, 4)), label="parts")
        rewrites.append(Split(node, axis, proportioned(size, (1.0,) * parts)))
        try:
            applied(graph, rewrites)
        except RewriteError:
            rewrites.pop()
    return tuple(rewrites)


@pytest.mark.parametrize("name", STEPS)
@settings(deadline=None, max_examples=tried(6))
@given(data=st.data())
def test_any_rewrites_at_any_number_of_samples(name: str, data: st.DataObject) -> None:
    """The same nodes and the same step, or a refusal in words."""
    step = STEPS[name]
    rewrites = drawn_rewrites(data, step.graph())
    graph = applied(step.graph(), rewrites)
    own = fewer(step, data.draw(st.integers(1, 7), label="samples"))
    try:
        tail = applied(own.graph(), rewrites, graph)
    except RewriteError as refusal:
        event(f"refused: {str(refusal).partition(':')[0]}")
        return
    assert_same_nodes(tail, graph)
    assert_same_step(own, tail)


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_blocks_along_the_samples(name: str) -> None:
    """Each block of fewer samples has as much of every part, or empty ones; odd numbers are no blocks."""
    step = STEPS[name]
    rewrites = (
        Split("linear", 0, (2, 2), blocks=2),
        Split("linear:0", 0, (1, 1), blocks=2),
        Split("gelu", 0, (1, 3), blocks=2),
        Split("linear_1", 0, (2, 2), blocks=2),
    )
    graph = applied(step.graph(), rewrites)
    for samples in (2, 4, 6):
        tail = applied(fewer(step, samples).graph(), rewrites, graph)
        assert_same_nodes(tail, graph)
        assert_same_step(fewer(step, samples), tail)
    with pytest.raises(RewriteError, match=r"'linear' .* along 0: its 3 are no 2 equal blocks"):
        applied(fewer(step, 3).graph(), rewrites, graph)


def test_rewrites_that_were_done_one_lot_after_another() -> None:
    """What each of them decided is decided again, so that empty parts can be."""
    step = STEPS["mlp"]
    graph = applied(step.graph(), replicate(step.graph(), 2))
    graph = applied(graph, (*graph.rewrites, Split("linear_1:0", 1, (4, 5))))
    graph = also(graph, Split("linear_1:1", 1, (2, 7)))
    graph = applied(graph, (*graph.rewrites, Split("gelu:1", 1, (6, 6))))
    for samples in (1, 5):
        tail = applied(fewer(step, samples).graph(), graph.rewrites, graph)
        assert_same_nodes(tail, graph)
        assert_same_step(fewer(step, samples), tail)
