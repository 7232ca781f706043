"""Any tasks on any mesh are the whole graph's step: loss and all gradients, in double precision."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from torch import nn

from netsplit.errors import RewriteError
from netsplit.graph import Graph, capture
from netsplit.layout import Box
from netsplit.layout.regions import Region, as_boxes, now
from netsplit.rewrite import OperatorTasks, TaskCut, lowered, rewrite_from, split_axes
from netsplit.rewrite.layouts import layouts_of
from netsplit.rewrite.leaves import LeafPlanner
from netsplit.rewrite.pcg import task_layouts
from netsplit.rewrite.tasks import Weights
from tests.examples import tried
from tests.rewrite.models import STEPS, assert_same_step
from tests.rewrite.test_fewer_samples import assert_same_nodes, fewer

PATIENT = settings(deadline=None)


def drawn_sizes(data: st.DataObject, size: int) -> tuple[int, ...]:
    ends = sorted(data.draw(st.sets(st.integers(1, size - 1), min_size=1, max_size=3), label="ends"))
    return tuple(b - a for a, b in zip([0, *ends], [*ends, size], strict=True))


def drawn_tasks(data: st.DataObject, graph: Graph, node: str) -> OperatorTasks | None:
    """Up to two cuts; copies, of the operator or of its weights."""
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
    least = data.draw(st.sampled_from([0, 0, 1 << 15]), label="sliced")
    tasks = OperatorTasks(node, tuple(cuts), copies, sliced_bytes=least)
    if graph.nodes[node].initializers:
        each: st.SearchStrategy[Weights] = st.one_of(st.integers(0, 2), st.just("home"))
        count = len(tasks.paths)
        weights = tuple(data.draw(st.lists(each, min_size=count, max_size=count), label="weights"))
        tasks = OperatorTasks(node, tuple(cuts), copies, weights, least)
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
    if planner.scaled:  # an axis is cut twice, into parts of parts of other sizes
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


def drawn_on_hosts(data: st.DataObject, graph: Graph, node: str) -> OperatorTasks | None:
    """On a mesh of two hosts of two devices: copies, or cut along one axis or two."""
    axes = [axis for axis, size in split_axes(graph, node).items() if size > 1]
    if not axes or data.draw(st.booleans(), label="copies"):
        return OperatorTasks(node, copies=(2, 2))
    outer, inner = (data.draw(st.sampled_from(axes), label="axis") for _ in range(2))
    sizes, cuts = split_axes(graph, node), []
    for axis in (outer, inner):
        size = sizes[axis] if outer != inner or not cuts else cuts[0].sizes[0]
        if size < 2 or (outer == inner and sizes[axis] % 4):
            return None
        cuts.append(TaskCut(axis, (size // 2, size - size // 2)))
    return OperatorTasks(node, tuple(cuts), sliced_bytes=0)


@pytest.mark.parametrize("name", STEPS)
@settings(PATIENT, max_examples=tried(40))
@given(data=st.data())
def test_operators_on_one_mesh_are_the_same_step(name: str, data: st.DataObject) -> None:
    """What moves between them is sliced, relayed from host to host, and put together at every reader."""
    graph = STEPS[name].graph()
    names = [node.name for node in graph if len(node.outputs) < 8]
    start = data.draw(st.sampled_from(range(len(names))), label="start")
    chosen: list[OperatorTasks] = []
    for node in names[start : start + data.draw(st.integers(2, 10), label="operators")]:
        tasks = drawn_on_hosts(data, graph, node)
        with suppress(RewriteError):
            if tasks is not None:
                lowered(graph, [*chosen, tasks])
                chosen.append(tasks)
    event(f"{len(chosen)} operators")
    assert_same_step(STEPS[name], lowered(graph, chosen))


def test_what_cannot_be_computed_twice_says_why() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)).double()
    step = STEPS["mlp"]
    graph = capture(model, step.loss, (step.inputs, step.targets))
    with pytest.raises(RewriteError, match="written in place"):
        lowered(graph, [OperatorTasks("batch_norm", copies=(2,))])
    with pytest.raises(RewriteError, match="no operator 'conv'"):
        lowered(graph, [OperatorTasks("conv", copies=(2,))])
    plain = OperatorTasks("linear", (TaskCut(1, (4, 4)),)).to_dict()
    for wrong in (
        {"weights": [1, 2, 3]},
        {"weights": [-1]},
        {"copies": [0]},
        {"cuts": [{"axis": 1}]},
        {"nod": 1},
    ):
        with pytest.raises(RewriteError):
            rewrite_from(plain | wrong)
    with pytest.raises(RewriteError, match="a cut is"):
        TaskCut(1, (4, -1))
    with pytest.raises(RewriteError, match="that add up"):
        lowered(graph, [OperatorTasks("linear", (TaskCut(1, (3, 4)),))])


def test_a_sum_that_several_want_is_made_in_slices() -> None:
    """One owner each; of an inner axis first. What is small is added in one place."""
    graph = STEPS["mlp"].graph()
    for least, owners in ((0, {(0, 0), (0, 1), (1, 0), (1, 1)}), (1 << 15, {(0, 0)})):
        cuts = TaskCut("input.1", (6, 6)), TaskCut("input.1", (3, 3))
        tasks = [OperatorTasks("linear_1", cuts, sliced_bytes=least), OperatorTasks("tanh", copies=(2, 2))]
        made = lowered(graph, tasks)
        assert_same_step(STEPS["mlp"], made)
        last = [node for node in made if node.kind == "add" and not _feeds_sum(made, node.name)]
        assert {node.part.place for node in last if node.part is not None} == owners


def _feeds_sum(graph: Graph, name: str) -> bool:
    readers = list(graph.successors[name])
    views = [v for v in readers if graph.nodes[v].kind == "split_with_sizes"]
    readers += [after for v in views for after in graph.successors[v]]
    return any(graph.nodes[v].kind == "add" for v in readers)
