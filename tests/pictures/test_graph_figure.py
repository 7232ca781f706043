"""The graph's picture: groups are convex and of one device, boxes do not overlap, cut edges stand out."""

from itertools import combinations
from pathlib import Path

import torch
from matplotlib.patches import FancyBboxPatch, PathPatch
from torch import nn

from netsplit.graph import Graph, capture
from netsplit.graph.quotient import topological_priority
from netsplit.partition import Placement, SolverReport
from netsplit.pictures.graph_figure import _CUT_COLOUR, graph_figure
from netsplit.pictures.graph_groups import group_nodes
from netsplit.pictures.graph_layout import layered_layout
from netsplit.rewrite import applied, columns_and_rows, splits_of
from tests.tracking.samples import cells_graph, graph_of_operators, halves, uneven_costs


def test_every_node_is_in_exactly_one_group_of_its_device() -> None:
    graph = cells_graph()
    device_of = halves(graph).device_of
    for wanted in (300, 60, 5):
        groups = group_nodes(graph, device_of, wanted)
        names = [name for group in groups.groups for name in group.nodes]
        assert sorted(names) == sorted(graph.nodes)
        assert all(device_of[name] == group.device for group in groups.groups for name in group.nodes)


def test_a_group_that_a_path_leaves_and_enters_again_is_not_formed() -> None:
    edges = {"a": (), "b": ("a",), "c": ("a", "b")}
    modules = {"a": ("relu", "m"), "b": ("relu", "other"), "c": ("add", "m")}
    groups = group_nodes(graph_of_operators(edges, modules), {"a": "p", "b": "q", "c": "p"}, 1)
    assert [group.nodes for group in groups.groups] == [("a",), ("b",), ("c",)]


def test_boxes_of_a_layout_do_not_overlap() -> None:
    graph = cells_graph()
    groups = group_nodes(graph, halves(graph).device_of)
    for columns in (1, 3):
        boxes = layered_layout(len(groups.groups), groups.edges, columns).boxes
        assert all(
            abs(x1 - x2) > 0.999 or abs(y1 - y2) > 0.999 for (x1, y1), (x2, y2) in combinations(boxes, 2)
        )


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
    assert legend[0].startswith(f"cpu:0: {len(graph) // 2 + len(graph) % 2} nodes")
    assert "per micro-batch" in legend[0]


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
        "moves",
        "loss\nloss",
    } <= texts.keys()
    assert not [text for text in texts if "alias" in text or "add" in text]
