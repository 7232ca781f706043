"""Costs that show only while a program runs, fitted to trial programs of the graph on the workers.

    parts:  one piece a device    few transfers  ─► contention ┐ such that the simulator
    turns:  many pieces, in turn  many transfers ─► message_s  ┘ predicts what was measured

The second runs under GPipe, where most messages arrive early, and under 1F1B, where most are waited for. Both
costs minimise the squared relative errors of the three programs.

Waiting for a shared processor (`Device.processors`) is predicted; contention is the rest.

The three programs run in rounds, so that a machine that is busy for a while shows as rounds that differ.
Where they do, or no cost within reason explains them, the fit is not `steady`, and should not be kept.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from netsplit.cluster.catalogue import CPU_THREAD, accelerator
from netsplit.cluster.cluster import Cluster
from netsplit.graph.batches.batch import Batch
from netsplit.graph.ir import Graph
from netsplit.placement.placement import Placement
from netsplit.profile.costs import Costs, NodeSeconds
from netsplit.program.compile import compile_program
from netsplit.program.instructions import Program
from netsplit.program.schedules import GPipe, OneFOneB, Schedule
from netsplit.progress import Stages
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.session.calibration import Calibration
from netsplit.simulate.simulate import simulate

__all__ = ["FAR", "Fit", "TrialRun", "checked_trial", "fit_trial", "in_turns"]

log = logging.getLogger(__name__)

PIECES = 16  # on each device, in the program with many transfers
MICROBATCHES = 4
ROUNDS, MORE_ROUNDS = 3, 2
WARM_UP, TIMED = 1, 2  # iterations of a program in one round
ROUND_S, MOST_TIMED = 0.05, 10  # short iterations are repeated for this long
SPREAD = 0.20  # of a program's median round over its fastest; more suggests other work
MOST_MESSAGE_S = 5e-3
FAR = 0.30  # relative difference from which cached costs are out of date
NEAR, LEAST = 1e-2, 1e-3  # distance to the bounds, within which a cost is implausible, or none


@dataclass(frozen=True)
class TrialRun:
    """A step to train, on copies of its values, on devices `names` of one kind and host."""

    task: Calibration
    kind: str
    names: tuple[str, ...]

    def program(
        self, cluster: Cluster, seconds: Mapping[str, NodeSeconds], pieces: int, schedule: Schedule
    ) -> Program:
        """The graph in pieces of equal seconds, dealt to the devices in turn."""
        graph = self.task.graph
        placement = Placement.given(in_turns(graph, seconds, self.names, pieces), graph.position)
        return compile_program(graph, placement, cluster, schedule)

    def seconds(self, program: Program, pool: WorkerPool) -> float:
        """Median seconds of an iteration in one round."""
        task = self.task
        runtime = DistributedRuntime(program, pool, task.values, task.optimizer)
        dims = task.graph.input_dims or (0,) * len(task.batch)
        whole = tuple(
            tensor if dim is None else torch.cat([tensor] * MICROBATCHES, dim)
            for tensor, dim in zip(task.batch, dims, strict=True)
        )
        batch = Batch.of(whole, None, dims)
        took: list[float] = []
        for _ in range(WARM_UP):
            runtime.train_batch(batch)
        while len(took) < TIMED or (sum(took) < ROUND_S and len(took) < MOST_TIMED):
            start = time.perf_counter()
            runtime.train_batch(batch)
            took.append(time.perf_counter() - start)
        return statistics.median(took)


@dataclass(frozen=True)
class Fit:
    """What devices cost one another: contention is a computation's seconds while another device of the host
    computes, over those alone; `message_s` what a message takes from either end.

    `spread` is by what part a program's middle round took longer than its fastest; where that is much, or
    these costs do not explain the rounds, the fit is not `steady`.
    """

    contention: float
    message_s: float
    spread: float = 0.0
    steady: bool = True


def in_turns(
    graph: Graph, seconds: Mapping[str, NodeSeconds], names: Sequence[str], pieces: int
) -> dict[str, str]:
    """Device of every node: runs of equal seconds, dealt in turn; colocated sets stay together."""
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


def fit_trial(
    trial: TrialRun, costs: Costs, cluster: Cluster, pool: WorkerPool, stages: Stages | None = None
) -> Fit:
    """The costs that best predict the programs: contention at least 1, messages at least 0.

    If rounds differ, the fastest count. The catalogue's CPU thread replaces an implausible cost.
    """
    seconds, count = costs.devices[trial.kind].nodes, len(trial.names)
    programs = [trial.program(cluster, seconds, count, GPipe(MICROBATCHES))]
    programs += [
        trial.program(cluster, seconds, PIECES * count, schedule)
        for schedule in (GPipe(MICROBATCHES), OneFOneB(MICROBATCHES))
    ]
    rounds: list[list[float]] = []
    what = f"trial run on {', '.join(trial.names)}"
    stages = stages or Stages()
    stages.part(what, 0, len(programs) * ROUNDS)
    while len(rounds) < ROUNDS or (_spread(rounds) > SPREAD and len(rounds) < ROUNDS + MORE_ROUNDS):
        rounds.append([])
        for program in programs:
            rounds[-1].append(trial.seconds(program, pool))
            done = sum(map(len, rounds))
            stages.part(what, done, len(programs) * max(ROUNDS, len(rounds)))
    spread = _spread(rounds)
    typical = statistics.median if spread <= SPREAD else min
    took = [typical(each) for each in zip(*rounds, strict=True)]
    contention, message_s = _explaining_costs(trial, costs, cluster, programs, took)
    usual = accelerator(CPU_THREAD).overheads
    assert usual is not None
    fit = Fit(
        usual.contention if contention is None else contention,
        usual.message_s if message_s is None else message_s,
        spread,
        spread <= SPREAD and contention is not None and message_s is not None,
    )
    slower, message_us = 100 * (fit.contention - 1), 1e6 * fit.message_s
    if fit.steady:
        log.info("Workers slow each other down by %.0f %%; each message costs %.0f µs.", slower, message_us)
    else:
        why = (
            f"rounds differ by {100 * spread:.0f} %"
            if spread > SPREAD
            else "no plausible cost explains the trial run"
        )
        log.warning(
            "How much %s slow each other down is uncertain (%s), most likely because other programs keep the "
            "machine busy. Predictions assume %.0f %% and %.0f µs per message; the next command measures "
            "again. Run it on a quiet machine for better predictions.",
            " and ".join(trial.names), why, slower, message_us,
        )  # fmt: skip
    return fit


def checked_trial(trial: TrialRun, costs: Costs, cluster: Cluster, pool: WorkerPool) -> tuple[float, float]:
    """Seconds with one piece on each device, predicted and measured (the nearer of two runs)."""
    program = trial.program(cluster, costs.devices[trial.kind].nodes, len(trial.names), GPipe(MICROBATCHES))
    predicted_s = simulate(program, cluster, costs).iteration_s
    took_s = trial.seconds(program, pool)
    if abs(took_s / predicted_s - 1) > FAR:
        took_s = min(took_s, trial.seconds(program, pool), key=lambda took_s: abs(took_s / predicted_s - 1))
    return predicted_s, took_s


def _spread(rounds: Sequence[Sequence[float]]) -> float:
    """Largest excess of a program's median round over its fastest; one slow round is ignored."""
    return max(statistics.median(each) / min(each) - 1 for each in zip(*rounds, strict=True))


def _explaining_costs(
    trial: TrialRun, costs: Costs, cluster: Cluster, programs: Sequence[Program], took: Sequence[float]
) -> tuple[float | None, float | None]:
    """(contention, message_s) that predict the programs best; None: implausible."""
    from scipy.optimize import least_squares

    count, processors = len(trial.names), cluster.device(trial.names[0]).processors
    most = max(min(count, processors or count), 2.0)

    def errors(x: NDArray[np.float64]) -> NDArray[np.float64]:
        contention, message_s = float(x[0]), float(x[1]) * MOST_MESSAGE_S
        tried = costs.with_device(trial.kind, contention=contention, message_s=message_s)
        return np.array([simulate(each, cluster, tried).iteration_s for each in programs]) / took - 1

    fitted = least_squares(errors, (1.05, 0.02), bounds=([1.0, 0.0], [most, 1.0]), diff_step=1e-3, xtol=1e-4)
    contention, messages = map(float, fitted.x)
    message_s = messages * MOST_MESSAGE_S if messages > LEAST else 0.0
    return contention if contention < most - NEAR else None, message_s if messages < 1 - NEAR else None
