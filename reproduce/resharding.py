"""Strategies and orders of resharding between meshes, as AlpaComm evaluates them (5.1 and 5.3.1)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from netsplit.errors import ConfigError
from netsplit.pictures.drawing import PALETTE
from netsplit.reshard import ORDERS, Layout, Mesh, Network, plan_reshard
from netsplit.tables import Cell, Column
from reproduce.cases import ByName
from reproduce.result import Picture, StudyResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MeshHosts", "ReshardCase", "layer_bytes", "reshard_seconds"]

log = logging.getLogger(__name__)

BASELINES = {
    "send_receive": "send/receive",
    "local_allgather": "local all-gather",
    "global_allgather": "global all-gather",
}
ALPA = "global_allgather"


@dataclass(frozen=True)
class ReshardCase:
    """A tensor that goes from one mesh to another. A row of a mesh is a host.

    Args:
        source_mesh: hosts, and devices of each.
        source: layout there, as in ``S0RR``.
        destination_mesh, destination: the same of where it goes.
        shape: of the whole tensor.
        itemsize: bytes of an element.
        printed: what the paper says AlpaComm is faster by than Alpa, in its words.
        label: what the case is called in tables; None: its name.
    """

    source_mesh: Sequence[int]
    source: str
    destination_mesh: Sequence[int]
    destination: str
    shape: Sequence[int]
    itemsize: int = 4
    printed: str = ""
    label: str | None = None

    def __post_init__(self) -> None:
        for mesh in (self.source_mesh, self.destination_mesh):
            if len(mesh) != 2 or min(mesh) < 1:
                raise ConfigError(f"a case has a mesh of shape {list(mesh)}: give [hosts, devices of each].")

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        meshes = (("source", self.source_mesh), ("destination", self.destination_mesh))
        source, destination = (
            Mesh(tuple(f"{side}:{i}" for i in range(prod(shape))), tuple(shape)) for side, shape in meshes
        )
        return Layout(source, self.source), Layout(destination, self.destination)


@dataclass(frozen=True)
class MeshHosts:
    """Equal hosts, by default p3.8xlarge: 10 Gb/s between them, NVLink inside. Bytes per second, seconds."""

    nic_bandwidth: float = 1.25e9
    inside_bandwidth: float = 45e9
    nic_latency_s: float = 0.0
    inside_latency_s: float = 0.0

    def network(self, *meshes: Mesh) -> Network:
        hosts: dict[str, list[int | str]] = {}
        for side, mesh in enumerate(meshes):
            for device, place in mesh.places.items():
                hosts.setdefault(f"host {side}.{place[0]}", []).append(device)
        return Network.uniform(
            hosts, self.nic_bandwidth, self.inside_bandwidth, self.nic_latency_s, self.inside_latency_s
        )


COLUMNS = (
    Column("case", text=True),
    Column("layouts", text=True, whole=True),
    Column("unit tasks", "d"),
    Column("at least (ms)", ",.1f", 1e3),
    *(Column(f"{name} (ms)", ",.1f", 1e3) for name in BASELINES.values()),
    *(Column(f"{order.replace('_', ' ')} (ms)", ",.1f", 1e3) for order in ORDERS),
    Column("over Alpa", ".2f"),
    Column("over naive", ".2f"),
    Column("printed", text=True),
)
NOTES = (
    "Predicted from messages on NICs and inside hosts; every plan is verified.",
    "at least: the lower bound for every strategy and order; a row of a mesh is a host.",
    "send/receive and all-gathers: senders balanced by size only, like the paper's baselines.",
    "naive to depth first: the broadcast in each order; over: the speed-up of the best of them.",
    "Alpa: the global all-gather. printed: over Alpa, from the paper.",
)


def reshard_seconds(
    cases: ByName[ReshardCase], hosts: MeshHosts | None = None, chunks: int = 100, seed: int = 0
) -> StudyResult:
    """Seconds of every strategy, and of the broadcast in every order.

    Args:
        hosts: None: as `MeshHosts`.
        chunks: K of the broadcast.
        seed: of the randomised order.

    Raises:
        ReshardError: a case whose layouts are none.
    """
    rows: list[tuple[Cell, ...]] = []
    metrics: dict[str, float] = {}
    for name, case in cases.items():
        seconds, tasks, bound_s = _planned(case, hosts or MeshHosts(), chunks, seed)
        best = min(seconds[order] for order in ORDERS)
        rows.append(
            (
                case.label or name,
                " → ".join(
                    f"{spec} {hosts}x{devices}"
                    for spec, (hosts, devices) in (
                        (case.source, case.source_mesh),
                        (case.destination, case.destination_mesh),
                    )
                ),
                tasks,
                bound_s,
                *(seconds[each] for each in (*BASELINES, *ORDERS)),
                seconds[ALPA] / best if best else None,
                seconds["naive"] / best if best else None,
                case.printed,
            )
        )
        log.info("%s: %s", name, seconds)
        metrics |= {f"seconds.{each}.{name}": value for each, value in seconds.items()}
        metrics[f"bound_s.{name}"] = bound_s
    pictures = (
        _picture("strategies", rows, [f"{name} (ms)" for name in BASELINES.values()], "broadcast"),
        _picture("orders", rows, ["naive (ms)", "size only (ms)"], "broadcast"),
    )
    return StudyResult(
        "Resharding between meshes", COLUMNS, tuple(rows), NOTES, pictures=pictures, metrics=metrics
    )


def _planned(
    case: ReshardCase, hosts: MeshHosts, chunks: int, seed: int
) -> tuple[dict[str, float], int, float]:
    """Seconds by baseline and by order; unit tasks; the bound."""
    source, destination = case.layouts
    network = hosts.network(source.mesh, destination.mesh)
    ways = [(each, each, "size_only") for each in BASELINES] + [(each, "broadcast", each) for each in ORDERS]
    seconds = {}
    for key, strategy, order in ways:
        plan = plan_reshard(
            source, destination, tuple(case.shape), case.itemsize, network, strategy, order, chunks, seed
        )
        seconds[key] = plan.seconds
    return seconds, len(plan.tasks), plan.bound_s


def _picture(name: str, rows: Sequence[tuple[Cell, ...]], others: Sequence[str], best: str) -> Picture:
    """Bars of some columns, and of the depth-first order under the name of `best`."""
    heads = [column.name for column in COLUMNS]
    shown = {key: key.removesuffix(" (ms)") for key in others} | {
        "depth first (ms)": best,
        "at least (ms)": "at least",
    }
    keys = list(shown)
    cells: list[tuple[Cell, ...]] = [(row[0], *(row[heads.index(key)] for key in keys)) for row in rows]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        width = 0.8 / (len(keys) - 1)
        for place, key in enumerate(keys[:-1]):
            at = [index + (place - (len(keys) - 2) / 2) * width for index in range(len(cells))]
            values = [1e3 * float(row[place + 1] or 0) for row in cells]
            axes.bar(at, values, width=0.9 * width, color=PALETTE[place], label=shown[key])
        for index, row in enumerate(cells):
            axes.hlines(1e3 * float(row[-1] or 0), index - 0.45, index + 0.45, color="black", linewidth=1)
        axes.set_xticks(range(len(cells)), [str(row[0]) for row in cells])
        axes.set_ylabel("ms; line: at least")
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
        figure.legend(loc="outside upper center", ncols=len(keys) - 1, fontsize=9)

    return Picture(
        name,
        (max(6.0, 1.1 * len(rows)), 4.5),
        draw,
        ("case", *(f"{key} (s)" for key in shown.values())),
        cells,
    )


def layer_bytes(
    hidden: int = 12288, sequence: int = 1024, samples: int = 2, parts: int = 8, stages: int = 8
) -> StudyResult:
    """Bytes of one GPT layer on each of the devices that have parts of it (AlpaComm, Table 1).

    In mixed precision with Adam: weights and activations of two bytes, and three of four for each weight.

    Args:
        hidden: H.
        sequence: S.
        samples: B, of a micro-batch.
        parts: TMP, devices among which the matrices are cut.
        stages: of a pipeline, for what `eager_1f1b` keeps on top.
    """
    if min(hidden, sequence, samples, parts, stages) < 1:
        raise ConfigError("hidden, sequence, samples, parts and stages of a layer are at least 1 each.")
    weights = (12 * hidden**2 + 7 * hidden) // parts + 6 * hidden
    activation = samples * sequence * hidden
    rows: list[tuple[Cell, ...]] = [
        ("weights", "(12 H² + 7 H) / TMP + 6 H", weights, 2 * weights),
        ("optimiser's state", "three of four bytes for each weight", 3 * weights, 12 * weights),
        ("activation between layers", "B S H", activation, 2 * activation),
        (f"eager_1f1b's more, {stages} stages, at most", "stages x B S H", stages * activation,
         2 * stages * activation),
    ]  # fmt: skip
    columns = (
        Column("of one layer, on each device", text=True),
        Column("elements by", text=True),
        Column("elements", ",d"),
        Column("MiB", ",.1f", 2.0**-20),
    )
    state = 14 * weights
    notes = (
        f"H = {hidden}, S = {sequence}, B = {samples}, TMP = {parts}; norms and what follows sums are whole.",
        f"The last row is {2 * stages * activation / state:.1%} of the first two together.",
    )
    metrics = {
        "weights_bytes": 2.0 * weights,
        "state_bytes": 12.0 * weights,
        "activation_bytes": 2.0 * activation,
    }
    return StudyResult("A GPT-3 layer in bytes", columns, tuple(rows), notes, metrics=metrics)
