"""How much memory the training of a model needs on one device, counted in three ways (thesis, Table 6-3)."""

from __future__ import annotations

import logging
from math import prod
from typing import TYPE_CHECKING

from netsplit.cluster.cluster import Cluster, Device
from netsplit.errors import ConfigError
from netsplit.graph.ir import Graph
from netsplit.pictures.drawing import PALETTE
from netsplit.placement.placement import Placement
from netsplit.profile.memory import memory_of
from netsplit.program.compile import compile_program
from netsplit.program.schedules import SingleBatch
from netsplit.simulate.simulate import predicted_peak_bytes
from netsplit.tables import Cell, Column
from reproduce.cases import ByName, ModelCase, check_references
from reproduce.exported import exported_size
from reproduce.result import Picture, StudyResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["lifetime_peak", "memory_needs"]

log = logging.getLogger(__name__)

MIB = 2.0**-20
COLUMNS = (
    Column("model", text=True),
    Column("parameters (M)", ",.1f", 1e-6),
    Column("nodes", ",d"),
    Column("nodes exported", ",d"),
    Column("operators exported", ",d"),
    Column("nodes merged", ",d"),
    Column("operators merged", ",d"),
    Column("nodes printed", ",.0f"),
    Column("static (MiB)", ",.0f", MIB),
    Column("peak (MiB)", ",.0f", MIB),
    Column("exported (MiB)", ",.0f", MIB),
    Column("merged (MiB)", ",.0f", MIB),
    Column("printed (MiB)", ",.0f", MIB),
    Column("difference (%)", "+.1f", 100.0),
    Column("difference merged (%)", "+.1f", 100.0),
)


def memory_needs(cases: ByName[ModelCase], alpha: int = 4) -> StudyResult:
    """Nodes and bytes of every model's training step at its batch size, on one device.

    static: equation (5-18) on the captured training step, `alpha` times the parameters and twice every
    variable. peak: the most that is alive at once, from the lifetimes of tensors. exported: the sum of (5-18)
    on the graph that an export to ONNX for inference leaves; merged: the same with equal operators merged, as
    PyTorch's exporter does since autumn 2022. These two are compared with the printed figure.

    Args:
        cases: `reference` may have ``nodes`` and ``mib``, as printed.
        alpha: bytes of training state per byte of parameter: SGD 2, momentum 3, Adam 4.

    Raises:
        CaptureError: a model cannot be captured.
        NetSplitError: a model cannot be exported to ONNX.
    """
    if alpha < 1:
        raise ConfigError(f"study.alpha is {alpha}: give at least 1.")
    check_references(cases, "nodes", "mib")
    rows, metrics = [], {}
    for name, case in cases.items():
        log.info("%s at batches of %d", name, case.batch_size)
        row = _row(case.label or name, case, alpha)
        rows.append(row)
        cells = dict(zip((column.name for column in COLUMNS), row, strict=True))
        for key in ("nodes", "static (MiB)", "peak (MiB)", "exported (MiB)", "merged (MiB)"):
            metric = key.replace(" (MiB)", "_bytes")
            metrics[f"{metric}.{name}"] = float(cells[key] or 0)
    return StudyResult(
        "Memory of a training step on one device",
        COLUMNS,
        tuple(rows),
        (
            f"static: twice every variable of the training step and {alpha} times its parameters (5-18).",
            "peak: the most bytes alive at once, from tensor lifetimes.",
            "exported: (5-18) on the graph of an export to ONNX for inference: batch norms folded.",
            "merged: equal operators on the same values counted once, as PyTorch exports since autumn 2022.",
            "operators: nodes which are neither Constant nor Identity.",
            "difference: of `exported` or `merged` from the printed figure.",
        ),
        (_picture(rows),),
        metrics,
    )


def lifetime_peak(graph: Graph, alpha: int) -> int:
    """Bytes alive at the worst moment of an iteration on one device, the whole batch in one piece."""
    device = Device("device", "any", 2**60)
    cluster = Cluster("one device", (device,), {})
    placed = dict.fromkeys(graph.nodes, device.name)
    program = compile_program(graph, Placement.given(placed, graph.position), cluster, SingleBatch())
    return predicted_peak_bytes(program, alpha)[device.name]


def _row(label: str, case: ModelCase, alpha: int) -> tuple[Cell, ...]:
    graph = case.training_graph()
    file = case.exported_graph()
    exported, merged = exported_size(file, merge=False), exported_size(file, merge=True)
    sizes = exported.need_bytes(alpha), merged.need_bytes(alpha)
    printed = case.reference["mib"] * 2**20 if "mib" in case.reference else None
    parameters = (init for init in graph.initializers.values() if init.is_parameter)
    return (
        label,
        sum(prod(init.shape) for init in parameters),
        len(graph),
        exported.nodes,
        exported.operators,
        merged.nodes,
        merged.operators,
        case.reference.get("nodes"),
        memory_of(graph, graph.nodes, alpha),
        lifetime_peak(graph, alpha),
        *sizes,
        printed,
        *(None if printed is None else size / printed - 1 for size in sizes),
    )


def _picture(rows: list[tuple[Cell, ...]]) -> Picture:
    names = ("static (MiB)", "peak (MiB)", "exported (MiB)", "merged (MiB)", "printed (MiB)")
    where = [column.name for column in COLUMNS]
    cells: list[tuple[Cell, ...]] = [(row[0], *(row[where.index(name)] for name in names)) for row in rows]

    def draw(figure: Figure) -> None:

        axes = figure.subplots()
        height = 0.8 / len(names)
        for place, name in enumerate(names):
            values = [float(row[place + 1] or 0) / 2**30 for row in cells]
            at = [index + (place - (len(names) - 1) / 2) * height for index in range(len(cells))]
            axes.barh(at, values, height=0.9 * height, color=PALETTE[place], label=name.split(" (")[0])
        axes.set_yticks(range(len(cells)), [str(row[0]) for row in cells])
        axes.invert_yaxis()
        axes.set_xlabel("memory (GiB)")
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
        figure.legend(loc="outside upper center", ncols=len(names), fontsize=10)

    return Picture(
        "memory",
        (9, 1.6 + 0.75 * len(rows)),
        draw,
        ("model", *(n.replace("MiB", "bytes") for n in names)),
        cells,
    )
