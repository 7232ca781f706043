"""Where the seconds of a model go: forward and backward, by type of operator (thesis, Figure 5-2)."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from netsplit.cluster.catalogue import accelerator
from netsplit.data.reading.loader import batches
from netsplit.errors import ConfigError
from netsplit.graph.ir import Graph
from netsplit.graph.module import initial_values
from netsplit.graph.recording.step import as_tuple, capture
from netsplit.pictures.drawing import KIND_COLOURS
from netsplit.profile.costs import NodeSeconds
from netsplit.profile.measure.compute import Profiler, walks_to_settle
from netsplit.profile.predict import predicted_seconds
from netsplit.tables import Cell, Column
from reproduce.cases import ByName, ModelCase, check_references
from reproduce.result import Picture, StudyResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["OperatorCase", "TypeSeconds", "by_type", "operator_seconds"]

log = logging.getLogger(__name__)

HERE = re.compile(r"cpu|cuda(:\d+)?")
OTHERS = "others"


@dataclass(frozen=True)
class OperatorCase(ModelCase):
    """A model and where it runs.

    Args:
        device: ``cpu`` or ``cuda:0`` measures on this machine; the name of an accelerator in the catalogue,
            as ``TITAN RTX``, predicts.
    """

    device: str = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.measured:
            accelerator(self.device, "device of a case")

    @property
    def measured(self) -> bool:
        return HERE.fullmatch(self.device) is not None


@dataclass(frozen=True)
class TypeSeconds:
    """All operators of one type."""

    name: str
    nodes: int
    forward_s: float
    backward_s: float

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s

    @property
    def ratio(self) -> float | None:
        """Backward to forward."""
        return self.backward_s / self.forward_s if self.forward_s > 0 else None


def operator_seconds(
    cases: ByName[OperatorCase], repeats: int = 3, rounds: int = 2, most: int = 8, seed: int = 0
) -> StudyResult:
    """Forward and backward seconds of every type of operator: of all its nodes in one training step.

    Args:
        repeats: measured walks over the graph in a round.
        rounds: of measurement, which lie apart in time.
        most: types shown, those with the most seconds; the rest are one line.
        seed: of the model's parameters and of the batch.

    Raises:
        CaptureError: a model cannot be captured.
    """
    for key, value in (("repeats", repeats), ("rounds", rounds), ("most", most)):
        if value < 1:
            raise ConfigError(f"study.{key} is {value}: give at least 1.")
    check_references(cases)
    rows: list[tuple[Cell, ...]] = []
    panels: dict[str, list[TypeSeconds]] = {}
    metrics: dict[str, float] = {}
    for name, case in cases.items():
        log.info("%s at batches of %d on %s", name, case.batch_size, case.device)
        graph, seconds = _measured(case, repeats, rounds, seed) if case.measured else _predicted(case)
        types = by_type(graph, seconds, most)
        whole = _sum("all", types)
        how = "measured" if case.measured else "predicted"
        label = f"{case.label or name}, batch {case.batch_size}, {how} on {case.device}"
        panels[label] = types
        rows += [_row(label if each is types[0] else "", each, whole) for each in [*types, whole]]
        metrics |= {f"forward_s.{name}": whole.forward_s, f"backward_s.{name}": whole.backward_s}
        metrics |= {f"backward_to_forward.{name}.{each.name}": each.ratio or 0.0 for each in [*types, whole]}
    return StudyResult(
        "Seconds of a training step by operator type",
        (
            Column("case", text=True),
            Column("operator", text=True),
            Column("nodes", ",d"),
            Column("forward (ms)", ",.2f", 1e3),
            Column("backward (ms)", ",.2f", 1e3),
            Column("backward / forward", ".2f"),
            Column("of all (%)", ".1f", 100.0),
        ),
        tuple(rows),
        ("Sums over all nodes of a type in one training step; of all: share of forward and backward.",),
        (_picture(panels),),
        metrics,
    )


def by_type(graph: Graph, seconds: Mapping[str, NodeSeconds], most: int) -> list[TypeSeconds]:
    """Sums of forward and backward by type of operator, the longest first; beyond `most` as one.

    An operator that writes in place counts with the one that does not.
    """
    nodes: defaultdict[str, list[NodeSeconds]] = defaultdict(list)
    for node in graph:
        nodes[node.kind.rstrip("_")].append(seconds[node.name])
    types = [
        TypeSeconds(name, len(all_), sum(s.forward_s for s in all_), sum(s.backward_s for s in all_))
        for name, all_ in nodes.items()
    ]
    types.sort(key=lambda each: (-each.total_s, each.name))
    if len(types) <= most:
        return types
    return [*types[:most], _sum(OTHERS, types[most:])]


def _measured(
    case: OperatorCase, repeats: int, rounds: int, seed: int
) -> tuple[Graph, dict[str, NodeSeconds]]:
    torch.manual_seed(seed)
    model = case.model()
    inputs, targets = next(batches(case.dataset.train, case.batch_size, seed=seed))
    graph = capture(model, case.loss, (inputs, targets))
    values = initial_values(model, graph, case.loss)
    log.info("measuring %d operators", len(graph))
    batch = as_tuple(inputs) + as_tuple(targets)
    profiler = Profiler(graph, batch, values, case.device, repeats=repeats)
    for _ in range(rounds):
        profiler.round()
    for _ in walks_to_settle(profiler):
        pass
    return graph, profiler.seconds()


def _predicted(case: OperatorCase) -> tuple[Graph, dict[str, NodeSeconds]]:
    graph = case.training_graph()
    return graph, predicted_seconds(graph, accelerator(case.device))


def _sum(name: str, parts: Sequence[TypeSeconds]) -> TypeSeconds:
    return TypeSeconds(
        name,
        sum(each.nodes for each in parts),
        sum(each.forward_s for each in parts),
        sum(each.backward_s for each in parts),
    )


def _row(label: str, each: TypeSeconds, whole: TypeSeconds) -> tuple[Cell, ...]:
    fraction = each.total_s / whole.total_s if whole.total_s > 0 else None
    return label, each.name, each.nodes, each.forward_s, each.backward_s, each.ratio, fraction


def _picture(panels: dict[str, list[TypeSeconds]]) -> Picture:
    def draw(figure: Figure) -> None:

        all_axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
        for axes, (label, types) in zip(all_axes, panels.items(), strict=True):
            places = range(len(types))
            for off, kind in ((-0.19, "forward"), (0.19, "backward")):
                values = [1e3 * getattr(each, f"{kind}_s") for each in types]
                at = [place + off for place in places]
                axes.barh(at, values, height=0.36, color=KIND_COLOURS[kind], label=kind)
            for place, each in zip(places, types, strict=True):
                if each.ratio is not None:
                    longest = 1e3 * max(each.forward_s, each.backward_s)
                    axes.annotate(
                        f"x {each.ratio:.1f}", (longest, place), xytext=(4, 0), textcoords="offset points",
                        va="center", fontsize=9, color="#555555",
                    )  # fmt: skip
            axes.set_yticks(places, [each.name for each in types])
            axes.invert_yaxis()
            axes.margins(x=0.1)
            axes.set_title(label, loc="left", fontsize=11)
            axes.set_xlabel("time of all its operators in one step (ms); beside: backward / forward")
            axes.grid(axis="x", alpha=0.3)
            axes.set_axisbelow(True)
        all_axes[0].legend(loc="lower right", fontsize=10)

    rows = [
        (label, each.name, each.nodes, each.forward_s, each.backward_s)
        for label, types in panels.items()
        for each in types
    ]
    height = sum(1.1 + 0.42 * len(types) for types in panels.values())
    return Picture(
        "operators", (9, height), draw, ("case", "operator", "nodes", "forward_s", "backward_s"), rows
    )
