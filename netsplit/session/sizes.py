"""One model at several micro-batch sizes: captured, compared with the batch, measured at two sizes.

a few samples ──few_differ──► may the batch be cut? ◄──batch_differs── the batch, at the size that is decided
captures ──graph_at──► a graph at every size        two measured sizes ──profile.costs──► costs at every size
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from netsplit.errors import CaptureError, NetSplitError, WorkerError
from netsplit.graph.checks.cutting import (
    NotCompared,
    batch_differs,
    few_differ,
    refuse_shared_writes,
    why_not_compared,
)
from netsplit.graph.ir import Graph, graph_at
from netsplit.partition.base import Problem
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds, SizeSeconds, beside, between, together
from netsplit.profile.measure.compute import SizedStep
from netsplit.profile.measure.optimizer import optimizer_alpha
from netsplit.program.other_batches import require_same_operators
from netsplit.program.schedules import GPipe, OneFOneB
from netsplit.session.calibration import KnownParts
from netsplit.session.costs import CostSource, MeasuredCosts
from netsplit.session.step import ModelStep, with_known_parts

__all__ = ["BatchCuts", "StepSizes"]

log = logging.getLogger(__name__)

CAPTURED = 3  # sizes at least, before others are interpolated
_NOT_TRIED = "micro-batches are not tried:"
USUAL = 4  # micro-batches; their size is measured first


@dataclass
class BatchCuts:
    """Whether a step's batch may be cut, with remarks.

    A batch whose micro-batches would train something else is kept whole, unless `named`.

    Args:
        named: the user gave the numbers of micro-batches, which are used in any case.
    """

    step: ModelStep
    named: bool
    remarks: list[str] = field(default_factory=list)  # of any plan
    differs: str = ""  # what differs though the batch is cut, or why that is unknown
    _compared: bool = False
    _failed: str = ""  # why a few samples were not compared

    def allowed(self, graph: Graph, counts: Sequence[int]) -> list[int]:
        """The numbers of micro-batches to try, by comparing a few samples.

        Args:
            graph: the model's, at any size.
        """
        if max(counts) == 1 or self._compared:
            return list(counts)
        self._compared = True
        step = self.step
        given = step.model, step.loss, step.whole
        try:
            refuse_shared_writes(graph, step.whole)
        except CaptureError as error:
            if 1 not in counts:
                raise
            self.remarks.append(f"the batch is kept whole: {str(error).rstrip('.')}")
            return [1]
        if (missing := why_not_compared(*given)) is not None:
            self._not_compared(missing)
            return list(counts)
        log.info("Checking that micro-batch losses average to the batch loss.")
        least = min(m for m in counts if m > 1)
        size = -(-step.whole.samples // least)
        try:
            return self._left(counts, few_differ(*given, graph, size))
        except NotCompared as error:
            self._failed = str(error)
            return list(counts)

    def not_at_size(self) -> None:
        """Skip comparing the batch; if a few samples were not compared either, remark it."""
        if self._failed and not self.differs:
            self._not_compared(self._failed)

    def _not_compared(self, why: str) -> None:
        name = self.step.name
        self.differs = f"micro-batch losses of {name} were not compared with its batch loss: {why}"

    def at_size(self, graph: Graph, counts: Sequence[int]) -> list[int]:
        """The numbers to try, by comparing the batch with micro-batches of the graph's size."""
        step = self.step
        if graph.batch_size >= step.whole.samples or self.differs:
            return list(counts)
        log.info("Comparing the batch with its micro-batches of %d samples.", graph.batch_size)
        given = step.model, step.loss, step.whole, graph, graph.batch_size
        return self._left(counts, batch_differs(*given, gradients=bool(self._failed) or not self._compared))

    def _left(self, counts: Sequence[int], differs: str | None) -> list[int]:
        if differs is None:
            return list(counts)
        if self.named:
            self.differs = (
                f"{differs}; each micro-batch uses its own, as in gradient accumulation "
                "(schedule.microbatches=1 keeps the batch whole)"
            )
            return list(counts)
        if 1 not in counts:
            raise CaptureError(f"{differs}.")
        self.remarks.append(f"the batch is kept whole: {differs} (schedule.microbatches=N splits it anyway)")
        return [1]

    def notes_for(self, microbatches: int) -> tuple[str, ...]:
        """Remarks on a plan with that many micro-batches."""
        return (*self.remarks, *([self.differs] if self.differs and microbatches > 1 else ()))


