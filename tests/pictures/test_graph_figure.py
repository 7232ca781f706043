"""The graph's picture: groups are convex and of one device, boxes do not overlap, cut edges stand out."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import FancyBboxPatch, PathPatch
from torch import nn

from netsplit.graph import Graph, capture
from netsplit.partition import Placement, SolverReport
from netsplit.partition.common.priority import topological_priority
from netsplit.pictures.graph_figure import _CUT_COLOUR, graph_figure
from netsplit.pictures.graph_groups import NodeGroup, group_nodes
from netsplit.pictures.graph_layout import layered_layout
from netsplit.rewrite import (
    ReadWeights,
    Split,
    along_samples,
    applied,
    columns_and_rows,
    splits_of,
)
from netsplit.rewrite.node_parts import does, node_parts
from netsplit.rewrite.replay import CAPTURED
from tests.tracking.samples import cells_graph, graph_of_operators, halves, uneven_costs


def test_every_node_is_in_exactly_one_group_of_its_device() -> None:
    graph = cells_graph()
    device_of = halves(graph).device_of
    for wanted in (300, 60, 5):
        groups = group_nodes(graph, device_of, wanted)
        names = [name for group in groups.groups for name in group.nodes]
        assert sorted(names) == sorted(graph.nodes)
        assert all(device_of[name] == group.device for group in groups.groups for name in group.nodes)


def test_groups_are_in_a_topological_order() -> None:
    graph = cells_graph()
    assert all(a < b for a, b in group_nodes(graph, halves(graph).device_of, 40).edges)


def test_chains_become_one_box_and_are_labelled_by_what_repeats() -> None:
    graph = cells_graph(2)
    groups = group_nodes(graph, dict.fromkeys(graph.nodes, "cpu:0"))
    assert "(relu+conv+bn) x2" in {group.label for group in groups.groups}


def test_a_group_that_a_path_leaves_and_enters_again_is_not_formed() -> None:
    edges = {"a": (), "b": ("a",), "c": ("a", "b")}
    modules = {"a": ("relu", "m"), "b": ("relu", "other"), "c": ("add", "m")}
    groups = group_nodes(graph_of_operators(edges, modules), {"a": "p", "b": "q", "c": "p"}, 1)
    assert [group.nodes for group in groups.groups] == [("a",), ("b",), ("c",)]


def test_nodes_without_edges_join_their_module() -> None:
    edges: dict[str, tuple[str, ...]] = {"a": (), "count": (), "b": ("a",)}
    modules = {"a": ("conv2d", "m.conv"), "count": ("add_", "m.bn"), "b": ("batch_norm", "m.bn")}
    groups = group_nodes(graph_of_operators(edges, modules), dict.fromkeys(edges, "p"))
    assert [group.label for group in groups.groups] == ["conv+bn"]


def test_labels_count_kinds_that_come_again() -> None:
    group = NodeGroup(("a",) * 5, "p", "m", ("relu", "add", "relu", "relu", "cat"))
    assert group.label == "relu x3 + add + cat"


def test_boxes_of_a_layout_do_not_overlap() -> None:
    graph = cells_graph()
    groups = group_nodes(graph, halves(graph).device_of)
    for columns in (1, 3):
        boxes = layered_layout(len(groups.groups), groups.edges, columns).boxes
        assert all(
            abs(x1 - x2) > 0.999 or abs(y1 - y2) > 0.999 for (x1, y1), (x2, y2) in combinations(boxes, 2)
        )


def test_every_piece_of_an_edge_leads_downwards() -> None:
    graph = cells_graph()
    groups = group_nodes(graph, halves(graph).device_of)
    layout = layered_layout(len(groups.groups), groups.edges, 3)
    assert layout.jumps
    for pieces in layout.paths.values():
        for piece in pieces:
            assert all(upper[1] < lower[1] for upper, lower in pairwise(piece))


@given(st.integers(2, 12), st.integers(2, 4), st.data())
def test_no_connector_at_a_head_stands_upon_another(count: int, columns: int, data: st.DataObject) -> None:
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda e: e[0] < e[1])
    edges = data.draw(st.lists(pairs, unique=True, min_size=1))
    layout = layered_layout(count, edges, columns)
    heads = [jump.head for jump in layout.jumps]
    assert all(abs(x1 - x2) > 0.139 for (x1, _), (x2, _) in combinations(heads, 2))
    assert {jump.source for jump in layout.jumps} <= {a for a, _ in edges}
    begin = {piece[0] for pieces in layout.paths.values() for piece in pieces[1:]}
    assert begin == set(heads)


def test_every_letter_at_the_head_of_a_column_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netsplit.pictures.graph_figure._columns", lambda *_: 2)
    edges: dict[str, tuple[str, ...]] = {"a": (), "b": (), "c": ("a", "b")}
    graph = graph_of_operators(edges, {name: ("relu", name) for name in edges})
    device_of = {"a": "p", "b": "q", "c": "p"}
    order = topological_priority(graph, graph.position)
    figure = graph_figure(graph, Placement("given", device_of, order, SolverReport("heuristic", 0.0)))
    figure.draw_without_rendering()
    circles = [text for text in figure.axes[0].texts if text.get_bbox_patch() is not None]
    assert sorted(text.get_text() for text in circles) == ["A", "A", "B", "B"]
    places = [text.get_bbox_patch().get_window_extent() for text in circles]
    assert not any(one.overlaps(other) for one, other in combinations(places, 2))


def test_picture_of_four_hundred_operators(tmp_path: Path) -> None:
    graph = cells_graph()
    assert 350 <= len(graph) <= 450
    placement = halves(graph)
    figure = graph_figure(graph, placement, tmp_path / "graph.png", uneven_costs(graph))
    assert (tmp_path / "graph.png").read_bytes().startswith(b"\x89PNG")
    (axes,) = figure.axes
    groups = group_nodes(graph, placement.device_of)
    boxes = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    lines = [patch for patch in axes.patches if isinstance(patch, PathPatch)]
    assert len(boxes) == len(groups.groups)
    assert len(lines) >= len(groups.edges)
    red = tuple(int(_CUT_COLOUR[i : i + 2], 16) / 255 for i in (1, 3, 5))
    assert sum(line.get_edgecolor()[:3] == red for line in lines) >= len(groups.cut_edges) > 0
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[0].startswith(f"cpu:0: {len(graph) // 2 + len(graph) % 2} operators")
    assert "per micro-batch" in legend[0]


def test_svg_without_costs_on_one_device(tmp_path: Path) -> None:
    graph = cells_graph(1)
    placement = halves(graph)
    one = type(placement)("single", dict.fromkeys(graph.nodes, "cpu:0"), placement.priority, placement.report)
    figure = graph_figure(graph, one, tmp_path / "graph.svg")
    assert "<svg" in (tmp_path / "graph.svg").read_text()[:2000]
    assert "nothing crosses devices" in figure.axes[0].get_title(loc="left")


def in_columns_and_rows() -> tuple[Graph, Placement]:
    """Three quarters of a hidden layer on one device, a quarter on the other."""
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 4))
    whole = capture(model, nn.CrossEntropyLoss(), (torch.randn(4, 8), torch.randint(4, (4,))))
    graph = applied(whole, splits_of(whole, [columns_and_rows(whole)[0]], (3.0, 1.0)))
    device_of = {name: f"cpu:{int(name.endswith(':1'))}" for name in graph.nodes}
    order = topological_priority(graph, graph.position)
    return graph, Placement(
        "given", device_of, order, SolverReport("heuristic", 0.0), rewrites=graph.rewrites
    )


def test_a_box_says_which_part_of_which_dimension_it_is() -> None:
    graph, placement = in_columns_and_rows()
    figure = graph_figure(graph, placement)
    (axes,) = figure.axes
    texts = {text.get_text(): text for text in axes.texts}
    assert {
        "linear+gelu\n1/2 of dim 1 · 75 %",
        "linear+gelu\n2/2 of dim 1 · 25 %",
        "linear\n2\n1/2 of input.1 · 75 %",
        "linear\n2\n2/2 of input.1 · 25 %",
        "put together",
        "loss\nloss",
    } <= texts.keys()
    assert not [text for text in texts if "alias" in text or "add" in text]
    title = axes.get_title(loc="left").replace("\n", " ")
    assert "given: 4 operators, 3 of them in parts (6 parts), 2 small nodes beside them, in 7 boxes" in title
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[0].startswith("cpu:0: 1 operator and 3 parts, ")
    assert legend[1].startswith("cpu:1: 0 operators and 3 parts, ")


def test_a_whole_operator_whose_weights_are_variables_is_no_part() -> None:
    graph, _ = in_columns_and_rows()
    whole = applied(graph.derived[CAPTURED], (ReadWeights("linear_1"),))
    device_of = dict.fromkeys(whole.nodes, "cpu:0")
    order = topological_priority(whole, whole.position)
    (axes,) = graph_figure(whole, Placement("given", device_of, order, SolverReport("heuristic", 0.0))).axes
    boxes = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    assert {box.get_linestyle() for box in boxes} == {"-"}
    assert "linear\n2\nweights as variables" in {text.get_text() for text in axes.texts}
    assert "4 operators, 2 small nodes beside them, in " in axes.get_title(loc="left").replace("\n", " ")


def test_what_moves_tensors_for_parts_is_drawn_smaller_and_parts_with_another_frame() -> None:
    graph, placement = in_columns_and_rows()
    (axes,) = graph_figure(graph, placement).axes
    boxes = [patch for patch in axes.patches if isinstance(patch, FancyBboxPatch)]
    for group, box in zip(group_nodes(graph, placement.device_of).groups, boxes, strict=True):
        assert (box.get_linestyle() == "--") == any(":0" in name or ":1" in name for name in group.nodes)
        assert (box.get_height() < 0.3) == group.moves


def test_what_counts_the_targets_of_a_loss_says_so() -> None:
    loss = nn.CrossEntropyLoss(ignore_index=1)
    whole = capture(nn.Linear(6, 3), loss, (torch.randn(4, 6), torch.arange(4) % 3))
    graph = applied(whole, along_samples(whole, 2))
    groups = group_nodes(graph, dict.fromkeys(graph.nodes, "cpu:0")).groups
    label = {name: group.label for group in groups for name in group.nodes}
    assert label["cross_entropy_loss:ne"] == label["cross_entropy_loss:targets that count"] == "count targets"
    assert label["cross_entropy_loss"] == "divide by their count"
    assert label["cross_entropy_loss:add"] == "put together"
    assert {"take apart", "hand weights on"} <= set(label.values())


def test_what_a_part_of_a_vocabulary_leaves_out_says_so() -> None:
    model = nn.Sequential(nn.Embedding(12, 6), nn.Flatten(), nn.Linear(24, 3))
    batch = torch.randint(12, (4, 4)), torch.arange(4) % 3
    graph = applied(capture(model, nn.CrossEntropyLoss(), batch), (Split("embedding", "weight.0", (6, 6)),))
    did = {node.name: does(node) for node in graph if node.name in node_parts(graph).moving}
    assert did["embedding:sub"] == did["embedding:clamp 2"] == "number a part's rows"
    assert did["embedding:masked_fill"] == did["embedding:logical_or 2"] == "leave out other parts' rows"
    assert did["embedding"] == "put together"


@pytest.mark.parametrize("wanted", [100, 3])
def test_boxes_of_many_operators_say_how_many_are_parts(wanted: int) -> None:
    graph, _ = in_columns_and_rows()
    groups = group_nodes(graph, dict.fromkeys(graph.nodes, "cpu:0"), wanted).groups
    for group in groups:
        assert len({part.lines for part in group.parts}) <= 1 or wanted == 3
    lines = {line for group in groups for line in group.part_lines}
    assert ("part 2/2 of 3 operators" in lines) == (wanted == 3)


def test_a_box_of_parts_and_whole_operators_counts_the_parts() -> None:
    graph, _ = in_columns_and_rows()
    parts = tuple(node_parts(graph).of[name] for name in ("linear:0", "linear_1:0"))
    names = ("linear:0", "linear_1:0", "2.bias:read", "cross_entropy_loss")
    group = NodeGroup(names, "p", "", ("linear", "linear", "cross_entropy_loss"), parts, moving=1)
    assert group.part_lines == ("2 of 3 are parts",)
    assert group.label == "linear+linear+loss"
    assert not group.moves
