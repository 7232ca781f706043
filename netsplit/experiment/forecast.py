"""Methods compared on devices that are not here: planned and simulated, with predicted costs.

model on the meta device ──capture──► Graph ──predicted_costs──► per method: plan ──► record ──► row

Nothing is computed and nothing is held: a model of any size is planned on any machine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from netsplit.cluster.described import ClusterDescription
from netsplit.errors import ConfigError
from netsplit.experiment.comparison import Experiment, each_method, recorded
from netsplit.experiment.planner import Planner
from netsplit.experiment.records import Comparison, record_plan, record_row
from netsplit.graph.recording.step import capture
from netsplit.optim.optimizers import for_model
from netsplit.partition import Auto
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.whole_plan import decide_whole
from netsplit.planning.workload import Workload
from netsplit.profile.measure.optimizer import optimizer_alpha
from netsplit.profile.offload import offloaded
from netsplit.profile.predict import predicted_costs, unknown_in_words
from netsplit.program.schedules import GPipe
from netsplit.runtime.offload.moments import check_buckets
from netsplit.runtime.share import UpdateRule
from netsplit.tracking import ComparisonRow, MethodRun, Tracker

__all__ = ["PLANNED", "decided_planner", "forecast", "planner_of"]

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
    settings, (method,) = experiment.settings, experiment.partitioners.values()
    planners: dict[int, Planner] = {}
    problems: dict[int, Problem] = {}

    def problem_of(m: int) -> Problem:
        if m not in planners:
            planners[m] = planner_of(replace(experiment, schedule=GPipe(m)), description)
            problems[m] = planners[m].problem(settings.seed)
        return problems[m]

    size = settings.batch_size
    counts = [m for m in open_.counts(size, len(description.speeds)) if size % m == 0]
    if not counts:
        raise ConfigError(
            f"batch_size {size} does not divide into {open_.microbatches} micro-batches, and costs are "
            "predicted for equal ones: choose schedule.microbatches that divides it."
        )
    chosen = None if isinstance(method, Auto) else method
    whole = decide_whole(problem_of, counts, size, open_, method=chosen, improved=improved)
    return replace(planners[whole.schedule.microbatches], schedule=whole.schedule, decided=whole)


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
    assert not isinstance(experiment.schedule, AutoSchedule), "which `decided_planner` takes"
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
