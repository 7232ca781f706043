"""From a training step and its costs to a problem under a schedule, or to a plan.

ModelStep + CostSource ──problem_of──► Problem       under a given schedule
                          └─WholeDecision──► Plan    with schedule=auto
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from netsplit.errors import ConfigError, InfeasibleError, NetSplitError
from netsplit.graph.checks.replicated import statistics_notes
from netsplit.graph.ir import Graph
from netsplit.interrupts import interrupts_held
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.decide import decide_scheduled, decide_whole, require_room, verified
from netsplit.planning.plan import Plan
from netsplit.planning.uniform import ORDERS
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.profile.costs import Offload
from netsplit.profile.measure.optimizer import check_element_wise
from netsplit.program.schedules import Schedule
from netsplit.runtime.offload import check_buckets
from netsplit.session.calibration import MeasuredParts
from netsplit.session.costs import CostSource, PredictedCosts
from netsplit.session.sizes import BatchCuts, StepSizes
from netsplit.session.step import ModelStep
from netsplit.session.uniform import FEW, faster_of, uniform_plan
from netsplit.training.adapt.switchable import changeable

__all__ = ["WholeDecision", "plan_ahead", "problem_of", "training_plan"]

log = logging.getLogger(__name__)

_LOOKED_AT = 2**29  # bytes of a step's tensors, above which plans skip extra checks
_UNEQUAL = "the batch does not divide into equal micro-batches, which predicted costs need"


def problem_of(
    step: ModelStep,
    source: CostSource,
    schedule: Schedule,
    chosen: Problem | None = None,
) -> Problem:
    """Capture a step, and measure or predict its operators on each device kind.

    For training here, the capture is checked, and differences between micro-batches and batch are logged.

    Args:
        chosen: the problem that `WholeDecision` chose, whose batch was compared and costs are known.

    Raises:
        CaptureError: the model cannot be captured, or would train something else.
        ConfigError: the batch cannot be cut, or `on_nonfinite` does not go with the schedule.
        NetSplitError: the model has other operators on a smaller last micro-batch.
    """
    stages, asked, samples = step.stages, step.training, step.whole.samples
    size = schedule.microbatch_size(samples)
    check = source.is_local and asked.check
    if asked.on_nonfinite == "skip" and source.is_local and schedule.update_every is not None:
        raise ConfigError(
            f"on_nonfinite is skip, but under {schedule.name} devices step before the batch's loss is "
            "known: give stop or warn, or choose another schedule."
        )
    if not source.is_local and size * schedule.microbatches != samples:
        raise _uneven(samples, schedule.microbatches)
    schedule = schedule.for_batch(samples)
    stages.stage("capture")
    log.info("Capturing %s in micro-batches of %d samples.", step.name, size)
    example = step.example(size)
    if source.is_local:
        step.warn_of_values(example)
    graph = step.graph(example, check, level=logging.INFO)
    stages.note(f"{len(graph):,} operators")
    rest = step.whole.rows(samples - samples % size, samples)
    tail = step.graph(rest.own(), check) if rest.samples else None
    if check and chosen is None and size < samples:
        with interrupts_held():
            cutting = BatchCuts(step, named=True)
            cutting.at_size(graph, cutting.allowed(graph, [schedule.microbatches]))
        for line in (*cutting.notes_for(schedule.microbatches), *statistics_notes(graph)):
            log.warning("%s", line)
    if source.is_local:
        step.weights(graph, measured=not source.predicted)
    if Offload.of(asked.offload).optimizer:
        check_buckets(step.optimizer)
    in_flight = schedule.in_flight(source.count)
    if chosen is not None:
        cluster = chosen.cluster
        meter = chosen.meter if isinstance(chosen.meter, MeasuredParts) else None
        costs = chosen.costs if meter is None else meter.whole
    else:
        task = step.task(graph, in_flight)
        costs = step.complete(source.of(task), graph)
        cluster, meter = source.cluster(graph, costs, in_flight), source.meter(task, costs)
    return step.problem(graph, costs, cluster, schedule, tail, meter)


def training_plan(
    step: ModelStep,
    source: CostSource,
    order: Schedule | AutoSchedule,
    method: Partitioner,
    told: bool = True,
) -> Plan:
    """The plan to train with, logged if `told`; raises as `problem_of` and `ModelStep.plan`."""
    if not order.decides_everything:
        return step.plan(problem_of(step, source, order), method)
    decided, problem = WholeDecision(step, source, order, method).decide()
    if source.is_local:
        problem = problem_of(step, source, decided.schedule, problem)
    else:
        problem = step.problem(problem.graph, problem.costs, problem.cluster, decided.schedule)
    plan = replace(verified(problem, decided.placement, decided.seconds), choice=decided.choice)
    for line in plan.lines if told else ():
        log.log(logging.WARNING if line in plan.choice.remarks else logging.INFO, "%s", line)
    check_element_wise(step.optimizer, plan.problem.graph)
    return plan


def plan_ahead(
    step: ModelStep,
    source: CostSource,
    order: Schedule | AutoSchedule,
    method: Partitioner,
) -> Plan:
    """The plan without training; raises as `training_plan`."""
    if order.decides_everything:
        alike = isinstance(source, PredictedCosts) and source.host and method.tries_others
        alike = alike and (order.schedules is None or not {*ORDERS}.isdisjoint(order.schedules))
        beside = isinstance(source, PredictedCosts) and (order.splits or source.nccl) and source.count > 1
        if not (alike and (source.count > FEW or beside)):
            return WholeDecision(step, source, order, method).decide()[0]
        assert isinstance(source, PredictedCosts)
        uniform = uniform_plan(step, source, order)
        if source.count > FEW:
            return uniform
        return faster_of(uniform, WholeDecision(step, source, order, method).decide()[0])
    problem = problem_of(step, source, order)
    graph, cutting = problem.graph, BatchCuts(step, named=True)
    counts = cutting.allowed(graph, [order.microbatches])
    if _is_quick(graph):
        cutting.at_size(graph, counts)
    else:
        cutting.not_at_size()
    step.stages.stage(f"plan by {method.name}", method.time_limit_s, "s")
    problem = replace(problem, improved=step.stages.improved)
    return decide_scheduled(problem, method, step.whole.samples, cutting.notes_for(order.microbatches))


@dataclass
class WholeDecision:
    """The choice of a step's whole plan with `schedule=auto`.

    Operators are measured at two micro-batch sizes, whole micro-batches at all sizes (see `StepSizes`).

    Args:
        method: the one that makes placements; None or `auto`: any.
    """

    step: ModelStep
    source: CostSource
    auto: AutoSchedule
    method: Partitioner | None = None
    cutting: BatchCuts = field(init=False)
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.method = None if self.method is None or self.method.tries_others else self.method
        self.cutting = BatchCuts(self.step, self.auto.microbatches is not None)

    @property
    def compared(self) -> bool:
        """Whether micro-batches are compared with the batch."""
        return not self.source.is_local or self.step.training.check

    def decide(self) -> tuple[Plan, Problem]:
        """The whole plan and its problem; if nothing fits, it tries more micro-batches."""
        first = self._sizes(self._counts())
        if self.source.is_local and self.step.training.looks is not None and self.method is None:
            self.auto, self.remarks = changeable(self.auto, first.graph(first.counts[0]))
        samples = self.step.whole.samples
        try:
            return self._decide_at(first)
        except InfeasibleError as refused:
            further = self.auto.further_counts(samples, first.counts) if max(first.counts) > 1 else ()
            if not further:
                raise
            log.info("No plan fits yet: trying more micro-batches (%s).", ", ".join(map(str, further)))
            try:
                return self._decide_at(self._sizes(further))
            except InfeasibleError:
                raise
            except NetSplitError:
                raise refused from None

    def _counts(self) -> Sequence[int]:
        samples = self.step.whole.samples
        if self.source.is_local:
            return self.auto.counts(samples, self.source.count)
        counts = self.auto.counts(samples, self.source.count, equal=True)
        equal = [m for m in counts if samples % m == 0]
        if not equal:
            raise _uneven(samples, self.auto.microbatches)
        return equal

    def _sizes(self, counts: Sequence[int]) -> StepSizes:
        samples, why = self.step.whole.samples, "" if self.source.is_local else _UNEQUAL
        left_out = list(self.auto.not_as_given(samples, counts, why))
        cutting = self.cutting if self.compared else None
        sizes = StepSizes(self.step, self.source, counts, cutting, left_out)
        self.step.stages.stage(f"capture at {len(counts)} micro-batch sizes")
        log.info("Capturing %s at %d micro-batch sizes.", self.step.name, len(counts))
        sizes.take()
        if Offload.of(self.step.training.offload).optimizer:
            check_buckets(self.step.optimizer)
        return sizes

    def _decide_at(self, sizes: StepSizes) -> tuple[Plan, Problem]:
        source, cutting, auto = self.source, self.cutting, self.auto
        samples = self.step.whole.samples
        if source.is_local:
            require_room(sizes.by_bytes, sizes.counts, auto)
        sizes.cost()
        left_out = sizes.left_out if cutting.named else ()
        least = sizes.graphs[min(sizes.graphs)]

        def decide(counts: Sequence[int]) -> Plan:
            self.step.stages.stage("whole plan", auto.time_limit_s, "s")
            return decide_whole(
                sizes.problem,
                counts,
                samples,
                auto,
                method=self.method,
                improved=self.step.stages.improved,
                remarks=lambda m: (*left_out, *self.remarks, *cutting.notes_for(m)),
            )

        at_size = source.is_local or _is_quick(least)  # comparing takes two forwards of the batch
        if self.compared and not at_size:
            cutting.not_at_size()
        plan, differed = decide(sizes.counts), cutting.differs
        if self.compared and at_size:
            if plan.schedule.microbatches not in cutting.at_size(plan.problem.graph, sizes.counts):
                plan = decide([1])
            elif cutting.differs != differed:
                remarks = cutting.differs, *plan.choice.remarks
                plan = replace(plan, choice=replace(plan.choice, remarks=remarks))
        return plan, sizes.problem(plan.schedule.microbatches)


def _is_quick(graph: Graph) -> bool:
    parameters = sum(initializer.nbytes for initializer in graph.initializers.values())
    return parameters + sum(v.nbytes for v in graph.variables.values()) <= _LOOKED_AT


def _uneven(samples: int, microbatches: object) -> ConfigError:
    return ConfigError(
        f"batch_size {samples} does not divide into {microbatches} equal micro-batches, which predicted "
        "costs need: choose schedule.microbatches that divides it."
    )
