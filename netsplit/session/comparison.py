"""Methods compared on one model, data and cluster: planned, trained from the same start, recorded.

problem once ──► per method: plan ──► deploy ──► fit ──► record ──► row of the table

For devices that are not here, `forecast` captures the model on the meta device and predicts an iteration of
every plan.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn

from netsplit.cluster.described import ClusterDescription
from netsplit.data.dataset import Data
from netsplit.data.reading.loader import batches
from netsplit.data.reading.own import as_data
from netsplit.errors import ConfigError, NetSplitError
from netsplit.graph.batches.batch import Batch
from netsplit.models.sizes import within_memory
from netsplit.optim.learning_rate import LearningRate
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.plan import Plan
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.profile.predict import unknown_in_words
from netsplit.program.schedules import Schedule
from netsplit.runtime.checkpoint.shares import saved_cut
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.share import OptimizerFactory
from netsplit.session.costs import CostSource, PredictedCosts
from netsplit.session.decision import problem_of, training_plan
from netsplit.session.request import Request
from netsplit.session.session import Session
from netsplit.session.step import ModelStep
from netsplit.settings import Settings
from netsplit.tracking import ComparisonRow, ComparisonRun, MethodRun, Tracker
from netsplit.tracking.records import (
    Comparison,
    Progress,
    ProgressRecorder,
    capacities,
    keep_trained,
    record_comparison,
    record_decisions,
    record_model,
    record_plan,
    record_result,
    record_row,
    record_whole,
    record_workload,
    write_last_plan,
)
from netsplit.training.adapt.switchable import check_adaptable
from netsplit.training.checkpoints import (
    newest,
    opened_checkpoints,
    origin_checkpoint,
    stable_folder,
)
from netsplit.training.epochs import fit
from netsplit.training.metrics import Metric, as_metric, chosen_metric, update_metric
from netsplit.training.options import Training

__all__ = ["PLANNED", "Experiment", "Shared", "as_saved", "compare", "described", "experiment_of", "forecast"]

log = logging.getLogger(__name__)

PLANNED = {"mode": "planned"}
"""Tag of runs without training."""


@dataclass(frozen=True)
class Experiment:
    """What is compared."""

    name: str
    model: nn.Module
    loss: Callable[..., Tensor]
    data: Data
    partitioners: Mapping[str, Partitioner]
    schedule: Schedule | AutoSchedule
    optimizer: OptimizerFactory
    settings: Settings
    learning_rate: LearningRate | None = None
    config: Any = None  # resolved, for tracking
    labels: Mapping[str, str] = field(default_factory=dict)  # config group -> chosen option
    metric: Metric | None = field(default_factory=lambda: as_metric("accuracy"))  # on the test half

    @property
    def training(self) -> Training:
        return Training.of(self.settings, self.optimizer, self.learning_rate)

    @property
    def stable(self) -> Path:
        """Folder of this training's checkpoints, the same in every run."""
        given = self.settings.checkpoint.folder
        name = f"{type(self.model).__name__}-{self.data.name}"
        return Path(given) if given is not None else stable_folder(self.config, name)


def experiment_of(request: Request, name: str, labels: Mapping[str, str]) -> Experiment:
    """Build data, model and loss of a request; on a described cluster the model has no values."""
    settings = request.settings
    torch.manual_seed(settings.seed)
    data = as_data(request.dataset(), request.dataset_name, request.reading)
    for key, given in request.classes.items():
        if given < data.num_classes:
            raise ConfigError(
                f"model.{key} is {given}, but the dataset has {data.num_classes} classes: give at least "
                f"{data.num_classes}."
            )
    with torch.device("meta") if isinstance(request.cluster, ClusterDescription) else within_memory():
        model = request.model()
    loss = request.loss()
    _check_parts(model, loss)
    rate = request.learning_rate
    if rate is not None:
        rate = rate.over(settings.epochs, _steps_per_epoch(data, settings))
    training = Training.of(settings, request.optimizer, rate).made_for(model, loss)
    if settings.adapt:
        check_adaptable(settings.compile_backend, request.schedule)
    size = sum(parameter.numel() for parameter in model.parameters())
    log.info("Data: %s. Model: %s, %s parameters.", data.summary(), type(model).__name__, f"{size:,}")
    metric = chosen_metric(request.metric, data, loss)
    return Experiment(
        name, model, loss, data, request.partitioners, request.schedule, training.optimizer, settings, rate,
        request.config, labels, metric,
    )  # fmt: skip


