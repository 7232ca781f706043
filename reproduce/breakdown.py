"""What an iteration's time is spent on, planned or measured (thesis, Figure 4-2)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median_low
from typing import TYPE_CHECKING

import torch

from netsplit.cluster.described import ClusterDescription
from netsplit.cluster.local import ClusterSpec
from netsplit.data.reading.loader import batches
from netsplit.errors import ConfigError
from netsplit.optim.optimizers import MOMENTUM
from netsplit.partition.methods.baselines import Ddp
from netsplit.partition.partitioner import Partitioner
from netsplit.program.schedules import GPipe, Schedule
from netsplit.runtime.share import OptimizerFactory
from netsplit.session.comparison import Experiment, described
from netsplit.session.session import Session
from netsplit.settings import ProfileMode, Settings
from netsplit.simulate.timeline import Timeline
from netsplit.tables import Cell, Column
from netsplit.training.options import Training
from reproduce.cases import WORKERS, ByName, ModelCase, check_references
from reproduce.iteration_parts import PARTS, iteration_parts
from reproduce.result import Picture, StudyResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["RunCase", "time_breakdown"]

log = logging.getLogger(__name__)

COLUMNS = (
    Column("case", text=True),
    Column("devices", "d"),
    Column("batch", ",d"),
    Column("iteration (ms)", ",.1f", 1e3),
    *(Column(f"{part} (%)", ".1f", 100.0) for part in PARTS),
    Column("printed (%)", ".0f", 100.0),
)
NOTES = (
    "Mean over the devices.",
    "communication: the device sends or receives without computing; waiting: it does neither.",
    "printed: communication as published.",
)
COLOURS = {
    "forward": "#0072B2",
    "backward": "#E69F00",
    "communication": "#009E73",
    "update": "#CC79A7",
    "waiting": "#DDDDDD",
}


@dataclass(frozen=True)
class RunCase(ModelCase):
    """A model, and how and where it is trained.

    Args:
        cluster: a described one is planned for, with predicted costs; on one of this machine it is trained.
        schedule: its micro-batches divide `batch_size`; replicas take them in turn.
    """

    cluster: ClusterSpec | ClusterDescription = field(kw_only=True)
    partitioner: Partitioner = field(default_factory=Ddp)
    schedule: Schedule = field(default_factory=GPipe)
    optimizer: OptimizerFactory = MOMENTUM
    profile: ProfileMode = "reuse"  # of what a plan for devices of this machine is made

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule.decides_everything:
            raise ConfigError(
                "schedule=auto decides the micro-batches too, and a study compares what is given: name a "
                "schedule, as in schedule=1f1b."
            )


def time_breakdown(
    cases: ByName[RunCase], folder: Path = WORKERS, iterations: int = 9, warmup: int = 3, seed: int = 0
) -> StudyResult:
    """Seconds of an iteration that go to forward, backward, communication, update and waiting.

    The mean over the devices. Of measured iterations the one with the median seconds is divided.

    Args:
        cases: `reference` may have ``communication``, a fraction of the iteration.
        folder: for the logs of the workers.
        iterations: measured ones.
        warmup: before them, which do not count.
        seed: of parameters, batches and methods.

    Raises:
        CaptureError, WorkerError, InfeasibleError: a case cannot be captured, trained or placed.
    """
    if iterations < 1 or warmup < 0:
        raise ConfigError(
            f"study.iterations is {iterations}, study.warmup is {warmup}: give at least 1 and 0."
        )
    rows: list[tuple[Cell, ...]] = []
    bars: dict[str, dict[str, float]] = {}
    metrics: dict[str, float] = {}
    check_references(cases, "communication")
    for name, case in cases.items():
        planned = isinstance(case.cluster, ClusterDescription)
        label = f"{case.label or name} ({'planned' if planned else 'measured'})"
        log.info("%s", label)
        if planned:
            timeline, devices = _planned(name, case, seed)
        else:
            timeline, devices = _trained(name, case, folder / name, iterations, warmup, seed)
        parts = _mean(iteration_parts(timeline, devices).values())
        bars[label] = parts
        whole = timeline.iteration_s
        rows.append(
            (
                label,
                len(devices),
                case.batch_size,
                whole,
                *(parts[part] / whole for part in PARTS),
                case.reference.get("communication"),
            )
        )
        metrics[f"iteration_s.{name}"] = whole
        metrics |= {f"{part}_fraction.{name}": seconds / whole for part, seconds in parts.items()}
    return StudyResult(
        "What an iteration's time is spent on",
        COLUMNS,
        tuple(rows),
        NOTES,
        (_picture(bars),),
        metrics,
    )


def _planned(name: str, case: RunCase, seed: int) -> tuple[Timeline, list[str]]:
    assert isinstance(case.cluster, ClusterDescription)
    with torch.device("meta"):
        model = case.model()
    experiment = Experiment(
        name=name,
        model=model,
        loss=case.loss,
        data=case.dataset,
        partitioners={},
        schedule=case.schedule,
        optimizer=case.optimizer,
        settings=Settings(epochs=1, batch_size=case.batch_size, seed=seed),
    )
    plan = described(experiment, case.cluster).plan(case.partitioner)
    program, predicted = plan.simulated
    return predicted, list(program.devices)


def _trained(
    name: str, case: RunCase, folder: Path, iterations: int, warmup: int, seed: int
) -> tuple[Timeline, list[str]]:
    assert isinstance(case.cluster, ClusterSpec)
    torch.manual_seed(seed)
    batch = next(batches(case.dataset.train, case.batch_size, seed=seed))
    with Session(case.cluster, folder, profile=case.profile) as session:
        step = session.step(case.model(), case.loss, batch, Training(case.optimizer, seed=seed))
        plan = session.plan(step, case.schedule, case.partitioner)
        model = session.deploy(step, plan)
        log.info("%s: training %d batches", name, warmup + iterations)
        for _ in range(warmup):
            model.train_batch(*batch)
        timelines = [model.measure_batch(*batch)[1] for _ in range(iterations)]
    typical = median_low(timeline.iteration_s for timeline in timelines)
    return next(each for each in timelines if each.iteration_s == typical), list(
        model.runtime.program.devices
    )


def _mean(samples: Iterable[dict[str, float]]) -> dict[str, float]:
    all_ = list(samples)
    return {part: mean(parts[part] for parts in all_) for part in PARTS}


def _picture(bars: dict[str, dict[str, float]]) -> Picture:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for place, parts in enumerate(bars.values()):
            whole, left = sum(parts.values()), 0.0
            for part, seconds in parts.items():
                width = 100 * seconds / whole
                label = part if place == 0 else None
                axes.barh(place, width, left=left, height=0.55, color=COLOURS[part], label=label)
                if width >= 6:
                    ink = "white" if part == "forward" else "black"
                    at = left + width / 2
                    axes.text(at, place, f"{width:.0f} %", ha="center", va="center", fontsize=10, color=ink)
                left += width
            axes.annotate(
                f"{1e3 * whole:,.1f} ms", (100, place), xytext=(5, 0), textcoords="offset points",
                va="center", fontsize=10,
            )  # fmt: skip
        axes.set_yticks(range(len(bars)), [label.replace(" (", "\n(") for label in bars])
        axes.invert_yaxis()
        axes.set_xlim(0, 112)
        axes.set_xticks(range(0, 101, 20))
        axes.set_xlabel("fraction of an iteration (%)")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        figure.legend(loc="outside upper center", ncols=5, fontsize=10)

    rows: list[tuple[Cell, ...]] = [
        (label, *(parts[part] for part in PARTS)) for label, parts in bars.items()
    ]
    columns = ("case", *(f"{part}_s" for part in PARTS))
    return Picture("breakdown", (9, 1.7 + 0.9 * len(bars)), draw, columns, rows)
