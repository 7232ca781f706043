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
from netsplit.rewrite import Rewrite, Split, along_samples, applied, replicate, split_axes
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


def drawn_rewrites(data: st.DataObject, graph: Graph) -> tuple[Rewrite, ...]:
    """Rewrites of any operators along any axes, parts of parts among them."""
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