def _check_parts(model: Any, loss: Any) -> None:
    """Raises ConfigError: a `_target_` returns no module, or no callable loss."""
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model._target_ returns {model!r}: name a callable that returns a torch.nn.Module."
        )
    if not callable(loss):
        raise ConfigError(
            f"loss._target_ returns {loss!r}: name a callable that returns a function of outputs and targets."
        )


def compare(
    experiment: Experiment, session: Session, tracker: Tracker, folder: Path, progress: Progress
) -> Comparison:
    """Plan and train with every method, from the same parameters and on the same batches.

    A method that fails keeps its row, with the reason.
    """
    if experiment.settings.resume not in ("never", "auto"):
        origin_checkpoint(experiment.settings.resume)
    _ = session.pool  # if the cluster fails to start, no run is recorded
    with _recorded(experiment, session.spec.name, tracker) as parent:
        shared = _planned(experiment, session)
        problem = shared.problem
        _check_metric(experiment, shared.step, problem.graph.batch_size)
        source: dict[str, str] = {"profile": session.profile}
        if problem.costs.predicted and (unknown := unknown_in_words(problem.graph)):
            source["unknown_operators"] = unknown
        parent.tags(source)

        def row(plan: Plan, run: MethodRun, comparison: Comparison) -> ComparisonRow:
            run.tags(source)
            return _method(experiment, session, shared, plan, run, comparison, progress)

        return _each_method(experiment, shared, parent, folder, row)


def forecast(
    experiment: Experiment, description: ClusterDescription, tracker: Tracker, folder: Path
) -> Comparison:
    """Plan with every method and predict its iteration; a method that fails keeps its row."""
    shared = described(experiment, description)
    unknown = unknown_in_words(shared.problem.graph)
    planned = PLANNED | ({"unknown_operators": unknown} if unknown else {})

    def row(plan: Plan, run: MethodRun, comparison: Comparison) -> ComparisonRow:
        run.tags(planned)
        record_plan(run, plan, folder / run.name)
        return record_row(run, plan, folder / run.name)

    with _recorded(experiment, description.name, tracker, planned) as parent:
        return _each_method(experiment, shared, parent, folder, row)


def described(experiment: Experiment, description: ClusterDescription) -> Shared:
    """An experiment's step on described devices with predicted costs, and its plan with `schedule=auto`."""
    source = PredictedCosts.for_cluster(description, experiment.settings.autocast)
    batch = experiment.data.shapes(experiment.settings.batch_size)
    step = ModelStep(experiment.model, experiment.loss, batch, experiment.training)
    return Shared.of(step, source, experiment.schedule, experiment.partitioners)


@contextmanager
def _recorded(
    experiment: Experiment, cluster: str, tracker: Tracker, tags: Mapping[str, str] = MappingProxyType({})
) -> Iterator[ComparisonRun]:
    every = _tags(experiment, cluster) | dict(tags)
    with tracker.comparison(experiment.name, experiment.config, tags=every) as parent:
        yield parent


@dataclass(frozen=True)
class Shared:
    """What all methods of a comparison share; `chosen` is the plan with `schedule=auto`."""

    step: ModelStep
    problem: Problem
    chosen: Plan | None = None

    @classmethod
    def of(
        cls,
        step: ModelStep,
        source: CostSource,
        schedule: Schedule | AutoSchedule,
        partitioners: Mapping[str, Partitioner],
    ) -> Self:
        """The problem under a schedule, or the plan with `schedule=auto`."""
        if not schedule.decides_everything:
            return cls(step, problem_of(step, source, schedule))
        (method,) = partitioners.values()
        plan = training_plan(step, source, schedule, method)
        return cls(step, plan.asked, plan)

    def plan(self, partitioner: Partitioner) -> Plan:
        return self.chosen or self.step.plan(self.problem, partitioner)


def _each_method(
    experiment: Experiment,
    shared: Shared,
    parent: ComparisonRun,
    folder: Path,
    row: Callable[[Plan, MethodRun, Comparison], ComparisonRow],
) -> Comparison:
    """Record the workload, then each method in its own run; a failing method stops no other."""
    record_workload(parent, shared.step.workload(shared.problem), folder)
    comparison = Comparison(folder, decided=shared.chosen, charts=parent.charts)
    command = {key: value for key, value in experiment.labels.items() if key == "command"}
    for name, partitioner in experiment.partitioners.items():
        try:
            with parent.method(name, experiment.config, tags={"partitioner": name} | command) as run:
                if shared.chosen is not None:
                    record_whole(run, shared.chosen, folder / run.name)
                done = row(shared.plan(partitioner), run, comparison)
            record_result(parent, done)
            comparison.rows.append(done)
        except (NetSplitError, OSError) as error:
            reason, capacity = " ".join(str(error).split()), capacities(shared.problem.cluster)
            failed = ComparisonRow(name, "failed", capacity=capacity, error=reason)
            if len(experiment.partitioners) > 1:  # of one alone, who called says it
                log.error("Failed: %s", failed.reason)
            comparison.rows.append(failed)
    record_comparison(parent, comparison)
    return comparison


