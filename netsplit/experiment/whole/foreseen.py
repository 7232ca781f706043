"""A training step on devices that need not be here, with predicted costs: no worker is started.

model, loss, batch ──capture──► Graph ──predicted_costs──► Planner, at any size of micro-batches
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import nn

from netsplit.errors import CaptureError, ConfigError
from netsplit.experiment.planner import Planner
from netsplit.experiment.whole.cutting import BatchCuts
from netsplit.experiment.whole.devices import Devices
from netsplit.experiment.whole.sizes import Sizes, or_with_further
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss
from netsplit.graph.checks.check import check_capture
from netsplit.graph.ir import Graph
from netsplit.graph.recording.step import capture
from netsplit.optim.optimizers import ForModel, for_model
from netsplit.partition import Auto
from netsplit.partition.base import MemoryRule
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.one_schedule import plan_under
from netsplit.planning.whole.whole_plan import WholePlan, decide_whole
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs, OptimizerScratch
from netsplit.profile.measure.optimizer import optimizer_alpha
from netsplit.profile.measure.step_scratch import optimizer_scratch
from netsplit.profile.offload import offloaded
from netsplit.profile.predict import predicted_costs
from netsplit.program.schedules import GPipe, Schedule
from netsplit.runtime.offload.moments import check_buckets
from netsplit.runtime.share import OptimizerFactory, UpdateRule, check_clipping
from netsplit.settings import OffloadName

__all__ = ["Foreseen"]

log = logging.getLogger(__name__)

_LOOKED_AT = 2**29  # bytes of a step's tensors, above which a plan does not wait for it
_REFUSED = "a training would refuse"


@dataclass(frozen=True)
class Foreseen:
    """One model, which is left as it is, and one batch on devices whose seconds are predicted.

    Args:
        model: may be on the meta device.
        batch: a whole one; may be on the meta device.
        optimizer: whose state counts.
        variable_copies, memory: as of `settings.Settings`.
    """

    model: nn.Module
    loss: Loss | None
    batch: Batch
    devices: Devices
    optimizer: OptimizerFactory
    clip_norm: float | None = None
    autocast: str | None = None
    ema_decay: float | None = None
    offload: OffloadName = "none"
    variable_copies: int | None = None
    memory: MemoryRule = "lifetimes"

    def __post_init__(self) -> None:
        if not self.batch.samples:
            raise ConfigError("the batch has no samples: give one of the size to train with.")

    def planner(self, schedule: Schedule) -> Planner:
        """The planner under a schedule, whose micro-batches are equal.

        Raises:
            CaptureError: the model cannot be captured.
            ConfigError: the batch does not divide into micro-batches.
        """
        samples = self.batch.samples
        size = schedule.microbatch_size(samples)
        if size * schedule.microbatches != samples:
            raise _uneven(samples, schedule.microbatches)
        log.info("Capturing %s in micro-batches of %d samples.", type(self.model).__name__, size)
        graph = self._captured(self.batch.rows(0, size).own())
        log.info("Captured %d operators.", len(graph))
        return self._planner(graph, self._complete(self._predicted(graph), graph), schedule)

    def decided(
        self,
        open_: AutoSchedule,
        method: Partitioner | None = None,
        seed: int = 0,
        improved: Callable[[float, str], object] | None = None,
    ) -> Planner:
        """The planner under the schedule and the micro-batches that are decided with all else.

        Args:
            method: whose placements are wanted; None, or `auto`: the best of all.
            improved: told seconds and origin of a better plan.

        Raises:
            InfeasibleError: nothing fits.
            CaptureError, ConfigError: as for `planner`.
        """
        cutting = BatchCuts(self.model, self.loss, self.batch, open_.microbatches is not None)

        def of_counts(counts: Sequence[int]) -> Sizes:
            sizes = Sizes(
                self.batch,
                counts,
                self._captured,
                lambda graph, example, alone: self._predicted(graph),
                self._complete,
                lambda graph, costs, m: self._planner(graph, costs, GPipe(m)),
                predicted=True,
                allowed=cutting.allowed,
                left_out=list(open_.not_as_given(self.batch.samples, counts, _UNEQUAL)),
            )
            log.info("Capturing %s at %d micro-batch sizes.", type(self.model).__name__, len(counts))
            sizes.take()
            sizes.cost(seed)
            return sizes

        def of_sizes(sizes: Sizes) -> WholePlan:
            left_out = sizes.left_out if cutting.named else ()
            least = sizes.graphs[min(sizes.graphs)]
            more = sizes.derivable(open_.counts(self.batch.samples, self.devices.count + 1, equal=True))

            def decide(counts: Sequence[int]) -> WholePlan:
                return decide_whole(
                    sizes.problem,
                    counts,
                    self.batch.samples,
                    open_,
                    method=None if isinstance(method, Auto) else method,
                    improved=improved,
                    others=more if counts is sizes.counts else (),
                    told=lambda m: (*left_out, *cutting.told(m), *self._refused(least)),
                )

            return cutting.decided(decide, sizes.counts, self._is_quick(least))

        first = of_counts(self._counts(open_))
        whole = or_with_further(
            open_, self.batch.samples, first, of_counts, of_sizes, lambda sizes: sizes.problem
        )
        chosen = whole.plan.problem
        return replace(self._planner(chosen.graph, chosen.costs, whole.schedule), decided=whole)

    def whole_plan(
        self,
        order: Schedule | AutoSchedule,
        method: Partitioner,
        seed: int = 0,
        improved: Callable[[float, str], object] | None = None,
    ) -> WholePlan:
        """The plan of either kind of schedule; raises as `decided` does."""
        if isinstance(order, AutoSchedule):
            decided = self.decided(order, method, seed, improved).decided
            assert decided is not None
            return decided
        planner = self.planner(order)
        microbatches = planner.schedule.microbatches
        cutting = BatchCuts(self.model, self.loss, self.batch, named=True)
        counts = cutting.allowed(planner.graph, [microbatches])
        if self._is_quick(planner.graph):
            cutting.at_size(planner.graph, counts)
        else:
            cutting.not_at_size()
        problem = replace(planner.problem(seed), improved=improved)
        told = (*cutting.told(microbatches), *self._refused(planner.graph))
        return plan_under(problem, method, self.batch.samples, told)

    def _refused(self, graph: Graph) -> tuple[str, ...]:
        """Why a training would refuse the model as it is, in a sentence, as far as a quick look shows it."""
        if not self._is_quick(graph):
            return ()
        try:
            check_capture(self.model, self.loss, graph, self.batch.rows(0, graph.batch_size).own())
        except CaptureError as error:
            return (f"{_REFUSED} {type(self.model).__name__} as it is: {str(error).rstrip('.')}",)
        return ()

    def _is_quick(self, graph: Graph) -> bool:
        parameters = sum(initializer.nbytes for initializer in graph.initializers.values())
        return parameters + sum(v.nbytes for v in graph.variables.values()) <= _LOOKED_AT

    def _counts(self, open_: AutoSchedule) -> Sequence[int]:
        samples = self.batch.samples
        counts = [m for m in open_.counts(samples, self.devices.count, equal=True) if samples % m == 0]
        if not counts:
            raise _uneven(samples, open_.microbatches)
        return counts

    def _captured(self, example: Batch) -> Graph:
        graph = capture(
            self.model, self.loss, example, autocast=self.autocast, device_type=self.devices.device_type
        )
        check_clipping(self.clip_norm, graph)
        return graph

    def _predicted(self, graph: Graph) -> Costs:
        costs = predicted_costs(graph, self.devices.rates, self._alpha)
        costs = replace(costs, variable_copies=self.variable_copies, scratch=self._scratch)
        return costs if self.devices.overlap else costs.without_overlap()

    @cached_property
    def _made(self) -> ForModel:
        return for_model(self.optimizer, self.model, self.loss)

    @cached_property
    def _alpha(self) -> int:
        return optimizer_alpha(self._made) + (self.ema_decay is not None)

    @cached_property
    def _scratch(self) -> OptimizerScratch:
        return optimizer_scratch(self._made)

    def _complete(self, costs: Costs, graph: Graph) -> Costs:
        return offloaded(costs, graph, self.offload)

    def _planner(self, graph: Graph, costs: Costs, schedule: Schedule) -> Planner:
        if self.offload in ("optimizer", "both"):
            check_buckets(self._made)
        work = Workload(type(self.model).__name__, graph, costs)
        need_bytes = work.need_bytes(schedule.in_flight(self.devices.count))
        cluster = self.devices.resolved(work.base_kind, need_bytes)
        rule = UpdateRule(self.clip_norm, loss_scaling=self.autocast == "float16")
        return Planner(
            self.model, graph, {}, costs, cluster, schedule, self._made, self.loss, rule, memory=self.memory
        )


_UNEQUAL = "the samples of a batch do not divide into so many, and costs are predicted for equal ones"


def _uneven(samples: int, microbatches: object) -> ConfigError:
    return ConfigError(
        f"batch_size {samples} does not divide into {microbatches} micro-batches, and costs are predicted "
        "for equal ones: choose schedule.microbatches that divides it."
    )
