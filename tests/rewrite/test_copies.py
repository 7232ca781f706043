"""Copies of parameters: their gradients are summed, they stay alike, and all else knows of one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import netsplit
from netsplit.errors import RewriteError
from netsplit.graph import Graph, files
from netsplit.program import GPipe, Schedule, SingleBatch
from netsplit.program.schedules import ZBH1, OneFOneB
from netsplit.rewrite import CopyWeights, Split, applied, replicate, rewrite_from
from netsplit.runtime.share import UpdateRule
from tests.examples import tried
from tests.nets import CASES
from tests.rewrite.models import STEPS, assert_same_step
from tests.runtime.equivalence.running import (
    PATIENT,
    assert_same,
    batches_of,
    captured_for,
    compiled,
    local,
    on_workers,
    plain,
    scattered,
)
from tests.workers import Pools

SCHEDULES: dict[str, Schedule] = {
    "single_batch": SingleBatch(),
    "gpipe": GPipe(4),
    "gpipe+recompute": GPipe(4, recompute=True),
    "1f1b": OneFOneB(4),
    "zb_h1": ZBH1(4),
}


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize("name", STEPS)
def test_parts_of_the_batch_with_copies_train_what_the_whole_does(name: str, parts: int) -> None:
    """In one process, where plain autograd gives each copy the gradient of its own readers."""
    step = STEPS[name]
    rewrites = replicate(step.graph(), parts)
    assert tuple(rewrite_from(json.loads(json.dumps(each.to_dict()))) for each in rewrites) == rewrites
    graph = applied(step.graph(), rewrites)
    assert any(init.held_as != k for k, init in graph.initializers.items())
    assert files.loads(files.dumps(graph)).initializers == graph.initializers
    assert_same_step(step, graph)


@pytest.mark.parametrize("name", STEPS)
@settings(PATIENT, max_examples=tried(4))
@given(data=st.data())
def test_any_operators_may_read_any_copies(name: str, data: st.DataObject) -> None:
    """Of parts cut along any axes; whichever number is the first to be read."""
    assert_same_step(STEPS[name], drawn_copies(data, STEPS[name].graph()))


def drawn_copies(data: st.DataObject, graph: Graph) -> Graph:
    """Some operators along the samples, some otherwise, and copies for some of their readers."""
    splits = list(replicate(graph, 2)) if data.draw(st.booleans(), label="replicate") else []
    for each in splits:
        if isinstance(each, Split) or data.draw(st.booleans(), label=str(each)):
            graph = applied(graph, (*graph.rewrites, each))
    for _ in range(data.draw(st.integers(0, 3), label="splits")):
        node = data.draw(
            st.sampled_from([node.name for node in graph if len(node.outputs) < 8]), label="node"
        )
        axes = netsplit.rewrite.split_axes(graph, node)
        if axes:
            axis = data.draw(st.sampled_from(list(axes)), label="axis")
            first = data.draw(st.integers(1, axes[axis] - 1), label="first")
            graph = applied(graph, (*graph.rewrites, Split(node, axis, (first, axes[axis] - first))))
    for _ in range(data.draw(st.integers(0, 4), label="copies")):
        node = data.draw(st.sampled_from(list(graph.nodes)), label="reader")
        try:
            copy = data.draw(st.integers(0, 2), label="copy")
            graph = applied(graph, (*graph.rewrites, CopyWeights(node, copy)))
        except RewriteError:
            pass
    return graph


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["attention", "chain", "cells", "tied"])
@settings(PATIENT, max_examples=tried(3))
@given(data=st.data())
def test_copies_under_any_placement(name: str, schedule: str, data: st.DataObject) -> None:
    case, order = CASES[name], SCHEDULES[schedule]
    graph = drawn_copies(data, captured_for(case, order))
    program = compiled(graph, scattered(data, graph, 3), 3, order, shared_norm=True)
    trained = local(program, case, batches_of(case), rule=UpdateRule(clip_norm=0.1))
    assert_same(trained, plain(name, order.microbatch_size(8), clip_norm=0.1))


def by_number(graph: Graph, devices: int = 2) -> dict[str, str]:
    """Parts of a number, with what they are put together from, on the device of that number."""
    device_of: dict[str, str] = {}
    for node in graph:
        last = node.name.replace("~", ":").rpartition(":")[2].split(" ")[0]
        device_of[node.name] = f"cpu:{int(last) % devices if last.isdigit() else 0}"
    for group in graph.colocated:
        home = next((name for name in group if graph.nodes[name].initializers), group[0])
        device_of.update(dict.fromkeys(group, device_of[home]))
    return device_of


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_data_parallelism_of_one_batch_on_workers(pools: Pools, schedule: str) -> None:
    """With the gradients' norm over three steps; a weight is sent nowhere, and each has all of them."""
    case, order = CASES["chain"], SCHEDULES[schedule]
    graph = captured_for(case, order)
    graph = applied(graph, replicate(graph, 2))
    program = compiled(graph, by_number(graph), 2, order, shared_norm=True)
    assert program.holders[next(iter(program.holders))] == ("cpu:0", "cpu:1")
    runtime_pool = pools(2)
    trained = on_workers(program, case, batches_of(case, 3), runtime_pool, rule=UpdateRule(clip_norm=0.1))
    assert_same(trained, plain("chain", order.microbatch_size(8), steps=3, clip_norm=0.1))
