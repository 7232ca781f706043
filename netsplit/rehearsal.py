"""Costs that only show while a program runs, fitted to two programs of the graph itself on its own workers.

    parts:  one piece a device    few transfers  ─► contention ┐ such that the simulator
    turns:  many pieces, in turn  many transfers ─► message_s  ┘ predicts what was measured

The second runs under GPipe, where most messages are there before they are needed, and under 1F1B, where most
are waited for; in between lie the two answers' mean and most programs.

What a message takes from a device that is about to compute cannot be had by timing the call: it is the
system's threads that copy, wake up and take turns with the computation, which differ with what is computed.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import Graph
from netsplit.profile.costs import Costs, NodeSeconds
from netsplit.program.compile import compile_program
from netsplit.program.instructions import Program
from netsplit.program.schedules import GPipe, OneFOneB, Schedule
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.pool import WorkerPool
from netsplit.runtime.share import OptimizerFactory
from netsplit.simulate.simulate import simulate

__all__ = ["Rehearsal", "fitted", "in_turns"]

log = logging.getLogger(__name__)

PIECES = 16  # a device's, in the program with many transfers
MICROBATCHES = 4
WARM_UP, TIMED = 2, 5
MOST_CONTENTION, MOST_MESSAGE_S = 4.0, 5e-3


@dataclass(frozen=True)
class Rehearsal:
    """What is run.

    Args:
        batch: the graph's inputs for one micro-batch.
        values: the initializers; copies are trained.
        kind: of the devices.
        names: of the devices, all of this kind and on one host.
    """

    graph: Graph
    batch: tuple[Tensor, ...]
    values: dict[str, Tensor]
    optimizer: OptimizerFactory
    kind: str
    names: tuple[str, ...]

    def program(
        self, cluster: Cluster, seconds: Mapping[str, NodeSeconds], pieces: int, schedule: Schedule
    ) -> Program:
        """The graph in pieces of equal seconds, which the devices take in turn."""
        device_of = in_turns(self.graph, seconds, self.names, pieces)
        return compile_program(self.graph, device_of, self.graph.position, cluster, schedule)

    def seconds(self, program: Program, pool: WorkerPool) -> float:
        """Median seconds of an iteration."""
        runtime = DistributedRuntime(program, pool, self.values, self.optimizer)
        batch = tuple(torch.cat([tensor] * MICROBATCHES) for tensor in self.batch)
        took = []
        for _ in range(WARM_UP + TIMED):
            start = time.perf_counter()
            runtime.train_batch(batch, ())
            took.append(time.perf_counter() - start)
        return statistics.median(took[WARM_UP:])


def in_turns(
    graph: Graph, seconds: Mapping[str, NodeSeconds], names: Sequence[str], pieces: int
) -> dict[str, str]:
    """Device of every node: runs of nodes of equal seconds, one after another; colocated sets kept."""
    head = {name: group[0] for group in graph.colocated for name in group}
    total = sum(each.total_s for each in seconds.values())
    device_of: dict[str, str] = {}
    done = 0.0
    for name in graph.nodes:
        piece = min(int(pieces * done / total), pieces - 1)
        first = head.get(name, name)
        device_of[name] = device_of.get(first, names[piece % len(names)])
        device_of.setdefault(first, device_of[name])
        done += seconds[name].total_s
    return {name: device_of[name] for name in graph.nodes}


def fitted(rehearsal: Rehearsal, costs: Costs, cluster: Cluster, pool: WorkerPool) -> tuple[float, float]:
    """(contention, message_s) with which the simulator predicts the programs; 1 and 0 at least."""
    seconds, kind = costs.seconds[rehearsal.kind], rehearsal.kind
    count = len(rehearsal.names)
    parts = rehearsal.program(cluster, seconds, count, GPipe(MICROBATCHES))
    turns = [
        rehearsal.program(cluster, seconds, PIECES * count, schedule)
        for schedule in (GPipe(MICROBATCHES), OneFOneB(MICROBATCHES))
    ]
    parts_s, *turns_s = (rehearsal.seconds(program, pool) for program in (parts, *turns))

    def predicted(program: Program, contention: float, message_s: float) -> float:
        found = replace(costs, contention={kind: contention}, message_s={kind: message_s})
        return simulate(program, cluster, found).iteration_s

    def contention_at(message_s: float) -> float:
        return _root(lambda c: predicted(parts, c, message_s), parts_s, 1.0, MOST_CONTENTION)

    def message_at(contention: float) -> float:
        return statistics.mean(
            _root(partial(predicted, program, contention), took, 0.0, MOST_MESSAGE_S)
            for program, took in zip(turns, turns_s, strict=True)
        )

    message_s = message_at(contention_at(0.0))
    contention = contention_at(message_s)
    message_s = message_at(contention)
    log.info(
        "rehearsed with %d and %d transfers: computing together takes %.0f %% longer, a message %.0f µs",
        parts.transfers,
        turns[0].transfers,
        100 * (contention - 1),
        1e6 * message_s,
    )
    return contention, message_s


def _root(function: Callable[[float], float], value: float, low: float, high: float) -> float:
    """Where a rising function comes to `value`, within the bounds."""
    if function(low) >= value:
        return low
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < value else (low, middle)
    return (low + high) / 2
