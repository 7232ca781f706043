"""Methods compared on one model, data and cluster: planned, trained from the same start, recorded.

problem once ──► per method: plan ──► deploy ──► fit ──► record ──► row of the table
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy

from netsplit.cluster.described import ClusterDescription
from netsplit.data.dataset import Data
from netsplit.data.reading.loader import batches
from netsplit.data.reading.own import as_data
from netsplit.errors import ConfigError, NetSplitError
from netsplit.experiment.kept import as_decided, as_saved, keep
from netsplit.experiment.records import (
    Comparison,
    Progress,
    ProgressRecorder,
    capacities,
    record_comparison,
    record_decisions,
    record_plan,
    record_result,
    record_row,
    record_whole,
    record_workload,
    write_last_plan,
)
from netsplit.experiment.request import Request
from netsplit.experiment.session import Session
from netsplit.experiment.step import ModelStep
from netsplit.graph.batches.batch import Batch
from netsplit.optim.learning_rate import LearningRate
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.plan import Plan
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.whole_plan import WholePlan
from netsplit.profile.predict import unknown_in_words
from netsplit.program.schedules import Schedule
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.share import OptimizerFactory
from netsplit.settings import Settings
from netsplit.tables import nbytes
from netsplit.tracking import ComparisonRow, ComparisonRun, MethodRun, Tracker
from netsplit.tracking.figures import link_figure
from netsplit.training.adapt.switchable import check_adaptable
from netsplit.training.checkpoints import (
    Checkpoints,
    describe_training,
    origin_checkpoint,
    passed_over,
    stable_folder,
)
from netsplit.training.epochs import fit
from netsplit.training.metrics import Metric, accuracy, chosen_metric, update_metric
from netsplit.training.options import Training
from netsplit.training.parallel import ParallelModel, save_state

__all__ = ["Experiment", "Shared", "compare", "each_method", "experiment_of", "recorded"]

log = logging.getLogger(__name__)


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
    config: Any = None  # resolved, for the record
    labels: Mapping[str, str] = field(default_factory=dict)  # what its parts are called, by config group
    metric: Metric | None = field(default_factory=accuracy)  # on the test half

    @property
    def training(self) -> Training:
        return Training.of(self.settings, self.optimizer, self.learning_rate)


def experiment_of(request: Request, name: str, labels: Mapping[str, str]) -> Experiment:
    """What is asked for with its data, model and loss built, and a scheduler that knows how long it trains.

    On a described cluster the model holds no values.

    Raises:
        ConfigError: a part cannot be built, the model tells fewer classes apart than the data has, or the
            scheduler ends before the training.
    """
    settings = request.settings
    torch.manual_seed(settings.seed)
    data = as_data(request.dataset(), request.dataset_name, request.reading)
    for key, given in request.classes.items():
        if given < data.num_classes:
            raise ConfigError(
                f"model.{key} is {given}, but the dataset has {data.num_classes} classes: give at least "
                f"{data.num_classes}."
            )
    with torch.device("meta") if isinstance(request.cluster, ClusterDescription) else _within_memory():
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
    return Experiment(
        name, model, loss, data, request.partitioners, request.schedule, training.optimizer, settings,
        rate,
        request.config, labels, chosen_metric(request.metric, data, loss),
    )  # fmt: skip


@contextmanager
def _within_memory() -> Iterator[None]:
    """Raises ConfigError: what the model is made of needs more than there is; before it is filled."""
    free, needed = psutil.virtual_memory().available, 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal needed
        needed += 0 if parameter is None or parameter.is_meta or is_lazy(parameter) else parameter.nbytes
        if needed > free:
            raise ConfigError(
                f"the model has more than {nbytes(needed)} of parameters, and this machine {nbytes(free)} "
                "of free memory: make it smaller."
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def _check_parts(model: Any, loss: Any) -> None:
    """Raises ConfigError: a `_target_` of the user's own makes something else than is needed."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model._target_ makes {model!r}: name what makes a torch.nn.Module.")
    if not callable(loss):
        raise ConfigError(f"loss._target_ makes {loss!r}: name what makes a function of outputs and targets.")


