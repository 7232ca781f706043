"""Methods compared on devices that are not here: planned and simulated, with predicted costs.

model on the meta device ──capture──► Graph ──predicted_costs──► per method: plan ──► record ──► row

Nothing is computed and nothing is held: a model of any size is planned on any machine.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from netsplit.cluster.described import ClusterDescription
from netsplit.errors import ConfigError
from netsplit.experiment.comparison import Experiment, each_method, recorded
from netsplit.experiment.planner import Planner
from netsplit.experiment.records import Comparison, record_plan, record_row
from netsplit.graph.recording.step import capture
from netsplit.optim.optimizers import for_model
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.workload import Workload
from netsplit.profile.measure.optimizer import optimizer_alpha
from netsplit.profile.offload import offloaded
from netsplit.profile.predict import predicted_costs, unknown_in_words
from netsplit.runtime.offload.moments import check_buckets
from netsplit.runtime.share import UpdateRule
from netsplit.tracking import ComparisonRow, MethodRun, Tracker

__all__ = ["PLANNED", "forecast", "planner_of"]

log = logging.getLogger(__name__)

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


def planner_of(experiment: Experiment, description: ClusterDescription) -> Planner:
    """The model's graph with predicted costs on the described devices.

    Raises:
        CaptureError: the model cannot be captured.
        ConfigError: the devices' speeds are given relative to a profile, one does not compute in the dtype of
            `autocast`, or the batch does not divide into micro-batches.
    """
    settings = experiment.settings
    description.require_models()
    for each in description.accelerators.values():
        each.under(settings.autocast)  # refuses a dtype, before a model is captured for nothing
    size = experiment.schedule.microbatch_size(settings.batch_size)
    if size * experiment.schedule.microbatches != settings.batch_size:
        raise ConfigError(
            f"batch_size {settings.batch_size} does not divide into {experiment.schedule.microbatches} "
            "micro-batches, and costs are predicted for equal ones: choose schedule.microbatches that "
            "divides it."
        )
    model = experiment.model.to("meta")
    log.info("capturing %s at micro-batches of %d", type(model).__name__, size)
    batch = experiment.data.shapes(size)
    graph = capture(model, experiment.loss, batch, autocast=settings.autocast)
    log.info("captured %d operators, %d variables", len(graph), len(graph.variables))
    kinds = {rates.name: rates for rates in description.accelerators.values()}
    optimizer = for_model(experiment.optimizer, model, experiment.loss)
    if settings.offload in ("optimizer", "both"):
        check_buckets(optimizer)
    alpha = optimizer_alpha(optimizer) + (settings.ema_decay is not None)
    costs = replace(predicted_costs(graph, kinds, alpha), variable_copies=settings.variable_copies)
    if not description.overlap:
        costs = costs.without_overlap()
    costs = offloaded(costs, graph, settings.offload)
    workload = Workload(type(model).__name__, graph, costs)
    need_bytes = workload.need_bytes(experiment.schedule.in_flight(len(description.speeds)))
    cluster = description.cluster(workload.base_kind, need_bytes)
    rule = UpdateRule(settings.clip_norm, loss_scaling=settings.autocast == "float16")
    return Planner(
        model, graph, {}, costs, cluster, experiment.schedule, optimizer, experiment.loss, rule,
        memory=settings.memory,
    )  # fmt: skip
