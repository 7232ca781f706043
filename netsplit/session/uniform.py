"""Uniform plans of a step on described devices, data x tensor x pipeline, predicted by folding.

ModelStep + CostSource + Parallelism + Schedule ──capture, one rank──► FoldedPlan ──► WholePlan
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from netsplit.errors import ConfigError
from netsplit.graph.ir import Graph
from netsplit.partition.methods.mesh import layer_runs
from netsplit.placement.parallelism import Parallelism
from netsplit.placement.placement import Placement
from netsplit.planning.folding import FoldedPlan, rank_graph
from netsplit.planning.plan import Plan
from netsplit.planning.whole.frontier import FrontierRow
from netsplit.planning.whole.whole_plan import WholePlan
from netsplit.profile.costs import Costs
from netsplit.program.schedules import Schedule
from netsplit.session.predicted_costs import PredictedCosts
from netsplit.session.step import ModelStep
from netsplit.tables import nbytes

__all__ = ["UniformPlans", "plan_given"]

log = logging.getLogger(__name__)


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
        if samples % microbatches or microbatches % given.data:
            raise ConfigError(
                f"a batch of {samples} samples in {microbatches} micro-batches for data {given.data}: give "
                "micro-batches that divide the batch, and that data divides."
            )
        size = samples // microbatches
        if size not in self.graphs:
            self.step.stages.stage(f"capture {size} samples")
            self.graphs[size] = self.step.graph(self.step.example(size))
        graph = self.graphs[size]
        own, costs = self._of_rank(size, given.tensor, given.sequence)
        cluster = self.source.cluster(graph, costs, 1)
        return FoldedPlan(self._layers(size, given.pipeline * given.chunks), own, costs, cluster, given)

    def _of_rank(self, size: int, tensor: int, sequence: bool) -> tuple[Graph, Costs]:
        """The graph of one rank, with its costs."""
        graph = self.graphs[size]
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
        order = replace(schedule.with_microbatches(schedule.microbatches // given.data), shard=given.shard)
        problem = self.step.problem(folded.graph, folded.priced, folded.folded, order)
        scored = problem.the_simulator.scored(folded.placement)
        seconds = time.perf_counter() - began
        placement: Placement = scored.placement
        return Plan(
            problem, problem, placement, seconds, scored.iteration_s, None, scored.program, scored.timeline
        )


def plan_given(step: ModelStep, source: PredictedCosts, schedule: Schedule, given: Parallelism) -> WholePlan:
    """A uniform plan under a schedule, whose micro-batches are those of all replicas together.

    Whether it fits is said in a remark. Raises as `UniformPlans.folded`, or CaptureError.
    """
    if given.recompute != "none":
        schedule = schedule.recomputing("auto")
    plans = UniformPlans(step, source)
    step.stages.stage("simulate one rank of each stage")
    plan = plans.plan(given, schedule)
    return told(plan, given, schedule, step.whole.samples, ())


def told(
    plan: Plan, given: Parallelism, schedule: Schedule, samples: int, rows: tuple[FrontierRow, ...]
) -> WholePlan:
    """A simulated plan as a whole plan; `rows`: of others."""
    peaks = plan.simulated[1].peak_bytes
    most = max(peaks, key=lambda name: peaks[name])
    room = plan.problem.cluster.device(most).capacity_bytes
    notes = [f"each device below stands for {given.devices // given.pipeline} that do the same"]
    fits = peaks[most] <= room
    if not fits:
        notes.append(f"does not fit: {most} has {nbytes(room)} and lacks {nbytes(peaks[most] - room)}")
    row = FrontierRow(
        "mesh", str(given), schedule.name, schedule.microbatches, given.devices,
        samples / plan.iteration_s if fits else None, peaks[most], "", 0, given.recompute != "none",
        "" if given.shard == "none" else given.shard,
    )  # fmt: skip
    return WholePlan(
        plan, samples, 0.0, given.tensor > 1, (row, *rows), (), tuple(notes), plan.seconds, 1,
        parallelism=given,
    )  # fmt: skip