def compare(
    experiment: Experiment, session: Session, tracker: Tracker, folder: Path, progress: Progress
) -> Comparison:
    """Plan and train with every method, from the same parameters and on the same batches.

    A method that fails keeps its row, with the reason; the others go on.

    Raises:
        CaptureError, ConfigError, WorkerError: before any method could begin.
    """
    if experiment.settings.resume not in ("never", "auto"):
        origin_checkpoint(experiment.settings.resume)
    _ = session.pool  # a cluster that does not come up leaves no run behind
    with recorded(experiment, session.spec.name, tracker) as parent:
        shared = _planned(experiment, session)
        problem = shared.problem
        _check_metric(experiment, shared.step, problem.graph.batch_size)
        source: dict[str, str] = {"profile": session.profile}
        if problem.costs.predicted and (unknown := unknown_in_words(problem.graph)):
            source["unknown_operators"] = unknown
        parent.tags(source)
        if session.link_samples:
            link_figure(session.link_samples, problem.cluster.links, folder / "links.png")
            parent.artifact(folder / "links.png")

        def row(plan: Plan, run: MethodRun, comparison: Comparison) -> ComparisonRow:
            run.tags(source)
            return _method(experiment, session, shared, plan, run, comparison, progress)

        return each_method(experiment, shared, parent, folder, row)


@contextmanager
def recorded(
    experiment: Experiment, cluster: str, tracker: Tracker, tags: Mapping[str, str] = MappingProxyType({})
) -> Iterator[ComparisonRun]:
    """The run of a comparison, with its config, data and tags."""
    every = _tags(experiment, cluster) | dict(tags)
    with tracker.comparison(experiment.name, experiment.config, tags=every) as parent:
        parent.data(experiment.data)
        yield parent


@dataclass(frozen=True)
class Shared:
    """What all methods of a comparison share.

    Args:
        chosen: the plan, where everything was decided together, and what it was chosen from.
    """

    step: ModelStep
    problem: Problem
    chosen: tuple[Plan, WholePlan] | None = None

    @property
    def whole(self) -> WholePlan | None:
        return None if self.chosen is None else self.chosen[1]

    def plan(self, partitioner: Partitioner) -> Plan:
        """A method's; raises as `ModelStep.plan`."""
        return self.step.plan(self.problem, partitioner) if self.chosen is None else self.chosen[0]


def each_method(
    experiment: Experiment,
    shared: Shared,
    parent: ComparisonRun,
    folder: Path,
    row: Callable[[Plan, MethodRun, Comparison], ComparisonRow],
) -> Comparison:
    """What all share, then a row of each in its own run, recorded; a method that fails stops no other."""
    record_workload(parent, shared.step.workload(shared.problem), folder)
    comparison = Comparison(folder, decided=shared.whole, charts=parent.charts)
    command = {key: value for key, value in experiment.labels.items() if key == "command"}
    for name, partitioner in experiment.partitioners.items():
        try:
            with parent.method(name, experiment.config, tags={"partitioner": name} | command) as run:
                if shared.whole is not None:
                    record_whole(run, shared.whole, folder / run.name)
                done = row(shared.plan(partitioner), run, comparison)
            record_result(parent, done)
            comparison.rows.append(done)
        except (NetSplitError, OSError) as error:
            reason = " ".join(str(error).split())
            log.error("%s failed: %s", name, reason)
            failed = ComparisonRow(name, "failed", capacity=capacities(shared.problem.cluster), error=reason)
            comparison.rows.append(failed)
    record_comparison(parent, comparison)
    return comparison


def _planned(experiment: Experiment, session: Session) -> Shared:
    settings, schedule = experiment.settings, experiment.schedule
    first = next(batches(experiment.data.train, settings.batch_size, seed=settings.seed))
    step = session.step(experiment.model, experiment.loss, first, experiment.training)
    if not isinstance(schedule, AutoSchedule):
        return Shared(step, session.problem(step, schedule))
    ((name, method),) = experiment.partitioners.items()
    folder = _stable(experiment) / name if settings.resume == "auto" else None
    if folder is not None:
        schedule = as_decided(schedule, folder)
    elif settings.resume != "never":
        schedule = as_saved(schedule, origin_checkpoint(settings.resume))
    plan, whole = session.plan(step, schedule, method)
    assert whole is not None, "all was decided together"
    if folder is not None:
        keep(folder, whole.schedule.microbatches)
    return Shared(step, plan.asked, (plan, whole))


