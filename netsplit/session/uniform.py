"""Uniform plans of a step on described devices, data x tensor x pipeline, predicted by folding.

ModelStep + CostSource + Parallelism + Schedule ──capture, one rank──► FoldedPlan ──► Plan
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from netsplit.errors import ConfigError
from netsplit.graph.checks.replicated import why_unreplicable
from netsplit.graph.ir import Graph
from netsplit.partition.methods.mesh import layer_runs
from netsplit.placement.parallelism import Parallelism
from netsplit.placement.placement import Placement
from netsplit.planning.folding import FoldedPlan, rank_graph, uneven_products
from netsplit.planning.plan import Plan
from netsplit.planning.uniform import UniformSearch, UniformTried
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.frontier import FrontierRow, PlanChoice, why_not
from netsplit.planning.whole.judge import Tried, tried_as
from netsplit.profile.costs import Costs
from netsplit.program.schedules import Schedule
from netsplit.session.costs import PredictedCosts
from netsplit.session.sizes import BatchCuts
from netsplit.session.step import ModelStep
from netsplit.tables import counted, nbytes

__all__ = ["FEW", "UniformPlans", "faster_of", "plan_given", "uniform_plan"]

FEW = 16  # devices that are alike: of more, uniform plans alone are looked at
_TWICE = 2.0
_SHOWN = 6  # plans of other degrees, with the chosen one


class UniformPlans:
    """Makes uniform plans of one step; what they have in common is made once.

    Args:
        step: whose batch every plan computes.
        source: of what a rank's operators cost.
    """

    def __init__(self, step: ModelStep, source: PredictedCosts) -> None:
        self.step, self.source = step, source
        self.graphs: dict[int, Graph] = {}  # by samples of a micro-batch
        self.costs: dict[tuple[int, int, bool], Costs] = {}  # and by tensor and sequence
        self.layers: dict[tuple[int, int], Mapping[str, int]] = {}  # by samples and stages

    def folded(self, given: Parallelism, microbatches: int) -> FoldedPlan:
        """The plan with so many micro-batches in all, not simulated yet.

        Raises:
            ConfigError: the batch does not divide into these, or these among replicas; or as `FoldedPlan`.
            RewriteError: products cannot be cut in so many parts.
        """
        samples = self.step.whole.samples
        if given.devices > self.source.count:
            raise ConfigError(
                f"{given} takes {given.devices} devices, but the cluster has {self.source.count}: give "
                "smaller degrees."
            )
        if samples % microbatches:
            raise ConfigError(
                f"{microbatches} micro-batches do not divide a batch of {samples} samples: give a "
                "number that does."
            )
        if microbatches % given.data:
            raise ConfigError(
                f"{microbatches} micro-batches cannot be dealt out evenly to {given.data} replicas: give a "
                f"multiple of {given.data}."
            )
        size = samples // microbatches
        graph = self.graph(size)
        own, costs = self._of_rank(size, given.tensor, given.sequence)
        cluster = self.source.cluster(graph, costs, 1)
        return FoldedPlan(self._layers(size, given.pipeline * given.chunks), own, costs, cluster, given)

    def remarks(self, given: Parallelism, microbatches: int) -> tuple[str, ...]:
        """What is uneven in a plan that was made."""
        graph = self.graph(self.step.whole.samples // microbatches)
        own = rank_graph(graph, given.tensor, given.sequence)
        return tuple(uneven_products(graph, own, given.tensor)) if given.tensor > 1 else ()

    def graph(self, size: int) -> Graph:
        """The captured graph of a micro-batch of so many samples."""
        if size not in self.graphs:
            self.step.stages.stage(f"capture {counted(size, 'sample')}")
            self.graphs[size] = self.step.graph(self.step.example(size))
        return self.graphs[size]

    def _of_rank(self, size: int, tensor: int, sequence: bool) -> tuple[Graph, Costs]:
        """The graph of one rank, with its costs."""
        graph = self.graph(size)
        own, key = rank_graph(graph, tensor, sequence), (size, tensor, sequence)
        if key not in self.costs:
            task = replace(self.step.task(graph, 1, own=False), graph=replace(own, output_spec=None))
            self.costs[key] = self.step.complete(self.source.of(task), own)
        return own, self.costs[key]

    def _layers(self, size: int, count: int) -> Mapping[str, int]:
        """The stages that `mesh` cuts the model into."""
        if (size, count) not in self.layers:
            graph, costs = self._of_rank(size, 1, False)
            (known,) = (costs.devices[kind] for kind in [*costs.devices][:1])
            seconds = {name: known.nodes[name].total_s for name in graph.nodes}
            self.layers[size, count] = layer_runs(graph, seconds, count)[0]
        return self.layers[size, count]

    def plan(self, given: Parallelism, schedule: Schedule) -> Plan:
        """The plan, simulated; of the first rank of each stage."""
        began = time.perf_counter()
        folded = self.folded(given, schedule.microbatches)
        order = folded.of_rank(schedule)
        problem = self.step.problem(folded.graph, folded.priced, folded.folded, order)
        scored = problem.the_simulator.scored(folded.placement)
        seconds = time.perf_counter() - began
        placement: Placement = scored.placement
        return Plan(
            problem, problem, placement, seconds, scored.iteration_s, None, scored.program, scored.timeline
        )


def plan_given(step: ModelStep, source: PredictedCosts, schedule: Schedule, given: Parallelism) -> Plan:
    """A uniform plan under a schedule, whose micro-batches are those of all replicas together.

    Whether it fits is said in a remark. Raises as `UniformPlans.folded`, or CaptureError;
    ConfigError where the schedule has slices or recomputation of its own.
    """
    for name, own in (
        ("shard", schedule.shard != "none"),
        ("recompute", schedule.recompute not in (False, "auto")),
    ):
        if own:
            raise ConfigError(
                f"schedule.{name} is set beside given: leave it out, and give Parallelism({name}=...)."
            )
    step.stages.stage("simulate one rank of each stage")
    plans = UniformPlans(step, source)
    plan = plans.plan(given, schedule)
    room = plan.problem.cluster.devices[0].capacity_bytes
    tried = UniformTried(given, schedule, plan, max(plan.simulated[1].peak_bytes.values()) - room)
    lacks = f"does not fit: a device lacks {nbytes(tried.missing_bytes)}"
    notes = (*plans.remarks(given, schedule.microbatches), *[lacks] * (tried.missing_bytes > 0))
    return _beside_others(tried, [tried], step.whole.samples, plan.seconds, notes)


def uniform_plan(step: ModelStep, source: PredictedCosts, auto: AutoSchedule) -> Plan:
    """The fastest uniform plan of all devices that fits.

    Raises:
        InfeasibleError: none fits; the message says what the nearest lacks.
        NetSplitError: the model cannot be planned so, or captured.
    """
    began = time.perf_counter()
    plans, samples = UniformPlans(step, source), step.whole.samples
    graph = plans.graph(1)
    cutting = BatchCuts(step, auto.microbatches is not None)
    whole = "" if samples in cutting.allowed(graph, [1, samples]) else "its batch is kept whole"
    refused = auto.no_replicas if not auto.replicas else why_unreplicable(graph, graph.nodes) or ""
    step.stages.stage("uniform plans", auto.time_limit_s, "s")
    limit_s = auto.time_limit_s
    host = source.host if auto.splits or source.count > FEW else 1  # else products are whole
    search = UniformSearch(plans, samples, source.count, host, auto, limit_s, whole, refused)
    best = search.run()
    count = best.schedule.microbatches
    notes = (*cutting.notes_for(count), *plans.remarks(best.given, count))
    return _beside_others(best, search.tried, samples, time.perf_counter() - began, notes)


def faster_of(uniform: Plan, other: Plan) -> Plan:
    """The faster of a uniform plan and the best of other kinds, with the plans beside either."""
    best, worse = sorted((uniform, other), key=lambda each: each.iteration_s)
    rows = worse.choice.frontier
    first = replace(rows[0], why_not=_behind(worse.iteration_s / best.iteration_s))
    rows = (*best.choice.frontier, first, *(each for each in rows[1:] if each.samples_per_s is None))
    tried = uniform.choice.tried + other.choice.tried
    choice = replace(best.choice, frontier=rows, tried=tried)
    return replace(best, choice=choice, seconds=uniform.seconds + other.seconds)


def _beside_others(
    best: UniformTried, tried: Sequence[UniformTried], samples: int, seconds: float, notes: Sequence[str]
) -> Plan:
    """A simulated plan beside the best others of other degrees."""
    shown: dict[tuple[int, int], UniformTried] = {(best.given.tensor, best.given.pipeline): best}
    for each in sorted(tried, key=lambda each: (max(each.missing_bytes, 0), each.iteration_s)):
        shown.setdefault((each.given.tensor, each.given.pipeline), each)
    given = best.given
    rows = tuple(_row(each, best, samples) for each in [*shown.values()][:_SHOWN])
    choice = PlanChoice(
        rows,
        remarks=tuple(notes),
        splits=given.tensor > 1,
        tried=len(tried),
        batch_size=samples,
        parallelism=given,
    )
    return replace(best.plan, choice=choice, seconds=seconds)


def _row(each: UniformTried, best: UniformTried, samples: int) -> FrontierRow:
    given, why = each.given, ""
    if each.missing_bytes > 0:
        why = f"does not fit: a device lacks {nbytes(each.missing_bytes)}"
    elif each is not best:
        why = why_not(_as_tried(each), _as_tried(best))
    return FrontierRow(
        "mesh", str(given), each.schedule.name, each.schedule.microbatches, given.devices,
        samples / each.iteration_s if each.missing_bytes <= 0 else None,
        max(each.plan.simulated[1].peak_bytes.values()), why,
    )  # fmt: skip


def _as_tried(each: UniformTried) -> Tried:
    plan, order = each.plan, each.schedule
    return tried_as("mesh", "", order, plan.placement, plan.simulated[1], plan.problem.cluster)


def _behind(times: float) -> str:
    return (
        f"takes {100 * (times - 1):.1f} % longer" if times < _TWICE else f"takes {times:,.1f} times as long"
    )
