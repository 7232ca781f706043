"""What is told of the nodes of a rewritten graph: every one is whole, a part or a movement."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from netsplit.graph import Graph, capture
from netsplit.rewrite import (
    CopyWeights,
    ReadWeights,
    Split,
    along_samples,
    applied,
    replicate,
)
from netsplit.rewrite.emitter import MOVES
from netsplit.rewrite.rewriting import node_parts, parts_label
from tests.examples import tried
from tests.rewrite.test_training import NAMES, drawn
from tests.runtime.equivalence.running import captured

SQUARE = 8  # samples, and features: a size tells no dimension from another


def square() -> Graph:
    model = nn.Sequential(nn.Linear(SQUARE, SQUARE), nn.ReLU(), nn.Linear(SQUARE, SQUARE))
    return capture(model, nn.CrossEntropyLoss(), (torch.randn(SQUARE, SQUARE), torch.arange(SQUARE)))


@settings(max_examples=tried(20), deadline=None)
@given(data=st.data())
def test_the_parts_of_an_operator_add_up_and_every_operator_is_told_once(data: st.DataObject) -> None:
    whole = captured(data.draw(st.sampled_from(NAMES), label="model"), 4)
    graph = drawn(data, whole)
    parts = node_parts(graph)
    assert not parts.moving & parts.of.keys()
    computing = [name for name in whole.nodes if whole.nodes[name].op not in MOVES]
    uncut = {name for name in graph.nodes if name not in parts.moving and name not in parts.cut}
    operators = {part.operator for part in parts.cut.values()}
    assert uncut | operators >= set(computing)
    assert uncut | operators <= whole.nodes.keys()
    assert not uncut & operators
    for operator in operators.intersection(computing):
        own = [part for part in parts.cut.values() if part.operator == operator]
        assert math.isclose(sum(part.fraction for part in own), 1.0)
        assert len({part.description for part in own}) == len(own)


def test_nothing_is_told_of_a_captured_graph() -> None:
    parts = node_parts(square())
    assert (parts.of, parts.moving) == ({}, frozenset())


@pytest.mark.parametrize("cut", [along_samples, replicate])
def test_the_dimension_of_the_samples_is_called_so(cut: object) -> None:
    assert callable(cut)
    graph = square()
    parts = node_parts(applied(graph, cut(graph, 2)))
    assert {part.operator for part in parts.cut.values()} == {
        "linear",
        "relu",
        "linear_1",
        "cross_entropy_loss",
    }
    assert {line for part in parts.cut.values() for line in part.lines} == {
        "1/2 of samples · 50 %", "2/2 of samples · 50 %",
    }  # fmt: skip


def test_copies_and_weights_as_variables_are_told() -> None:
    graph = square()
    rewrites = (Split("linear", 1, (4, 4)), CopyWeights("linear:1", 1), ReadWeights("linear_1"))
    parts = node_parts(applied(graph, rewrites))
    assert parts.of["linear:1"].description.endswith(": 2/2 of dim 1 · 50 %, copy 1 of weights")
    assert parts.of["linear_1"].description == "linear_1 (2): weights as variables"
    assert parts.cut.keys() == {"linear:0", "linear:1"}


def test_what_runs_together_is_told_in_a_few_words() -> None:
    graph = square()
    parts = node_parts(applied(graph, along_samples(graph, 2)))
    first, second = parts.of["linear:0"], parts.of["linear:1"]
    assert parts_label([]) == ""
    assert parts_label([first]) == "part 1/2 of linear"
    assert parts_label([first, parts.of["relu:0"]]) == "part 1/2 of 2 operators"
    assert parts_label([first, second]) == "2 parts"