def _check_metric(experiment: Experiment, step: ModelStep, size: int) -> None:
    """Before hours of training, by a micro-batch of the test half.

    Raises:
        ConfigError: the metric is not for such outputs and targets.
    """
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
        return session.deploy(step, replace(model.plan, asked=plan.asked), shared.whole).runtime

    model = session.deploy(step, plan, shared.whole)
    progress.method(run.name, settings.epochs * _steps_per_epoch(experiment.data, settings))
    observer = ProgressRecorder(run, progress)
    with _checkpoints(experiment, comparison.folder, run.name) as checkpoints:
        try:
            history = fit(
                model,
                experiment.data,
                epochs=settings.epochs,
                seed=settings.seed,
                observer=observer,
                metric=experiment.metric,
                accumulate=settings.accumulate,
                drop_last=settings.drop_last,
                checkpoints=checkpoints,
                restart=restart if settings.resume == "auto" else None,
            )
        finally:
            if model.adaptation is not None:
                record_decisions(run, model.adaptation.decisions, folder)
            write_last_plan(model.plan, plan, folder)
        if checkpoints is not None:
            log.info("%s: %s", run.name, checkpoints.told)
    comparison.histories[run.name] = history
    try:
        if run.models.log:
            run.model(_trained(experiment, model), _examples(experiment.data))
        measured, earlier = observer.measured(history), observer.first is None
        decisions = () if model.adaptation is None else model.adaptation.decisions
        return record_row(run, plan, folder, measured, earlier, decisions)
    finally:
        _keep_trained(model, run, folder, settings)


def _keep_trained(model: ParallelModel, run: MethodRun, folder: Path, settings: Settings) -> None:
    """The plain model's parameters, and averages of them, as files for `torch.load`; says how large."""
    where = settings.checkpoint.trained
    if where == "none":
        return
    paths = [folder / "checkpoint.pt"]
    model.save(paths[0])
    if settings.ema_decay is not None:
        paths.append(folder / "averages.pt")
        save_state(model.ema_state_dict(), paths[1])
    size = sum(path.stat().st_size for path in paths)
    for path in paths if where != "folder" else ():
        run.artifact(path)
        if where == "mlflow":
            path.unlink()
    log.debug(
        "%s: trained parameters, %s%s, are kept in %s",
        run.name, nbytes(size), " each" * (where == "both"),
        {"folder": folder, "mlflow": "mlflow", "both": f"{folder} and mlflow"}[where],
    )  # fmt: skip


def _trained(experiment: Experiment, model: ParallelModel) -> nn.Module:
    """The plain model with what was trained."""
    plain = copy.deepcopy(experiment.model)
    plain.load_state_dict(model.state_dict())
    return plain.eval()


def _examples(data: Data) -> Tensor:
    """Inputs of the first samples of the test data: two, as exporting takes one for a constant."""
    half = data.test if len(data.test) else data.train
    inputs: Tensor = next(batches(half, 2, shuffle=False, drop_last=False))[0]
    return inputs


def _steps_per_epoch(data: Data, settings: Settings) -> int:
    count, step = len(data.train), settings.accumulate * settings.batch_size
    if settings.drop_last:
        count -= count % settings.batch_size
    return math.ceil(count / step)


def _checkpoints(
    experiment: Experiment, folder: Path, method: str
) -> AbstractContextManager[Checkpoints | None]:
    """The method's own folder of checkpoints, opened; nothing where none is to be saved or read."""
    settings, resume = experiment.settings.checkpoint, experiment.settings.resume
    every_epochs = 1 if settings.never and resume == "auto" else settings.every_epochs
    if settings.never and resume == "never":
        return nullcontext()
    place = _stable(experiment) if resume == "auto" or settings.folder is not None else folder / "checkpoints"
    if settings.folder is None and resume == "auto":
        if (reason := passed_over(place, method, experiment.config)) is not None:
            log.warning("%s: resume=auto starts from the beginning: %s", method, reason)
        describe_training(place, experiment.config)
    return Checkpoints(
        place / method,
        every_epochs=every_epochs,
        every_iterations=settings.every_iterations,
        keep=settings.keep,
        resume=resume == "auto",
        origin=None if resume in ("never", "auto") else origin_checkpoint(resume),
    )


def _stable(experiment: Experiment) -> Path:
    """Where the checkpoints of this training are, whenever it runs."""
    given = experiment.settings.checkpoint.folder
    name = f"{type(experiment.model).__name__}-{experiment.data.name}"
    return Path(given) if given is not None else stable_folder(experiment.config, name)


def _tags(experiment: Experiment, cluster: str) -> dict[str, str]:
    """What MLflow shows a comparison and its methods by."""
    tags = {
        "model": type(experiment.model).__name__,
        "dataset": experiment.data.name,
        "cluster": cluster,
        "schedule": experiment.schedule.name,
        "methods": ", ".join(experiment.partitioners),
    }
    return tags | dict(experiment.labels)
