"""Methods compared on one model, data and cluster: planned, trained from the same start, recorded.

study once ──► per method: plan ──► deploy ──► fit ──► record ──► row of the table
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from netsplit.checkpoints import Checkpoints, newest, stable_folder
from netsplit.cluster.cluster import Link
from netsplit.config import CheckpointSettings
from netsplit.data.dataset import Data
from netsplit.data.loader import batches
from netsplit.errors import ConfigError, NetSplitError
from netsplit.files import write_text
from netsplit.partition.base import Partitioner
from netsplit.program.schedules import Schedule
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.share import OptimizerFactory
from netsplit.session import Plan, Session, Study
from netsplit.simulate.trace import write_trace
from netsplit.tracking import ComparisonRow, MethodRun, Tracker, markdown, outline
from netsplit.tracking.figures import TrainingCurve, comparison_figure, link_figure, training_figure
from netsplit.tracking.graph_figure import graph_figure
from netsplit.tracking.metrics import epoch_metrics, iteration_metrics, solver_summary, timeline_summary
from netsplit.tracking.timeline_figure import timeline_figure
from netsplit.training import Epoch, History, Iteration, Observer, fit

__all__ = ["Comparison", "Experiment", "Progress", "compare"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Experiment:
    """What is compared."""

    name: str
    model: nn.Module
    loss: Callable[..., Tensor]
    data: Data
    partitioners: Mapping[str, Partitioner]
    schedule: Schedule
    optimizer: OptimizerFactory
    epochs: int
    batch_size: int
    seed: int = 0
    config: Any = None  # resolved, for the record
    accumulate: int = 1
    drop_last: bool = False
    clip_norm: float | None = None
    autocast: str | None = None
    resume: str = "never"
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)


class Progress(Observer, Protocol):
    """An observer that is told which method is next, and how many iterations it will take."""

    def method(self, name: str, iterations: int) -> None: ...


@dataclass
class Comparison:
    """Rows in the order of the methods; everything else is in `folder` and in MLflow."""

    folder: Path
    rows: list[ComparisonRow] = field(default_factory=list)
    histories: dict[str, History] = field(default_factory=dict)

    @property
    def failed(self) -> list[ComparisonRow]:
        return [row for row in self.rows if row.failed]


def compare(
    experiment: Experiment, session: Session, tracker: Tracker, folder: Path, progress: Progress
) -> Comparison:
    """Plan and train with every method, from the same parameters and on the same batches.

    A method that fails keeps its row, with the reason; the others go on.

    Raises:
        CaptureError, ConfigError, WorkerError: before any method could begin.
    """
    found = Comparison(folder)
    if experiment.resume not in ("never", "auto"):
        _origin(experiment.resume)
    _ = session.pool  # a cluster that does not come up leaves no run behind
    with tracker.comparison(experiment.name, experiment.config, tags=_tags(experiment, session)) as parent:
        study = _study(experiment, session)
        _record_study(parent, study, session, folder)
        for name, partitioner in experiment.partitioners.items():
            try:
                with parent.method(name, experiment.config, tags={"partitioner": name}) as run:
                    row = _method(experiment, session, study, partitioner, run, found, progress)
            except (NetSplitError, OSError) as error:
                reason = " ".join(str(error).split())
                log.error("%s failed: %s", name, reason)
                row = ComparisonRow(name, "failed", capacity=_capacities(study), error=reason)
            found.rows.append(row)
        _record_comparison(parent, found)
    return found


def _study(experiment: Experiment, session: Session) -> Study:
    first = next(batches(experiment.data.train, experiment.batch_size, seed=experiment.seed))
    return session.study(
        experiment.model,
        experiment.loss,
        first,
        experiment.schedule,
        experiment.optimizer,
        experiment.clip_norm,
        experiment.autocast,
    )


def _method(
    experiment: Experiment,
    session: Session,
    study: Study,
    partitioner: Partitioner,
    run: MethodRun,
    found: Comparison,
    progress: Progress,
) -> ComparisonRow:
    plan = study.plan(partitioner, experiment.seed)
    run.summary(solver_summary(plan.placement.report))
    folder = found.folder / run.name
    log.info("%s: drawing the plan, placing the parameters", run.name)
    _write_plan(plan, folder)
    run.describe(f"```\n{plan.summary()}\n```")

    def restart() -> DistributedRuntime:
        return session.deploy(plan, seed=experiment.seed).runtime

    model = session.deploy(plan, seed=experiment.seed)
    progress.method(run.name, experiment.epochs * _steps_per_epoch(experiment))
    observer = _Recording(run, progress, experiment.batch_size)
    with _checkpoints(experiment, found.folder, run.name) as checkpoints:
        history = fit(
            model,
            experiment.data,
            epochs=experiment.epochs,
            seed=experiment.seed,
            observer=observer,
            accumulate=experiment.accumulate,
            drop_last=experiment.drop_last,
            checkpoints=checkpoints,
            restart=restart if experiment.resume == "auto" else None,
        )
    found.histories[run.name] = history
    model.save(folder / "checkpoint.pt")
    write_trace(folder / "trace.json", plan.predicted, history.measured, program=plan.program)
    timeline_figure(plan.predicted, history.measured, folder / "timeline.png")
    run.summary(timeline_summary(plan.predicted, history.typical, experiment.batch_size))
    run.summary({"static_bytes": plan.static_bytes, "transfers": plan.program.transfers})
    run.artifact(folder)
    return _row(plan, history, run.name)


def _steps_per_epoch(experiment: Experiment) -> int:
    count, step = len(experiment.data.train), experiment.accumulate * experiment.batch_size
    if experiment.drop_last:
        count -= count % experiment.batch_size
    return math.ceil(count / step)


def _checkpoints(
    experiment: Experiment, folder: Path, method: str
) -> AbstractContextManager[Checkpoints | None]:
    """The method's own folder of checkpoints, opened; nothing where none is to be saved or read."""
    settings, resume = experiment.checkpoint, experiment.resume
    every_epochs = 1 if settings.never and resume == "auto" else settings.every_epochs
    if settings.never and resume == "never":
        return nullcontext()
    if settings.folder is not None:
        place = Path(settings.folder)
    elif resume == "auto":
        name = f"{type(experiment.model).__name__}-{experiment.data.name}"
        place = stable_folder(experiment.config, name)
    else:
        place = folder / "checkpoints"
    return Checkpoints(
        place / method,
        every_epochs=every_epochs,
        every_iterations=settings.every_iterations,
        keep=settings.keep,
        resume=resume == "auto",
        origin=None if resume in ("never", "auto") else _origin(resume),
    )


