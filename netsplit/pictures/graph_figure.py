"""A picture of the operator graph, coloured by device, with the cut between devices standing out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import Graph
from netsplit.pictures.drawing import colours_of, new_figure, save_figure, tint
from netsplit.pictures.graph_groups import GroupGraph, NodeGroup, group_nodes
from netsplit.pictures.graph_layout import LayeredLayout, layered_layout
from netsplit.placement.placement import Placement
from netsplit.profile.costs import Costs
from netsplit.rewrite.rewriting import NodeParts, node_parts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["graph_figure"]

_BOX_IN = 1.75  # width of a place; boxes are narrower
_LAYER_IN = 0.85
_CUT_COLOUR = "#B2182B"
_CHARACTERS = 23  # of a label's line
_LINE = 0.155  # height of one, of a layer's
_MOVES_COLOUR = "#777777"
_TWO_SENTENCES_IN = 14.0  # width in which two of the legend's stand beside one another


def graph_figure(
    graph: Graph,
    placement: Placement,
    path: str | FilePath | None = None,
    costs: Costs | None = None,
    cluster: Cluster | None = None,
    boxes: int = 150,
) -> Figure:
    """Draw `graph`, into `path` if given (PNG or SVG by the suffix); returns the figure.

    Args:
        costs: forward and backward seconds; boxes are then higher the longer they take.
        cluster: devices in the legend's order, and their kinds for `costs`.
        boxes: about so many at most; nodes of one module are drawn as one box to get there.
    """
    groups = group_nodes(graph, placement.device_of, boxes)
    layers = layered_layout(len(groups.groups), groups.edges).height
    layout = layered_layout(len(groups.groups), groups.edges, _columns(len(groups.groups), layers))
    seconds = _node_seconds(placement, costs, cluster)
    named = [] if cluster is None else [device.name for device in cluster.devices]
    devices = [*named, *sorted(set(placement.device_of.values()) - set(named))]
    colours = colours_of(devices)
    figure = new_figure(max(9.2, 0.6 + _BOX_IN * layout.width), 1.8 + _LAYER_IN * layout.height)
    axes = figure.subplots()
    axes.set_xlim(-0.1, layout.width + 0.1)
    axes.set_ylim(layout.height, 0)
    axes.axis("off")
    for edge in groups.edges:
        for points in layout.paths[edge]:
            _draw_line(axes, points, edge in groups.cut_edges)
    _draw_jumps(axes, groups, layout)
    _draw_boxes(axes, groups, layout, seconds, colours)
    title = f"{placement.method}: {len(graph)} nodes in {len(groups.groups)} boxes"
    axes.set_title(title, fontsize=13, loc="left")
    sentences = [_device_sentence(placement, device, seconds) for device in devices]
    _legend(figure, sentences, colours, node_parts(graph))
    if path is not None:
        save_figure(figure, path, dpi=100)
    return figure


def _columns(boxes: int, layers: float) -> int:
    """Number of columns that makes the picture about half as high as wide."""
    mean_width = 1.2 + boxes / max(layers, 1.0)
    return max(1, round(math.sqrt(layers * _LAYER_IN / (0.6 * mean_width * _BOX_IN))))


def _node_seconds(placement: Placement, costs: Costs | None, cluster: Cluster | None) -> dict[str, float]:
    if costs is None or not costs.devices:
        return {}
    only = next(iter(costs.devices))
    kind_of = {} if cluster is None else {device.name: device.kind for device in cluster.devices}
    tables = {p: costs.of(kind_of.get(p, only)).nodes for p in set(placement.device_of.values())}
    return {v: tables[p][v].total_s for v, p in placement.device_of.items() if v in tables[p]}


def _draw_boxes(
    axes: Axes,
    groups: GroupGraph,
    layout: LayeredLayout,
    seconds: Mapping[str, float],
    colours: Mapping[str, str],
) -> None:
    from matplotlib.patches import FancyBboxPatch

    totals = [sum(seconds.get(name, 0.0) for name in group.nodes) for group in groups.groups]
    longest = max(totals, default=0.0)
    for group, total, (x, y) in zip(groups.groups, totals, layout.boxes, strict=True):
        fraction = total / longest if longest > 0 else 0.3
        lines = _box_lines(group, total)
        width, height = 0.9, max(0.52 + 0.28 * fraction, _LINE * (len(lines) + 1))
        if group.moves:
            width, height = 0.6, 0.22
        axes.add_patch(
            FancyBboxPatch(
                (x - width / 2, y - height / 2),
                width,
                height,
                boxstyle="round,pad=0,rounding_size=0.05",
                facecolor="white" if group.moves else tint(colours[group.device]),
                edgecolor=colours[group.device],
                linewidth=0.8 if group.moves else 1.0 + 2.5 * fraction,
                linestyle="--" if any(part.cuts for part in group.parts) else "-",
                zorder=3,
            )
        )
        size, colour = (7, _MOVES_COLOUR) if group.moves else (8, "black")
        axes.text(x, y, "\n".join(lines), ha="center", va="center", fontsize=size, color=colour, zorder=4)


def _box_lines(group: NodeGroup, seconds: float) -> list[str]:
    lines = [_fitted(group.label, _CHARACTERS)]
    if group.moves:
        return lines
    if module := group.module:  # the end says more than the beginning
        lines.append(module if len(module) <= _CHARACTERS else f"…{module[1 - _CHARACTERS :]}")
    lines += [_fitted(line, _CHARACTERS + 2) for line in group.part_lines]
    return [*lines, _time(seconds)] if seconds > 0 else lines


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms" if seconds >= 1e-4 else f"{1e6 * seconds:.0f} µs"


def _fitted(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _draw_jumps(axes: Axes, groups: GroupGraph, layout: LayeredLayout) -> None:
    """Lettered connectors at the foot of a column and the head of the next; red if the edge is cut."""
    sources = dict.fromkeys(jump.source for jump in layout.jumps)
    name_of = {source: _letters(number) for number, source in enumerate(sources)}
    for jump in layout.jumps:
        for x, y in (jump.foot, jump.head):
            crossing = any((jump.source, target) in groups.cut_edges for target in jump.targets)
            colour = _CUT_COLOUR if crossing else "#555555"
            box = {"boxstyle": "circle,pad=0.25", "facecolor": "white", "edgecolor": colour}
            axes.text(x, y, name_of[jump.source], ha="center", va="center", fontsize=9, bbox=box, zorder=5)


def _letters(number: int) -> str:
    return (_letters(number // 26 - 1) if number >= 26 else "") + chr(ord("A") + number % 26)


def _draw_line(axes: Axes, points: Sequence[tuple[float, float]], crossing: bool) -> None:
    """Curves that leave and enter boxes vertically and run straight through bends."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    vertices, codes = [points[0]], [int(Path.MOVETO)]
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (y0 + y1) / 2
        vertices += [(x0, middle), (x1, middle), (x1, y1)]
        codes += [int(Path.CURVE4)] * 3
    axes.add_patch(
        PathPatch(
            Path(vertices, codes),
            facecolor="none",
            edgecolor=_CUT_COLOUR if crossing else "#808080",
            linewidth=2.4 if crossing else 1.0,
            zorder=2 if crossing else 1,
        )
    )


