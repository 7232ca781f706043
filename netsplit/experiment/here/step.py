"""A training step on workers that are here; `Foreseen` is one on devices that need not be.

model, loss, batch ──capture, BatchCuts──► Graph ──CostsHere──► Planner ──► of one schedule, or of all
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from netsplit.cluster.catalogue import rates_by_kind
from netsplit.cluster.cluster import Cluster, Link
from netsplit.errors import ConfigError
from netsplit.experiment.calibration import Calibration
from netsplit.experiment.here.costs import CostsHere
from netsplit.experiment.parts.measured_parts import KnownParts
from netsplit.experiment.planner import Planner
from netsplit.experiment.whole.cutting import BatchCuts
from netsplit.experiment.whole.in_turn import SizeSeconds
from netsplit.experiment.whole.sizes import Sizes, or_with_further
from netsplit.graph.autocast import refuse_surrounding
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss
from netsplit.graph.ir import Graph
from netsplit.graph.module import initial_values
from netsplit.interrupts import interrupts_held
from netsplit.optim.learning_rate import LearningRate
from netsplit.optim.optimizers import ForModel, for_model
from netsplit.partition import Auto
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Partitioner
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.nearest import require_room
from netsplit.planning.whole.notes import statistics_notes
from netsplit.planning.whole.whole_plan import WholePlan, decide_whole
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds, Offload
from netsplit.profile.measure.optimizer import optimizer_alpha
from netsplit.profile.measure.stretches.in_turn import SizedStep
from netsplit.profile.offload import offloaded
from netsplit.profile.optimizer_checks import check_idle
from netsplit.program.schedules import GPipe, OneFOneB, Schedule
from netsplit.runtime.checkpoint.weights import WeightSource, weight_source_of
from netsplit.runtime.offload.moments import check_buckets
from netsplit.runtime.share import OptimizerFactory, UpdateRule, check_clipping
from netsplit.settings import OffloadName, OnNonFinite, check_numbers
from netsplit.training.adapt.switchable import changeable
from netsplit.training.captures import MAX_PROGRAMS, checked_capture

__all__ = ["StepHere", "TrainingOptions", "elsewhere"]

log = logging.getLogger(__name__)


class TrainingOptions(TypedDict, total=False):
    """What `StepHere` may be asked for by name; what is left out is as there."""

    clip_norm: float | None
    autocast: str | None
    learning_rate: LearningRate | None
    ema_decay: float | None
    max_programs: int
    check: bool
    on_nonfinite: OnNonFinite | None
    weights: WeightSource | None
    offload: OffloadName


@dataclass(frozen=True)
class StepHere:
    """One model and one batch on workers that are here.

    Args:
        costs: of its operators there.
        batch: one whole example batch `(inputs, targets)`; cut into micro-batches here.
        clip_norm: the gradients' norm over all devices is cut to this before a step.
        autocast: "bfloat16" or "float16" for ``torch.autocast``; float16 brings a loss scale.
        learning_rate: how it changes while training goes on.
        ema_decay: of moving averages of the parameters; None: there are none.
        max_programs: kinds of batches that training may see, and that prediction may.
        check: run what is captured beside plain PyTorch, and refuse what differs (see `graph.check`).
        on_nonfinite: see `UpdateRule`.
        weights: where workers have the values from of a model on the meta device.
        offload: what lies in the host's memory while no device computes with it.

    Raises:
        ConfigError: a batch without samples, no room for any program, a device whose costs are to be
            predicted and cannot be, or a learning rate as `LearningRate.check` refuses it.
    """

    costs: CostsHere
    model: nn.Module
    loss: Loss | None
    batch: tuple[Any, Any]
    optimizer: OptimizerFactory
    clip_norm: float | None = None
    autocast: str | None = None
    learning_rate: LearningRate | None = None
    ema_decay: float | None = None
    max_programs: int = MAX_PROGRAMS
    check: bool = True
    on_nonfinite: OnNonFinite | None = "stop"
    weights: WeightSource | None = None
    offload: OffloadName = "none"
    known: dict[Hashable, tuple[int | None, ...]] = field(default_factory=dict)  # see `Batch.of`

    def __post_init__(self) -> None:
        refuse_surrounding(self.autocast)
        if self.costs.predicted:
            rates_by_kind(self.costs.spec.devices, self.autocast)
        check_numbers(max_programs=self.max_programs)
        if self.whole.samples == 0:
            raise ConfigError("the batch has no samples: give one of the size to train with.")
        if self.learning_rate is not None:
            self.learning_rate.check(self._made)

    @cached_property
    def whole(self) -> Batch:
        return Batch.of(*self.batch, known=self.known)

    def planner(self, schedule: Schedule, costs: Costs | None = None) -> Planner:
        """Capture it, measure its operators on a worker of each device kind, or predict them.

        What micro-batches would train otherwise than their batch is said in a warning.

        Args:
            costs: at the size of a micro-batch, complete, of a schedule that was decided here, whose
                micro-batches have been compared with the batch; None: neither is there.

        Raises:
            CaptureError: the model cannot be captured, or would train something else.
            ConfigError: a batch that cannot be cut, or it would step on what is to be skipped.
            NetSplitError: the model has other operators on a smaller last micro-batch.
        """
        self._refuse_skipping(schedule)
        samples = self.whole.samples
        size, schedule = schedule.microbatch_size(samples), schedule.for_batch(samples)
        example = self.whole.rows(0, size).own()
        graph = self._first_captured(example)
        rest = self.whole.rows(samples - samples % size, samples)
        tail = self._captured(rest.own()) if rest.samples else None
        cut_said = False
        if self.check and costs is None and size < samples:
            with interrupts_held():
                cut_said = self._warn_of_cutting(graph, schedule.microbatches)
        values = self._values(graph)
        source = self._source(graph, values)
        check_idle(self._made, graph)
        if Offload.of(self.offload).optimizer:
            check_buckets(self._made)
        in_flight = schedule.in_flight(len(self.costs.spec.devices))
        task = Calibration.of(graph, example.tensors, values, self._made, in_flight)
        rule = UpdateRule(
            self.clip_norm, self.autocast == "float16", self.learning_rate, self.ema_decay,
            self.on_nonfinite, cut_said,
        )  # fmt: skip
        if costs is None:
            costs = self._complete(self.costs.of(task), graph)
        return Planner(
            self.model, graph, values, costs, self.costs.cluster(), schedule, self._made, self.loss, rule,
            tail, self.whole.key, self.known, self.max_programs, self.check, weights=source,
            parts=self.costs.parts(task, costs),
        )  # fmt: skip

    def _warn_of_cutting(self, graph: Graph, microbatches: int) -> bool:
        """Whether what micro-batches train otherwise was said."""
        cutting = BatchCuts(self.model, self.loss, self.whole, named=True)
        cutting.at_size(graph, cutting.allowed(graph, [microbatches]))
        for line in (*cutting.told(microbatches), *statistics_notes(graph)):
            log.warning("%s", line)
        return cutting.said

    def decided(
        self, open_: AutoSchedule, method: Partitioner, seed: int = 0, adapts: bool = False
    ) -> Planner:
        """The planner of the whole plan: schedule, micro-batches and all else are decided here.

        Operators are measured at two sizes of micro-batches, whole micro-batches at all (see `Sizes`).

        Args:
            method: whose placements are wanted; `auto` is the best of all.
            adapts: `auto` makes no plan that a training could not change (see `changeable`).

        Raises:
            InfeasibleError: nothing fits.
            CaptureError, ConfigError, NetSplitError: as for `planner`.
        """
        stages, samples = self.costs.stages, self.whole.samples
        cutting = BatchCuts(self.model, self.loss, self.whole, open_.microbatches is not None)
        remarks: tuple[str, ...] = ()

        def of_counts(counts: Sequence[int]) -> Sizes:
            sizes = self._sizes(open_, counts, cutting)
            stages.stage(f"capture at {len(counts)} sizes of micro-batches")
            sizes.take()
            return sizes

        first = of_counts(open_.counts(samples, len(self.costs.spec.devices)))
        if adapts and isinstance(method, Auto):
            open_, remarks = changeable(open_, first.graph(first.counts[0]))

        def of_sizes(sizes: Sizes) -> Planner:
            require_room(self._bytes_alone(sizes), sizes.counts, open_)
            sizes.cost(seed)
            more = sizes.derivable(open_.counts(samples, len(self.costs.spec.devices) + 1))
            left_out = sizes.left_out if cutting.named else ()

            def decide(counts: Sequence[int]) -> WholePlan:
                stages.stage("plan of everything", open_.time_limit_s, "s")
                return decide_whole(
                    sizes.problem,
                    counts,
                    samples,
                    open_,
                    method=None if isinstance(method, Auto) else method,
                    improved=lambda s, source: stages.note(f"best so far {1e3 * s:.4g} ms, by {source}"),
                    others=more if counts is sizes.counts else (),
                    told=lambda m: (*left_out, *remarks, *(cutting.told(m) if self.check else ())),
                )

            plan = cutting.decided(decide, sizes.counts) if self.check else decide(sizes.counts)
            at_size = sizes.planners[plan.schedule.microbatches]
            made = self.planner(plan.schedule, at_size.costs)
            rule = replace(made.rule, cut_said=cutting.said)
            return replace(made, decided=plan, parts=at_size.parts, rule=rule)

        return or_with_further(open_, samples, first, of_counts, of_sizes, self._bytes_alone)

    def _bytes_alone(self, sizes: Sizes) -> Callable[[int], Problem]:
        """Problems of planning before anything is measured, or a worker started: nothing takes any time."""
        spec = self.costs.spec
        kinds, alpha = {device.kind for device in spec.devices}, optimizer_alpha(self._made)
        links = {(p.name, q.name): Link(0.0, 0.0) for p, q in permutations(spec.devices, 2)}
        cluster = Cluster(spec.name, spec.devices, links)

        def of(m: int) -> Problem:
            graph = sizes.graph(m)
            none = DeviceCosts(dict.fromkeys(graph.nodes, NodeSeconds(0.0, 0.0)))
            costs = self._complete(Costs(dict.fromkeys(kinds, none), alpha), graph)
            return Planner(self.model, graph, {}, costs, cluster, GPipe(m), self._made, self.loss).problem()

        return of

    def _sizes(self, open_: AutoSchedule, counts: Sequence[int], cutting: BatchCuts) -> Sizes:
        """The model at the sizes of so many micro-batches."""
        in_flight = OneFOneB().in_flight(len(self.costs.spec.devices))
        known: KnownParts = {}  # of all sizes
        rule = UpdateRule(self.clip_norm, self.autocast == "float16")

        def task_of(graph: Graph, example: Batch) -> Calibration:
            return Calibration.of(graph, example.tensors, self._values(graph), self._made, in_flight)

        def measure(graph: Graph, example: Batch, alone: bool) -> Costs:
            task = task_of(graph, example)
            self._source(graph, task.values)
            return self.costs.of(task, alone)

        def in_turn(steps: Sequence[SizedStep]) -> SizeSeconds:
            values: dict[str, Tensor] = {}
            for step in steps:  # constants may be others at each size
                if not step.graph.initializers.keys() <= values.keys():
                    values = {**self._values(step.graph), **values}
            return self.costs.in_turn(steps, {k: value.detach() for k, value in values.items()})

        def planner(graph: Graph, costs: Costs, m: int) -> Planner:
            task = task_of(graph, self.whole.rows(0, graph.batch_size))
            return Planner(
                self.model, graph, {}, costs, self.costs.cluster(), GPipe(m), self._made, self.loss, rule,
                max_programs=self.max_programs, parts=self.costs.parts(task, costs, known),
            )  # fmt: skip

        return Sizes(
            self.whole,
            counts,
            lambda example: self._captured(example, check=False),
            measure,
            self._complete,
            planner,
            self.costs.predicted,
            in_turn,
            cutting.allowed if self.check else lambda _, counts: counts,
            in_flight=in_flight,
            left_out=list(open_.not_as_given(self.whole.samples, counts)),
        )

    def _first_captured(self, example: Batch) -> Graph:
        self.costs.stages.stage("capture")
        kind = type(self.model).__name__
        log.info("Capturing %s in micro-batches of %d samples.", kind, example.samples)
        if any(p.grad is not None for p in self.model.parameters()):
            log.warning("Parameters of %s already hold gradients: the split model starts without them.", kind)
        if places := elsewhere([*self.model.parameters(), *self.model.buffers(), *example.tensors]):
            log.warning(
                "The model or its batch lies on %s: workers get it by way of the host's memory, and what it "
                "takes there they do not have.",
                " and ".join(places),
            )
        graph = self._captured(example, told=logging.INFO)
        self.costs.stages.note(f"{len(graph):,} operators")
        return graph

    def _captured(self, example: Batch, check: bool | None = None, told: int = logging.DEBUG) -> Graph:
        """Of one micro-batch; `check` is the step's own where it is not given."""
        graph = checked_capture(
            self.model,
            self.loss,
            example,
            self.check if check is None else check,
            told,
            autocast=self.autocast,
            device_type=self._device_type,
        )
        check_clipping(self.clip_norm, graph)
        return graph

    def _values(self, graph: Graph) -> dict[str, Tensor]:
        return initial_values(self.model, graph, self.loss)

    def _source(self, graph: Graph, values: dict[str, Tensor]) -> WeightSource | None:
        """Of those values that are on the meta device.

        Raises:
            ConfigError: they have none, or operators are to be measured with them.
        """
        source = weight_source_of(self.weights, self.model, graph, values)
        if source is not None and not self.costs.predicted:
            raise ConfigError(
                "the model is on the meta device, so that its operators have nothing to be measured "
                "with: give profile='predicted'."
            )
        return source

    @cached_property
    def _made(self) -> ForModel:
        return for_model(self.optimizer, self.model, self.loss)

    @cached_property
    def _device_type(self) -> str:
        """The kind of all devices; under autocast they must be of one, as what is cast differs."""
        spec = self.costs.spec
        kinds = sorted({torch.device(device.torch_device).type for device in spec.devices})
        if self.autocast is not None and len(kinds) > 1:
            raise ConfigError(
                f"autocast is {self.autocast}, and cluster '{spec.name}' mixes {' and '.join(kinds)}, which "
                "cast other operators: leave it out, or take devices of one kind."
            )
        return kinds[0]

    def _complete(self, costs: Costs, graph: Graph) -> Costs:
        """With the bytes of averages, and of what is offloaded."""
        own = replace(costs, alpha=costs.alpha + (self.ema_decay is not None))
        return offloaded(own, graph, self.offload)

    def _refuse_skipping(self, schedule: Schedule) -> None:
        if self.on_nonfinite == "skip" and schedule.update_every is not None:
            raise ConfigError(
                f"on_nonfinite is skip, and under {schedule.name} devices step within the batch, before its "
                "loss is known: give stop or warn, or choose another schedule."
            )


def elsewhere(tensors: Iterable[Tensor]) -> list[str]:
    """The devices on which tensors lie in other memory than the host's."""
    return sorted({str(each.device) for each in tensors if each.device.type not in ("cpu", "meta")})
