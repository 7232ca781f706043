"""Any tasks on any mesh are the whole graph's step: loss and all gradients, in double precision."""

from __future__ import annotations

import json

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from netsplit.errors import RewriteError
from netsplit.graph import Graph
from netsplit.layout import Box
from netsplit.layout.regions import Region, as_boxes, now
from netsplit.rewrite import OperatorTasks, TaskCut, lowered, rewrite_from, split_axes
from netsplit.rewrite.layouts import layouts_of
from netsplit.rewrite.leaves import LeafPlanner
from netsplit.rewrite.task_layouts import task_layouts
from netsplit.rewrite.tasks import Weights
from tests.examples import tried
from tests.rewrite.models import STEPS, assert_same_step
from tests.rewrite.test_fewer_samples import assert_same_nodes, fewer

PATIENT = settings(deadline=None)


def drawn_sizes(data: st.DataObject, size: int) -> tuple[int, ...]:
    ends = sorted(data.draw(st.sets(st.integers(1, size - 1), min_size=1, max_size=3), label="ends"))
    return tuple(b - a for a, b in zip([0, *ends], [*ends, size], strict=True))


def drawn_tasks(data: st.DataObject, graph: Graph, node: str) -> OperatorTasks | None:
    """Up to two cuts, in either order of the mesh's axes; copies, of the operator or of its weights."""
    cuts: list[TaskCut] = []
    for _ in range(data.draw(st.integers(0, 2), label="cuts")):
        axes = split_axes(graph, node)
        if not axes:
            break
        axis = data.draw(st.sampled_from(list(axes)), label="axis")
        size = axes[axis]
        blocks = data.draw(st.sampled_from([b for b in (1, 2) if size % b == 0 and size > b]), label="blocks")
        cuts.append(TaskCut(axis, drawn_sizes(data, size // blocks), blocks))
    copies = data.draw(st.sampled_from([(), (), (2,), (2, 2)]), label="copies")
    mesh = tuple(data.draw(st.permutations(range(len(cuts))), label="mesh"))
    least = data.draw(st.sampled_from([0, 0, 1 << 15]), label="sliced")
    tasks = OperatorTasks(node, tuple(cuts), copies, mesh=mesh, sliced_bytes=least)
    if graph.nodes[node].initializers:
        each: st.SearchStrategy[Weights] = st.one_of(st.integers(0, 2), st.just("home"))
        count = len(tasks.paths)
        weights = tuple(data.draw(st.lists(each, min_size=count, max_size=count), label="weights"))
        tasks = OperatorTasks(node, tuple(cuts), copies, weights, mesh, least)
    return tasks if cuts or copies or tasks.weights != (0,) else None


def drawn_of(data: st.DataObject, graph: Graph) -> list[OperatorTasks]:
    """Those of some operators that can be lowered with the others."""
    chosen: list[OperatorTasks] = []
    names = [node.name for node in graph if len(node.outputs) < 8]
    start = data.draw(st.sampled_from(range(len(names))), label="start")
    for node in names[start : start + data.draw(st.integers(1, 8), label="operators")]:
        tasks = drawn_tasks(data, graph, node)
        if tasks is not None:
            try:
                lowered(graph, [*chosen, tasks])
            except RewriteError as refusal:
                event(f"refused: {str(refusal).partition(':')[2][:40]}")
                continue
            chosen.append(tasks)
    return chosen


@pytest.mark.parametrize("name", STEPS)
@settings(PATIENT, max_examples=tried(30))
@given(data=st.data())
def test_layouts_are_what_tasks_read_and_make(name: str, data: st.DataObject) -> None:
    """In uneven pieces, blocks and terms of sums, by the axes of the mesh."""
    graph = STEPS[name].graph()
    node = data.draw(
        st.sampled_from([node.name for node in graph if split_axes(graph, node.name)]), label="node"
    )
    tasks = drawn_tasks(data, graph, node)
    if tasks is None:
        return
    planner = LeafPlanner(graph, layouts_of(graph))
    try:
        leaves = planner.leaves(tasks)
    except RewriteError:
        return
    layouts = task_layouts(graph, tasks)
    numbers = {place: device for device, place in layouts.mesh.places.items()}
    for leaf in leaves:
        device = numbers[leaf.role.place]
        for place, layout in layouts.reads.items():
            reference, region = leaf.reads[place]
            shape = [now(runs[0][1]) for runs in planner.full(reference)]
            assert as_plain(region) == layout.boxes(device, shape)
            assert not layout.partial
        for k, made, layout in zip(graph.nodes[node].outputs, leaf.makes, layouts.makes, strict=True):
            if k:
                assert as_plain(made.region) == layout.boxes(device, graph.variables[k].shape)
                assert made.partial == bool(layout.partial)


def as_plain(region: Region) -> list[Box]:
    return [tuple((now(a), now(b)) for ((a, b),) in box) for box in as_boxes(region)]


@pytest.mark.parametrize("name", STEPS)
@settings(PATIENT, max_examples=tried(60))
@given(data=st.data())
def test_any_tasks_are_the_same_step(name: str, data: st.DataObject) -> None:
    step = STEPS[name]
    chosen = drawn_of(data, step.graph())
    again = [rewrite_from(json.loads(json.dumps(each.to_dict()))) for each in chosen]
    assert again == chosen
    graph = lowered(step.graph(), chosen)
    assert_same_step(step, graph)
    own = fewer(step, data.draw(st.integers(1, 7), label="samples"))
    try:
        tail = lowered(own.graph(), chosen, graph)
    except RewriteError:
        return
    assert_same_nodes(tail, graph)
    assert_same_step(own, tail)