def _planned(experiment: Experiment, session: Session) -> Shared:
    settings, schedule = experiment.settings, experiment.schedule
    first = next(batches(experiment.data.train, settings.batch_size, seed=settings.seed))
    step = session.step(experiment.model, experiment.loss, first, experiment.training)
    if schedule.decides_everything and settings.resume != "never":
        (name,) = experiment.partitioners
        own = settings.resume == "auto"
        checkpoint = newest(experiment.stable / name) if own else origin_checkpoint(settings.resume)
        schedule = schedule if checkpoint is None else as_saved(schedule, checkpoint)
    return Shared.of(step, session.costs, schedule, experiment.partitioners)


def as_saved(asked: AutoSchedule, checkpoint: Path) -> AutoSchedule:
    """The schedule with a checkpoint's number of micro-batches, unless the user excludes it."""
    cut, given = saved_cut(checkpoint), asked.microbatches
    if cut is None or not (
        given is None or cut.microbatches in ([given] if isinstance(given, int) else given)
    ):
        return asked
    log.info("Using %d micro-batches, as in the checkpoint's training (%s).", cut.microbatches, checkpoint)
    return replace(asked, microbatches=cut.microbatches)


def _check_metric(experiment: Experiment, step: ModelStep, size: int) -> None:
    """Try the metric on a micro-batch of the test half before training."""
    metric = experiment.metric
    if metric is not None and len(experiment.data.test):
        inputs, targets = next(batches(experiment.data.test, size, shuffle=False, drop_last=False))
        outputs = step.captures.outputs(Batch.of(inputs, known=step.known))
        metric.reset()
        update_metric(metric, outputs, targets)
        metric.reset()


def _method(
    experiment: Experiment,
    session: Session,
    shared: Shared,
    plan: Plan,
    run: MethodRun,
    comparison: Comparison,
    progress: Progress,
) -> ComparisonRow:
    settings, step = experiment.settings, shared.step
    folder = comparison.folder / run.name
    record_plan(run, plan, folder)

    def restart() -> DistributedRuntime:
        changed = replace(model.plan, asked=plan.asked, choice=plan.choice)
        return session.deploy(step, changed).runtime

    model = session.deploy(step, plan)
    progress.method(run.name, settings.epochs * _steps_per_epoch(experiment.data, settings))
    observer = ProgressRecorder(run, progress)
    stored = comparison.folder / "checkpoints"
    with opened_checkpoints(settings, experiment.stable, stored, run.name) as checkpoints:
        try:
            history = fit(
                model, experiment.data, epochs=settings.epochs, seed=settings.seed, observer=observer,
                metric=experiment.metric, accumulate=settings.accumulate, drop_last=settings.drop_last,
                checkpoints=checkpoints, restart=restart if settings.resume == "auto" else None,
            )  # fmt: skip
        finally:
            if model.adaptation is not None:
                record_decisions(run, model.adaptation.decisions, folder)
            write_last_plan(model.plan, plan, folder)
        if checkpoints is not None:
            log.info("%s: checkpoints are kept in %s.", run.name, checkpoints.folder)
    comparison.histories[run.name] = history
    try:
        record_model(run, experiment.model, model, experiment.data)
        measured, earlier = observer.measured(history), observer.first is None
        decisions = () if model.adaptation is None else model.adaptation.decisions
        return record_row(run, plan, folder, measured, earlier, decisions)
    finally:
        keep_trained(model, folder, settings)


def _steps_per_epoch(data: Data, settings: Settings) -> int:
    count, step = len(data.train), settings.accumulate * settings.batch_size
    if settings.drop_last:
        count -= count % settings.batch_size
    return math.ceil(count / step)


def _tags(experiment: Experiment, cluster: str) -> dict[str, str]:
    """Tags of a comparison and its methods in MLflow."""
    tags = {
        "model": type(experiment.model).__name__,
        "dataset": experiment.data.name,
        "cluster": cluster,
        "schedule": experiment.schedule.name,
        "methods": ", ".join(experiment.partitioners),
    }
    return tags | dict(experiment.labels)
