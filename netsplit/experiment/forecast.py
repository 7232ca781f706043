"""Methods compared on devices that are not here: planned and simulated, with predicted costs.

model on the meta device ──capture──► Graph ──predicted_costs──► per method: plan ──► record ──► row

Nothing is computed and nothing is held: a model of any size is planned on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from netsplit.cluster.described import ClusterDescription
from netsplit.experiment.comparison import Experiment, each_method, recorded
from netsplit.experiment.planner import Planner
from netsplit.experiment.records import Comparison, record_plan, record_row
from netsplit.experiment.whole.devices import Devices
from netsplit.experiment.whole.foreseen import Foreseen
from netsplit.graph.batches.batch import Batch
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.profile.predict import unknown_in_words
from netsplit.tracking import ComparisonRow, MethodRun, Tracker

__all__ = ["PLANNED", "decided_planner", "forecast", "planner_of"]

PLANNED = {"mode": "planned"}
"""Tag of runs in which nothing was trained."""


def forecast(
    experiment: Experiment, description: ClusterDescription, tracker: Tracker, folder: Path
) -> Comparison:
    """Plan with every method, and predict an iteration of each; `settings.epochs` counts for nothing.

    A method that fails keeps its row, with the reason; the others go on.

    Raises:
        CaptureError, ConfigError: before any method could begin.
    """
    schedule = experiment.schedule
    if isinstance(schedule, AutoSchedule):
        planner = decided_planner(experiment, description, schedule)
    else:
        planner = planner_of(experiment, description)
    unknown = unknown_in_words(planner.graph)
    planned = PLANNED | ({"unknown_operators": unknown} if unknown else {})

    def row(partitioner: Partitioner, run: MethodRun, comparison: Comparison) -> ComparisonRow:
        run.tags(planned)
        plan = planner.plan(partitioner, experiment.settings.seed)
        record_plan(run, plan, folder / run.name)
        return record_row(run, plan, folder / run.name)

    with recorded(experiment, description.name, tracker, planned) as parent:
        return each_method(experiment, planner, parent, folder, row)


def decided_planner(
    experiment: Experiment,
    description: ClusterDescription,
    open_: AutoSchedule,
    improved: Callable[[float, str], object] | None = None,
) -> Planner:
    """The planner of the whole plan, under the schedule and the micro-batches that were decided.

    Args:
        experiment: with one method; `auto` is the best of all.
        improved: told seconds and origin of a better plan.

    Raises:
        InfeasibleError: nothing fits.
        CaptureError, ConfigError: as for `planner_of`.
    """
    (method,) = experiment.partitioners.values()
    return _foreseen(experiment, description).decided(open_, method, experiment.settings.seed, improved)


def planner_of(experiment: Experiment, description: ClusterDescription) -> Planner:
    """The model's graph with predicted costs on the described devices.

    Raises:
        CaptureError: the model cannot be captured.
        ConfigError: the devices' speeds are given relative to a profile, one does not compute in the dtype of
            `autocast`, or the batch does not divide into micro-batches.
    """
    assert not isinstance(experiment.schedule, AutoSchedule), "which `decided_planner` takes"
    return _foreseen(experiment, description).planner(experiment.schedule)


def _foreseen(experiment: Experiment, description: ClusterDescription) -> Foreseen:
    settings = experiment.settings
    devices = Devices.described(description, settings.autocast)
    return Foreseen(
        experiment.model,
        experiment.loss,
        Batch.of(*experiment.data.shapes(settings.batch_size)),
        devices,
        experiment.optimizer,
        settings.clip_norm,
        settings.autocast,
        settings.ema_decay,
        settings.offload,
        settings.variable_copies,
        settings.memory,
    )