def _origin(folder: str) -> Path:
    found = newest(folder)
    if found is None:
        raise ConfigError(
            f"resume is '{folder}', where there is no whole checkpoint: give never, auto, a checkpoint or a "
            "folder of checkpoints."
        )
    return found


class _Recording:
    """Passes on to the progress shown what it writes to MLflow."""

    def __init__(self, run: MethodRun, progress: Progress, batch_size: int) -> None:
        self.run = run
        self.progress = progress
        self.batch_size = batch_size

    def iteration(self, done: Iteration) -> None:
        if done.timed:
            samples = done.samples or self.batch_size
            self.run.metrics(iteration_metrics(done.step, done.loss, done.seconds, samples))
        else:
            self.run.metrics([("loss", done.loss, done.step)])
        self.progress.iteration(done)

    def epoch(self, done: Epoch) -> None:
        values = epoch_metrics(
            done.index, train_loss=done.train_loss, test_accuracy=done.test_accuracy, seconds=done.seconds
        )
        self.run.metrics(values)
        self.progress.epoch(done)


def _row(plan: Plan, history: History, name: str) -> ComparisonRow:
    report = plan.placement.report
    last = history.epochs[-1]
    return ComparisonRow(
        method=name,
        status=report.status,
        objective_s=report.objective,
        gap=report.gap,
        solve_s=report.seconds,
        predicted_s=plan.predicted.iteration_s,
        measured_s=history.iteration_s,
        throughput=history.throughput,
        accuracy=last.test_accuracy,
        predicted_peak=plan.predicted.peak_bytes,
        measured_peak=history.peak_bytes,
        capacity=_capacities(plan.study),
        nodes=dict(Counter(plan.placement.device_of.values())),
        loss=last.train_loss,
    )


def _capacities(study: Study) -> dict[str, int]:
    return {device.name: device.capacity_bytes for device in study.cluster.devices}


def _tags(experiment: Experiment, session: Session) -> dict[str, str]:
    return {
        "model": type(experiment.model).__name__,
        "dataset": experiment.data.name,
        "cluster": session.spec.name,
        "schedule": experiment.schedule.name,
        "methods": ", ".join(experiment.partitioners),
    }


def _record_study(run: MethodRun, study: Study, session: Session, folder: Path) -> None:
    """What all methods share: the graph with its costs and links, which `runners.partition` reads."""
    study.workload.save(folder / "graph.json")
    run.artifact(folder / "graph.json")
    if session.link_samples:
        link_figure(session.link_samples, study.cluster.links, folder / "links.png")
        run.artifact(folder / "links.png")
    run.tags({f"link.{p} to {q}": _in_words(link) for (p, q), link in study.cluster.links.items()})


def _in_words(link: Link) -> str:
    fit = "given" if link.r_squared is None else f"R² {link.r_squared:.4f}"
    return f"{1e6 * link.latency_s:.1f} µs, {link.bandwidth / 1e9:.2f} GB/s, {fit}"


def _write_plan(plan: Plan, folder: Path) -> None:
    placement = plan.placement
    _write_json(folder / "placement.json", asdict(placement))
    write_text(folder / "program.txt", plan.program.show())
    write_text(folder / "summary.txt", plan.summary())
    graph_figure(
        plan.study.graph, placement, folder / "graph.png", costs=plan.study.costs, cluster=plan.study.cluster
    )


def _record_comparison(run: MethodRun, found: Comparison) -> None:
    write_text(found.folder / "comparison.md", markdown(found.rows) + "\n")
    run.describe(f"```\n{outline(found.rows)}\n```")
    run.artifact(found.folder / "comparison.md")
    trained = [row for row in found.rows if not row.failed]
    if trained:
        curves = {name: _curve(history) for name, history in found.histories.items() if history.epochs}
        comparison_figure(trained, found.folder / "comparison.png")
        training_figure(curves, found.folder / "training.png")
        run.artifact(found.folder / "comparison.png")
        run.artifact(found.folder / "training.png")


def _curve(history: History) -> TrainingCurve:
    return TrainingCurve(
        [epoch.train_loss for epoch in history.epochs],
        [epoch.test_accuracy for epoch in history.epochs],
        [epoch.seconds for epoch in history.epochs],
    )


def _write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1))