@dataclass
class StepSizes:
    """A step's problems by number of micro-batches.

    Args:
        counts: numbers of micro-batches.
        cutting: decides which of them may be tried; None: all.
        left_out: remarks on numbers that are not tried.
    """

    step: ModelStep
    source: CostSource
    counts: Sequence[int]
    cutting: BatchCuts | None
    left_out: list[str]
    graphs: dict[int, Graph] = field(default_factory=dict)  # by samples
    measured: dict[int, Costs] = field(default_factory=dict)  # by samples
    took: SizeSeconds = field(default_factory=dict)  # whole micro-batches, in turn
    problems: dict[int, Problem] = field(default_factory=dict)  # by micro-batches
    parts: KnownParts = field(default_factory=dict)  # of all sizes
    ends: tuple[Graph, Graph] | None = None  # captures of few samples and of many

    def take(self) -> None:
        """Make the graph at every size; sizes with other operators are left out.

        Three sizes are captured; if the third is not interpolated from the others (`graph_at`), all are.

        Raises:
            CaptureError: the model cannot be captured at the largest size, or no size may be tried.
        """
        sizes = {m: self._samples(m) for m in self.counts}
        usual = min(self.counts, key=lambda m: (abs(m - USUAL), m))
        order = dict.fromkeys([usual, min(self.counts), *sorted(self.counts, reverse=True)])
        refused: NetSplitError | None = None
        looked = self.cutting is None
        for m in order:
            if m not in self.counts:
                continue
            try:
                graph = self._derived(sizes[m]) or self.step.graph(self.step.example(sizes[m]))
            except CaptureError as error:
                refused = refused or error
                if m == min(self.counts):  # the batch is at fault, not a lack of samples
                    raise refused from None
                self.left_out.append(f"{m} {_NOT_TRIED} {str(error).rstrip('.')}")
                continue
            if self.cutting is not None and not looked:
                self.counts, looked = self.cutting.allowed(graph, self.counts), True
                if m not in self.counts:
                    continue
            try:
                require_same_operators(next(iter(self.graphs.values()), graph), graph)
            except NetSplitError:
                self.left_out.append(f"{m} {_NOT_TRIED} the model has other operators at that size")
                continue
            self.graphs[sizes[m]] = graph
        for each in self.left_out:
            log.info("%s", each)
        self.counts = [m for m in self.counts if sizes[m] in self.graphs]
        self.graphs = {n: g for n, g in self.graphs.items() if n in {sizes[m] for m in self.counts}}

    def cost(self) -> None:
        """Find the costs at two sizes, and make the problem of each number.

        Raises:
            CaptureError: the model does not train in plain PyTorch either.
            WorkerError: only workers fail.
        """
        try:
            self._measure_two()
        except WorkerError:
            if self.step.training.check:
                try:
                    self.step.graph(self.step.example(next(iter(self.graphs))), check=True)
                except CaptureError as plain:
                    raise plain from None
            raise
        for m in self.counts:
            self.problem(m)

    def _measure_two(self) -> None:
        if not self.source.predicted:
            first, least = next(iter(self.graphs)), min(self.graphs)
            other = least if least < first else max(self.graphs)
            for samples in dict.fromkeys((first, other)):
                costs = self._measure(self.graphs[samples], alone=samples != first)
                self.measured[samples] = together(costs, self.measured.get(first, costs))
            if len(self.counts) > 1 and isinstance(self.source, MeasuredCosts):
                self.took = self._in_turn(self.source)

    def problem(self, m: int) -> Problem:
        """The problem with `m` micro-batches; a new object once more parts are measured."""
        if m not in self.problems:
            samples = self._samples(m)
            graph = self.graphs.get(samples) or self._derived(samples)
            assert graph is not None, "captured or interpolated"
            self.graphs[samples] = graph
            costs, schedule = self.costs(samples), GPipe(m)
            meter = None
            if not self.source.predicted:
                in_flight = OneFOneB().in_flight(self.source.count)
                meter = self.source.meter(self.step.task(graph, in_flight, own=False), costs, self.parts)
            cluster = self.source.cluster(graph, costs, schedule.in_flight(self.source.count))
            self.problems[m] = self.step.problem(graph, costs, cluster, schedule, meter=meter)
        self.problems[m] = with_known_parts(self.problems[m])
        return self.problems[m]

    def by_bytes(self, m: int) -> Problem:
        """The problem without measured costs: nothing takes any time."""
        if not isinstance(self.source, MeasuredCosts):
            return self.problem(m)
        graph, cluster = self.graph(m), self.source.spec.unprobed
        none = DeviceCosts(dict.fromkeys(graph.nodes, NodeSeconds(0.0, 0.0)))
        costs = Costs(
            dict.fromkeys((each.kind for each in cluster.devices), none), optimizer_alpha(self.step.optimizer)
        )
        return self.step.problem(graph, self.step.complete(costs, graph), cluster, GPipe(m))

    def _derived(self, samples: int) -> Graph | None:
        """The graph interpolated between captures, if a third capture agrees."""
        if self.ends is None:
            self.ends = self._line()
        if self.ends is None or not self.ends[0].batch_size < samples < self.ends[-1].batch_size:
            return None
        return graph_at(*self.ends, samples)

    def _line(self) -> tuple[Graph, Graph] | None:
        """The captures of the fewest and the most samples, if a third between them agrees.

        Otherwise without one sample, whose transposed tensors are contiguous.
        """
        captured = [self.graphs[n] for n in sorted(self.graphs)]
        for each in (captured, [graph for graph in captured if graph.batch_size > 1]):
            if len(each) >= CAPTURED and graph_at(each[0], each[-1], each[1].batch_size) == each[1]:
                return each[0], each[-1]
        return None

    def graph(self, m: int) -> Graph:
        """The graph at the size of `m` micro-batches."""
        return self.graphs[self._samples(m)]

    def _samples(self, m: int) -> int:
        return -(-self.step.whole.samples // m)

    def costs(self, samples: int) -> Costs:
        """Complete costs of the graph at `samples`."""
        graph = self.graphs[samples]
        if self.source.predicted:
            costs = self._measure(graph)
        else:
            line, usual = self._on_line(samples), next(iter(self.measured))
            costs = beside(line, self._on_line(usual), self.took, samples, usual)
        return self.step.complete(costs, graph)

    def _measure(self, graph: Graph, alone: bool = False) -> Costs:
        if self.source.is_local:
            self.step.weights(graph, measured=not self.source.predicted)
        return self.source.of(self.step.task(graph, OneFOneB().in_flight(self.source.count)), alone)

    def _on_line(self, samples: int) -> Costs:
        low, high = min(self.measured), max(self.measured)
        if samples == high:
            return self.measured[high]
        return between(self.measured[low], self.measured[high], low, high, samples)

    def _in_turn(self, source: MeasuredCosts) -> SizeSeconds:
        """Seconds of whole micro-batches of all sizes, measured in turn."""
        most, steps, values = OneFOneB().in_flight(source.count), [], dict[str, Tensor]()
        for m in self.counts:
            graph = self.graph(m)
            steps.append(SizedStep(graph, self.step.example(graph.batch_size).tensors, min(m, most)))
            if not graph.initializers.keys() <= values.keys():  # constants may be others at each size
                values = {**self.step.values(graph), **values}
        return source.in_turn(steps, {k: value.detach() for k, value in values.items()})
