"""The programs of a placed model: one for each kind of batch, made at its first batch.

batch ──► known? ──yes──► its program
            └──no──► captured at its shapes ──► placed as its likes in training ──► verified ──► compiled
"""

from __future__ import annotations

import logging
import time
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from netsplit.cluster.cluster import Cluster
from netsplit.errors import NetSplitError
from netsplit.graph.batches.batch import Batch
from netsplit.graph.ir import Graph
from netsplit.graph.quotient import topological_priority
from netsplit.partition.base import Problem
from netsplit.placement.placement import Placement
from netsplit.planning.plan import Plan
from netsplit.planning.verify import verify
from netsplit.program.instructions import Program
from netsplit.program.other_batches import (
    inference_placement,
    like_priority,
    like_recomputed,
    like_rewritten,
    require_same_operators,
)
from netsplit.program.transfers import exchanges_that_hold
from netsplit.rewrite.records import ReadWeights
from netsplit.rewrite.rewriting import applied
from netsplit.simulate.simulator import Simulator
from netsplit.tables import nbytes
from netsplit.training.captures import Captures

__all__ = ["BatchPart", "Programs", "warn_of_overflow"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BatchPart:
    """A part of a batch: its program, and how many of its samples are not padding."""

    batch: Batch
    count: int
    program: Program


@dataclass
class Programs:
    """Training and inference programs of a placement.

    Args:
        compiler: makes the `program` of a whole batch; others are made as it makes that.
        captures: graphs of the model on other batches.
        key: of batches with the shapes of the compiler's graph; None: all have them.
        known: see `Batch.of`.
    """

    compiler: Simulator
    placement: Placement
    program: Program
    captures: Captures
    key: Hashable = None
    known: dict[Hashable, tuple[int | None, ...]] = field(default_factory=dict)
    made_s: float = 0.0
    """Seconds spent so far on capturing and compiling."""
    _trained: dict[Hashable, Program] = field(default_factory=dict)
    _predicting: dict[Hashable, Program] = field(default_factory=dict)

    def of_plan(self, plan: Plan) -> Programs:
        """Programs of another plan of the same model, with only the usual batch's made."""
        problem = plan.problem
        compiler = replace(
            self.compiler.moved_to(problem.cluster, problem.costs), schedule=plan.compiler.schedule
        )
        return replace(
            self, compiler=compiler, placement=plan.placement, program=plan.simulated[0], _trained={},
            _predicting={},
        )  # fmt: skip

    def batch(self, inputs: Any, targets: Any = None) -> Batch:
        """The batch, flattened; cut as the first batch of the same structure."""
        batch = Batch.of(inputs, targets, known=self.known)
        if batch.samples == 0:
            raise NetSplitError("there is nothing to compute: the batch has no sample.")
        return batch

    def has(self, batch: Batch) -> bool:
        return (batch.key, batch.samples) in self._trained

    def training(self, batch: Batch) -> Program:
        """The program for a batch of any shapes and size: whole micro-batches and a smaller last one."""
        key = batch.key, batch.samples
        if key not in self._trained:
            usual = self.key is None or batch.key == self.key
            if usual and batch.samples == self.compiler.batch_size:
                self._trained[key] = self.program
            else:
                began = time.perf_counter()
                self.captures.require_room(self._trained, batch, "training")
                self._trained[key] = self._resized(batch) if usual else self._other(batch)
                self.made_s += time.perf_counter() - began
        return self._trained[key]

    def parts(self, batch: Batch) -> Iterator[BatchPart]:
        """Cut a batch of any size into parts that have programs; `joined` undoes that.

        A large one is cut where every output has rows for each sample, the last part filled up.
        """
        captures, size = self.captures, self.compiler.graph.batch_size
        small = batch.samples <= size
        if small and captures.is_full() and captures.known_dims(batch) is not None:
            yield BatchPart(batch.filled(size), batch.samples, self._inference(batch.filled(size), 1))
        elif small or captures.output_dims(batch, size) is None:
            yield BatchPart(batch, batch.samples, self._inference(batch, 1))
        else:
            most = size * self.program.microbatches
            start = 0
            while start < batch.samples:
                part = batch.rows(start, start + most)
                full = part.samples // size
                part = part.rows(0, full * size) if full else part
                filled = part if full else part.filled(size)
                yield BatchPart(filled, part.samples, self._inference(filled, max(full, 1)))
                start += part.samples

    def joined(self, results: list[tuple[BatchPart, list[list[Tensor]]]]) -> Any:
        """The model's output for a whole batch, from the outputs of its parts' micro-batches."""
        part, parts = results[0]
        spec = part.program.graph.output_spec
        if len(results) == 1 and len(parts) == 1 and part.count == part.batch.samples:
            return spec.build(parts[0])
        dims = self.captures.known_dims(part.batch)
        assert dims is not None
        joined = []
        for j, dim in enumerate(dims):
            own = []
            for each, tensors in results:
                whole = torch.cat([outputs[j] for outputs in tensors], dim)
                own.append(whole.narrow(dim, 0, whole.shape[dim] * each.count // each.batch.samples))
            joined.append(torch.cat(own, dim))
        return spec.build(joined)

    def _resized(self, batch: Batch) -> Program:
        """The program for the placed graph's shapes and another number of samples."""
        size = self._size_in(batch)
        known = size == self.compiler.graph.batch_size
        full, rest = divmod(batch.samples, size) if known else (0, batch.samples)
        part = batch.rows(full * size, batch.samples)
        tail = self.captures.training(part, self.compiler.graph.batch_size, True) if rest else None
        return self._compiled(replace(self.compiler, tail=tail), self.placement, full + bool(rest))

    def _other(self, batch: Batch) -> Program:
        size = self._size_in(batch)
        full, rest = divmod(batch.samples, size)
        captured = self.captures.training(batch.rows(0, size), size)
        self._require_same_parameters(captured)
        graph = self._in_parts(captured)
        self._require_same_copies(graph)
        placement = replace(
            self._placed(graph),
            priority=like_priority(self._graph, graph, self.placement.priority),
            recomputed=like_recomputed(self._graph, graph, self.placement.recomputed),
        )
        tail = None
        if rest:
            last = self.captures.training(batch.rows(full * size, batch.samples), size)
            require_same_operators(captured, last)
            tail = self._in_parts(last, captured)
        compiler = replace(self.compiler, graph=graph, tail=tail, like=self.program.bundles)
        return self._compiled(compiler, placement, full + bool(rest))

    def _size_in(self, batch: Batch) -> int:
        """Samples of a micro-batch; the whole batch if the example is not cut, as its loss may be a sum."""
        whole = self.compiler.schedule.microbatches == 1
        return batch.samples if whole else min(self.compiler.graph.batch_size, batch.samples)

    def _inference(self, batch: Batch, microbatches: int) -> Program:
        key = batch.key, batch.samples, microbatches
        if key not in self._predicting:
            graph = self.captures.inference(batch.rows(0, batch.samples // microbatches))
            graph = self._in_parts(graph)
            order = topological_priority(graph, graph.position)
            placement = replace(self._placed(graph), priority=order, stages=(), recomputed=frozenset())
            compiler = replace(
                self.compiler, graph=graph, training=False, shared_norm=False, tail=None,
                like=self.program.bundles,
            )  # fmt: skip
            self._predicting[key] = self._compiled(compiler, placement, microbatches)
        return self._predicting[key]

    def _compiled(self, compiler: Simulator, placement: Placement, microbatches: int) -> Program:
        """A verified program; warns of devices whose capacity only this batch exceeds."""
        compiler = compiler.rewritten(placement.rewrites)
        cluster = compiler.cluster
        unstaged = replace(placement, stages=())  # they name nodes of the usual graph
        problem = Problem(compiler.graph, compiler.costs, cluster)
        verify(problem, unstaged, capacity=False).require()
        schedule = compiler.schedule.with_microbatches(microbatches)
        program = replace(compiler, schedule=schedule).program(placement)
        peaks = compiler.peak_bytes(program)
        over = {k: peaks[k] for k in peaks if peaks[k] > cluster.device(k).capacity_bytes}
        more = {k: nbytes for k, nbytes in over.items() if nbytes > self._usual_peaks[k]}
        warn_of_overflow(placement.method, more, cluster, "whole batches fit")
        return program

    @cached_property
    def _usual_peaks(self) -> dict[str, int]:
        return self.compiler.peak_bytes(self.program)

    @property
    def _graph(self) -> Graph:
        return applied(self.compiler.graph, self.placement.rewrites, scaled=True)

    def _in_parts(self, graph: Graph, more: Graph | None = None) -> Graph:
        """Rewrite another capture as the training graph; see `like_rewritten`."""
        if not self.placement.rewrites:
            return graph
        graph = like_rewritten(self.compiler.graph, self._graph, graph, more)
        return applied(graph, (*graph.rewrites, *self._reads(graph)))

    def _reads(self, graph: Graph) -> tuple[ReadWeights, ...]:
        """The reads of operators that are whole here, whose parameters may be on several devices."""
        homes = {k: self.placement.device_of[node.name] for node in self._graph for k in node.initializers}
        return tuple(
            ReadWeights(node.name)
            for node in graph
            if len({homes[k] for k in node.initializers if k in homes}) > 1
        )

    def _placed(self, graph: Graph) -> Placement:
        """Place another graph's nodes like their training counterparts, next to their parameters."""
        placed, device_of = self._graph, self.placement.device_of
        devices = inference_placement(placed, graph, device_of)
        homes = {k: device_of[node.name] for node in placed for k in node.initializers}
        for node in graph:
            for k in node.initializers:
                if homes.setdefault(k, devices[node.name]) != devices[node.name]:
                    raise NetSplitError(
                        f"on a batch of these shapes one operator needs '{k}' and parameters of another "
                        "device: give parallelize an example batch of these shapes."
                    )
        exchanges = exchanges_that_hold(graph, devices, self.placement.exchanges)
        return replace(
            self.placement, device_of=devices, exchanges=exchanges, begins=(), rewrites=graph.rewrites
        )

    def _require_same_parameters(self, graph: Graph) -> None:
        known = self.compiler.graph.initializers
        new = [k for k, init in graph.initializers.items() if init.requires_grad and k not in known]
        if new:
            raise NetSplitError(
                f"on a batch of these shapes the model trains '{new[0]}', which it did not use on the "
                "example batch: give parallelize an example that uses every trained parameter."
            )

    def _require_same_copies(self, graph: Graph) -> None:
        """Check that all copies of a region are read, as all get the sum of the gradients."""
        copies, own = _copies(self._graph), _copies(graph)
        for held, numbers in own.items():
            if numbers != copies.get(held, numbers):
                raise NetSplitError(
                    f"on a batch of these shapes '{held}' is read on fewer devices than hold a copy: give "
                    "parallelize an example batch of these shapes, or each micro-batch at least one "
                    "sample for each copy."
                )


def _copies(graph: Graph) -> dict[str, set[int]]:
    copies: dict[str, set[int]] = {}
    for init in graph.initializers.values():
        if init.requires_grad:
            copies.setdefault(init.held_as, set()).add(0 if init.region is None else init.region.copy)
    return copies


def warn_of_overflow(method: str, peaks: Mapping[str, int], cluster: Cluster, although: str) -> None:
    """Warn of devices whose peak exceeds their capacity; `although`: why that may surprise."""
    for device in cluster.devices:
        over = peaks.get(device.name, 0) - device.capacity_bytes
        if over > 0:
            log.warning(
                "%s: %s is predicted to exceed its limit by %s at its peak, although %s.",
                method, device.name, nbytes(over), although,
            )  # fmt: skip
