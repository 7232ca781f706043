"""How large the tensors are that cross from node to node (thesis, Figure 5-3)."""

from __future__ import annotations

import logging
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

from netsplit.errors import ConfigError
from netsplit.graph.ir import Graph
from netsplit.pictures.drawing import PALETTE
from netsplit.tables import Cell, Column
from reproduce.cases import ByName, ModelCase, check_references
from reproduce.result import Picture, StudyResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["cumulative", "edge_bytes"]

log = logging.getLogger(__name__)

MB = 1e-6


def edge_bytes(cases: ByName[ModelCase], threshold_bytes: float = 1e8) -> StudyResult:
    """The cumulative distribution of the bytes of a graph's edges, one for each reader of a variable.

    Args:
        cases: `reference` may have ``fraction_below``, a fraction.
        threshold_bytes: the fraction of edges with fewer bytes is told.

    Raises:
        CaptureError: a model cannot be captured.
    """
    if threshold_bytes <= 0:
        raise ConfigError(f"study.threshold_bytes is {threshold_bytes}: give more than 0.")
    check_references(cases, "fraction_below")
    rows: list[tuple[Cell, ...]] = []
    curves: dict[str, list[tuple[int, float]]] = {}
    fractions: dict[str, float] = {}
    for name, case in cases.items():
        log.info("%s at batches of %d", name, case.batch_size)
        graph = case.training_graph()
        sizes = _sizes(graph)
        label = case.label or name
        label = label if label not in curves else f"{label} ({name})"
        fractions[label] = sum(nbytes < threshold_bytes for nbytes in sizes) / len(sizes)
        curves[label] = cumulative(sizes)
        rows.append(
            (
                label,
                case.batch_size,
                len(graph),
                len(sizes),
                median(sizes),
                max(sizes),
                fractions[label],
                case.reference.get("fraction_below"),
            )
        )
    return StudyResult(
        "Bytes of the tensors between nodes",
        (
            Column("model", text=True),
            Column("batch", "d"),
            Column("nodes", ",d"),
            Column("edges", ",d"),
            Column("median (MB)", ",.3g", MB),
            Column("largest (MB)", ",.1f", MB),
            Column(f"below {threshold_bytes / 1e6:g} MB (%)", ".1f", 100.0),
            Column("printed (%)", ".1f", 100.0),
        ),
        tuple(rows),
        ("An edge is a variable and one node that reads it, except inputs of the graph and parameters.",),
        (_picture(curves, threshold_bytes, fractions),),
        {
            f"fraction_below.{name}": fraction
            for name, fraction in zip(cases, fractions.values(), strict=True)
        },
    )


def cumulative(sizes: list[int]) -> list[tuple[int, float]]:
    """Every size that occurs, rising, with the fraction of all that are no larger."""
    done, points = 0, []
    for nbytes, count in sorted(Counter(sizes).items()):
        done += count
        points.append((nbytes, done / len(sizes)))
    return points


def _sizes(graph: Graph) -> list[int]:
    sizes = [graph.variables[k].nbytes for _, _, k in graph.edges]
    if not sizes:
        raise ConfigError("the graph of a case has one node and no edge: choose a larger model.")
    return sizes


def _picture(
    curves: dict[str, list[tuple[int, float]]], threshold_bytes: float, fractions: dict[str, float]
) -> Picture:
    def draw(figure: Figure) -> None:
        from matplotlib.ticker import EngFormatter

        axes = figure.subplots()
        right = max(points[-1][0] for points in curves.values())
        for index, (name, points) in enumerate(curves.items()):
            shown = [(max(nbytes, 1), 100 * fraction) for nbytes, fraction in points]
            axes.step(
                [shown[0][0], *(nbytes for nbytes, _ in shown), 2 * right],
                [0.0, *(fraction for _, fraction in shown), 100.0],
                where="post",
                color=PALETTE[index % len(PALETTE)],
                linewidth=2,
                label=f"{name}: {100 * fractions[name]:.1f} % below {threshold_bytes / 1e6:g} MB",
            )
        axes.axvline(threshold_bytes, color="#777777", linestyle="--", linewidth=1)
        axes.set_xscale("log")
        axes.set_xlim(right=2 * right)
        axes.set_ylim(0, 103)
        axes.xaxis.set_major_formatter(EngFormatter("B"))
        axes.set_xlabel("bytes of an edge")
        axes.set_ylabel("edges with at most that many bytes (%)")
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left", fontsize=10)

    rows = [(name, nbytes, fraction) for name, points in curves.items() for nbytes, fraction in points]
    return Picture(
        "edges", (9, 5.5), draw, ("model", "bytes", "fraction of edges with at most that many bytes"), rows
    )