def _device_sentence(placement: Placement, device: str, seconds: Mapping[str, float]) -> str:
    names = [name for name, home in placement.device_of.items() if home == device]
    sentence = f"{device}: {len(names)} node{'' if len(names) == 1 else 's'}"
    if seconds:
        sentence += f", {_time(sum(seconds.get(name, 0.0) for name in names))} per micro-batch"
    return sentence


def _legend(figure: Figure, sentences: Sequence[str], colours: Mapping[str, str], parts: NodeParts) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = [
        Patch(facecolor=tint(colour), edgecolor=colour, linewidth=2, label=sentence)
        for sentence, colour in zip(sentences, colours.values(), strict=True)
    ]
    handles.append(Line2D([], [], color=_CUT_COLOUR, linewidth=2.2, label="sent from device to device"))
    if parts.cut:
        label = "dashed: a part of an operator, its dimension and share"
        handles.append(Patch(facecolor="white", edgecolor="black", linestyle="--", label=label))
    if parts.moving:
        label = "small: splits, joins or moves tensors for parts, or sends weights to other devices"
        handles.append(Patch(facecolor="white", edgecolor="black", linewidth=0.8, label=label))
    columns = 2 if figure.get_figwidth() >= _TWO_SENTENCES_IN else 1
    figure.legend(handles=handles, loc="outside lower left", ncols=columns, fontsize=10)
