"""The programs of a placed model: one for each kind of batch, made when such a batch is first seen.

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
from netsplit.partition.base import Problem
from netsplit.placement.placement import Placement
from netsplit.placement.priority import topological_priority
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
    """A part of a batch: its program, and how many of its samples count, of those it is filled up to."""

    batch: Batch
    count: int
    program: Program


@dataclass
class Programs:
    """Training and inference programs of a placement.

    Args:
        compiler: makes the program of a whole batch; others are made as it makes that.
        program: of a whole batch.
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
    """Seconds that programs of training took to be captured and made, so far."""
    _trained: dict[Hashable, Program] = field(default_factory=dict)
    _predicting: dict[Hashable, Program] = field(default_factory=dict)

    def of_plan(self, plan: Plan) -> Programs:
        """Those of another plan of the same model: none is made yet but that of a whole batch."""
        problem = plan.problem
        compiler = replace(
            self.compiler.moved_to(problem.cluster, problem.costs), schedule=plan.compiler.schedule
        )
        return replace(
            self, compiler=compiler, placement=plan.placement, program=plan.simulated[0], _trained={},
            _predicting={},
        )  # fmt: skip

    def batch(self, inputs: Any, targets: Any = None) -> Batch:
        """Flat; tensors are cut as those of the first batch of the same structure were."""
        batch = Batch.of(inputs, targets, known=self.known)
        if batch.samples == 0:
            raise NetSplitError("there is nothing to compute: the batch has no sample.")
        return batch

    def has(self, batch: Batch) -> bool:
        """Whether such a batch was trained before, under this plan."""
        return (batch.key, batch.samples) in self._trained

    def training(self, batch: Batch) -> Program:
        """The program of a batch of any shapes and size: whole micro-batches, and one with the rest."""
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
        """A batch of any number of samples, in parts that have programs; `joined` undoes that.

        Up to a micro-batch it is computed at its own size. A larger one is cut where every output has rows
        of its own for each sample, the last part filled up to a micro-batch, and computed whole where not.
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
        """The model's output for a whole batch, of what every micro-batch of its parts gave."""
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
        """The program for a batch's own shapes."""
        size = self._size_in(batch)
        full, rest = divmod(batch.samples, size)
        captured = self.captures.training(batch.rows(0, size), size)
        self._require_same_parameters(captured)
        graph = self._in_parts(captured)
        self._require_same_copies(graph)
        device_of = self._placed(graph)
        placement = replace(
            self.placement,
            device_of=device_of,
            exchanges=exchanges_that_hold(graph, device_of, self.placement.exchanges),
            priority=like_priority(self._graph, graph, self.placement.priority),
            recomputed=like_recomputed(self._graph, graph, self.placement.recomputed),
            begins=(),
            rewrites=graph.rewrites,
        )
        tail = None
        if rest:
            last = self.captures.training(batch.rows(full * size, batch.samples), size)
            require_same_operators(captured, last)
            tail = self._in_parts(last, captured)
        compiler = replace(self.compiler, graph=graph, tail=tail, like=self.program.bundles)
        return self._compiled(compiler, placement, full + bool(rest))

    def _size_in(self, batch: Batch) -> int:
        """Samples of a micro-batch. Where the example is not cut, none is: a loss may be a sum over it."""
        whole = self.compiler.schedule.microbatches == 1
        return batch.samples if whole else min(self.compiler.graph.batch_size, batch.samples)

    def _inference(self, batch: Batch, microbatches: int) -> Program:
        key = batch.key, batch.samples, microbatches
        if key not in self._predicting:
            graph = self.captures.inference(batch.rows(0, batch.samples // microbatches))
            graph = self._in_parts(graph)
            order = topological_priority(graph, graph.position)
            device_of = self._placed(graph)
            placement = replace(
                self.placement,
                device_of=device_of,
                exchanges=exchanges_that_hold(graph, device_of, self.placement.exchanges),
                priority=order,
                stages=(),
                begins=(),
                recomputed=frozenset(),
                rewrites=graph.rewrites,
            )
            compiler = replace(
                self.compiler, graph=graph, training=False, shared_norm=False, tail=None,
                like=self.program.bundles,
            )  # fmt: skip
            self._predicting[key] = self._compiled(compiler, placement, microbatches)
        return self._predicting[key]

    def _compiled(self, compiler: Simulator, placement: Placement, microbatches: int) -> Program:
        """Verified; bytes over a capacity are said where a whole batch in training needs fewer."""
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
        """That of training, whose nodes are placed."""
        return applied(self.compiler.graph, self.placement.rewrites, scaled=True)

    def _in_parts(self, graph: Graph, more: Graph | None = None) -> Graph:
        """Another capture, in parts as training is; see `like_rewritten`."""
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

    def _placed(self, graph: Graph) -> dict[str, str]:
        """Every node where its like in training is, and where its parameters are."""
        placed, device_of = self._graph, self.placement.device_of
        where = inference_placement(placed, graph, device_of)
        homes = {k: device_of[node.name] for node in placed for k in node.initializers}
        for node in graph:
            for k in node.initializers:
                if homes.setdefault(k, where[node.name]) != where[node.name]:
                    raise NetSplitError(
                        f"on a batch of these shapes one operator needs '{k}' and parameters of another "
                        "device: give parallelize an example batch of these shapes."
                    )
        return where

    def _require_same_parameters(self, graph: Graph) -> None:
        known = self.compiler.graph.initializers
        new = [k for k, init in graph.initializers.items() if init.requires_grad and k not in known]
        if new:
            raise NetSplitError(
                f"on a batch of these shapes the model trains '{new[0]}', which it did not use on the "
                "example batch: give parallelize an example that uses every trained parameter."
            )

    def _require_same_copies(self, graph: Graph) -> None:
        """All copies of a region step alike, so all of them have to be given the sum of the gradients."""
        copies, own = _copies(self._graph), _copies(graph)
        for held, numbers in own.items():
            if numbers != copies.get(held, numbers):
                raise NetSplitError(
                    f"on a batch of these shapes '{held}' is read on fewer devices than hold a copy: give "
                    "parallelize an example batch of these shapes, or each micro-batch at least one "
                    "sample for each copy."
                )


def _copies(graph: Graph) -> dict[str, set[int]]:
    """Which copies of held parameters are read."""
    copies: dict[str, set[int]] = {}
    for init in graph.initializers.values():
        if init.requires_grad:
            copies.setdefault(init.held_as, set()).add(0 if init.region is None else init.region.copy)
    return copies


def warn_of_overflow(method: str, peaks: Mapping[str, int], cluster: Cluster, although: str) -> None:
    """Say which devices need more bytes at their peak than they have; `although`: why that may surprise."""
    for device in cluster.devices:
        over = peaks.get(device.name, 0) - device.capacity_bytes
        if over > 0:
            log.warning(
                "%s: %s is predicted to exceed its limit by %s at its peak, although %s.",
                method, device.name, nbytes(over), although,
            )  # fmt: skip
