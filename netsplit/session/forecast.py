"""Methods compared on devices that are not here: planned and simulated, with predicted costs.

model on the meta device ──capture──► Graph ──predicted_costs──► per method: plan ──► record ──► row

Nothing is computed and nothing is held: a model of any size is planned on any machine.
"""

from __future__ import annotations

from pathlib import Path

from netsplit.cluster.described import ClusterDescription
from netsplit.planning.plan import Plan
from netsplit.profile.predict import unknown_in_words
from netsplit.session.comparison import Experiment, Shared, each_method, recorded
from netsplit.session.decision import problem_of, training_plan
from netsplit.session.predicted_costs import PredictedCosts
from netsplit.session.step import ModelStep
from netsplit.tracking import ComparisonRow, MethodRun, Tracker
from netsplit.tracking.records import Comparison, record_plan, record_row

__all__ = ["PLANNED", "described", "forecast"]

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
    shared = described(experiment, description)
    unknown = unknown_in_words(shared.problem.graph)
    planned = PLANNED | ({"unknown_operators": unknown} if unknown else {})

    def row(plan: Plan, run: MethodRun, comparison: Comparison) -> ComparisonRow:
        run.tags(planned)
        record_plan(run, plan, folder / run.name)
        return record_row(run, plan, folder / run.name)

    with recorded(experiment, description.name, tracker, planned) as parent:
        return each_method(experiment, shared, parent, folder, row)


def described(experiment: Experiment, description: ClusterDescription) -> Shared:
    """An experiment's step on described devices, with predicted costs; its whole plan, where that is open.

    Raises:
        CaptureError: the model cannot be captured.
        ConfigError: the devices' speeds are given relative to a profile, one does not compute in the dtype of
            `autocast`, or the batch does not divide into micro-batches.
        InfeasibleError: nothing fits, where the schedule is open.
    """
    source = PredictedCosts.for_cluster(description, experiment.settings.autocast)
    batch = experiment.data.shapes(experiment.settings.batch_size)
    step = ModelStep(experiment.model, experiment.loss, batch, experiment.training)
    schedule = experiment.schedule
    if not schedule.decides_everything:
        return Shared(step, problem_of(step, source, schedule))
    (method,) = experiment.partitioners.values()
    chosen = training_plan(step, source, schedule, method)
    return Shared(step, chosen[0].asked, chosen)
