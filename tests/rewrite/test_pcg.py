"""Parallel operators are what the ends of an edge differ by, and say with the meshes all that tasks do."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from netsplit.errors import RewriteError
from netsplit.graph import capture
from netsplit.rewrite import OperatorTasks, TaskCut
from netsplit.rewrite.pcg import ParallelGraph, parallel_operators
from tests.examples import tried
from tests.rewrite.models import STEPS
from tests.rewrite.test_lowering import PATIENT, drawn_of

MODEL = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 4))
GRAPH = capture(MODEL, nn.CrossEntropyLoss(), (torch.zeros(6, 8), torch.zeros(6, dtype=torch.int64)))
COLUMNS, SAMPLES = (5, 7), (2, 4)


def columns_and_rows() -> list[OperatorTasks]:
    return [
        OperatorTasks("linear", (TaskCut(1, COLUMNS),)),
        OperatorTasks("gelu", (TaskCut(1, COLUMNS),)),
        OperatorTasks("linear_1", (TaskCut("input.1", COLUMNS),)),
    ]


def test_columns_and_rows_copy_the_input_and_add_the_output() -> None:
    between = [
        (each.tensor, each.reader, str(each)) for each in parallel_operators(GRAPH, columns_and_rows())
    ]
    assert [each for each in between if "." not in each[0] or each[0] in GRAPH.variables] == [
        ("batch_0", "linear", "replicate 2"),
        ("linear_1", "cross_entropy_loss", "reduce 2"),
    ]
    assert ("2.weight", "linear_1", "partition 2 of dimension 1") in between


def test_an_edge_adds_combines_cuts_and_copies_in_this_order() -> None:
    tasks = [
        OperatorTasks("linear", (TaskCut(1, COLUMNS), TaskCut("input.1", (4, 4)))),
        OperatorTasks("gelu", (TaskCut(0, SAMPLES),), copies=(3,)),
    ]
    edge = [str(each) for each in parallel_operators(GRAPH, tasks) if each.reader == "gelu"]
    assert edge == ["reduce 2", "combine 2 of dimension 1", "partition 2 of dimension 0", "replicate 3"]
    edges = "reduce 2, combine 2 of dimension 1, partition 2 of dimension 0, replicate 3"
    assert f"linear ─► gelu.self: {edges}" in ParallelGraph.of(GRAPH, tasks).summary()


@pytest.mark.parametrize("name", STEPS)
@settings(PATIENT, max_examples=tried(30))
@given(data=st.data())
def test_operators_and_meshes_read_back_are_the_tasks(name: str, data: st.DataObject) -> None:
    graph = STEPS[name].graph()
    tasks = drawn_of(data, graph)
    made = ParallelGraph.of(graph, tasks)
    read = ParallelGraph.from_dict(json.loads(json.dumps(made.to_dict())))
    assert read.tasks(graph) == tuple(tasks)
    assert ParallelGraph.of(graph, read.tasks(graph)) == made


def test_what_does_not_fit_is_refused() -> None:
    """With the edge, and what should be on it."""
    made = ParallelGraph.of(GRAPH, columns_and_rows())
    for left_out, words in (("reduce", "has nothing.*need reduce 2"), ("partition", "need partition 2")):
        some = tuple(each for each in made.operators if each.kind != left_out)
        with pytest.raises(RewriteError, match=words):
            ParallelGraph(some, made.views).tasks(GRAPH)
    with pytest.raises(RewriteError, match="need combine 2"):
        ParallelGraph(made.operators[:3], made.views[:1]).tasks(GRAPH)
