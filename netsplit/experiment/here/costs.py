"""What a training step costs on workers that are here: predicted, kept where nothing changed, or measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from netsplit.cluster.cluster import Cluster
from netsplit.cluster.local import ClusterSpec
from netsplit.experiment.calibration import Calibration, calibrate, predicted_here
from netsplit.experiment.parts.measured_parts import KnownParts, MeasuredParts
from netsplit.experiment.stages import Stages
from netsplit.experiment.trial_run import Show
from netsplit.experiment.whole.in_turn import SizeSeconds, measured_in_turn
from netsplit.profile.costs import Costs
from netsplit.profile.measure.messages import trivial_step
from netsplit.profile.measure.stretches.in_turn import SizedStep
from netsplit.profile.measured import Measured, ProfileCache, default_folder
from netsplit.program.compile import compile_program
from netsplit.program.schedules import SingleBatch
from netsplit.runtime.controller.loaded import tell
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.settings import ProfileMode

__all__ = ["CostsHere", "controller_seconds"]

_UNSURE: dict[str, Measured] = {}  # of all sessions of this process, as those of a sweep's jobs


@dataclass(frozen=True)
class CostsHere:
    """Costs on a cluster of workers.

    Args:
        profile, kept: as `profile` and `profile_cache` of a session.
        stages, show: told how far measuring is.
        pool: the workers, which may be others after a failure.
        cluster: of them, with its links.
    """

    spec: ClusterSpec
    profile: ProfileMode
    kept: Path | None
    stages: Stages
    show: Show
    pool: Callable[[], WorkerPool]
    cluster: Callable[[], Cluster]
    _controller: list[float] = field(default_factory=list, init=False)  # `Costs.controller_s`, once measured

    @property
    def predicted(self) -> bool:
        return self.profile == "predicted"

    def of(self, task: Calibration, alone: bool = False) -> Costs:
        """Of a step on every kind of device.

        Args:
            alone: of single devices, without how they slow one another.
        """
        if self.predicted:
            costs = predicted_here(task.graph, task.optimizer, self.pool(), self.cluster())
        else:
            tell(self.pool(), [task.graph], task.optimizer)
            costs = calibrate(task, self.pool(), self.cluster(), self._cache, self.show, alone)
        if not self._controller and self.pool().deployed is None:
            self._controller.append(controller_seconds(self.pool(), self.cluster(), costs))
        return replace(costs, controller_s=sum(self._controller))

    def in_turn(self, steps: Sequence[SizedStep], values: dict[str, Tensor]) -> SizeSeconds:
        """What whole micro-batches of several sizes take beside one another."""
        return measured_in_turn(steps, values, self.pool(), self.cluster(), self._cache)

    def parts(self, task: Calibration, whole: Costs, known: KnownParts | None = None) -> MeasuredParts | None:
        """What will measure operators in parts; None where seconds are predicted.

        Args:
            whole: costs of the step's operators.
            known: of parts of the same step at other sizes; added to.
        """
        if self.predicted:
            return None
        known = {} if known is None else known
        return MeasuredParts(task, whole, self.pool, self.cluster(), self._cache, self.stages.note, known)

    @cached_property
    def _cache(self) -> ProfileCache:
        folder = None if self.profile == "off" else self.kept or default_folder()
        return ProfileCache(folder, self.profile == "refresh", _UNSURE)


REPEATS = 24


def controller_seconds(pool: WorkerPool, cluster: Cluster, costs: Costs) -> float:
    """Seconds of an iteration of one number on the first worker, less its instructions.

    The bytes of a batch are not counted, nor what a dataset takes to read.

    Args:
        costs: what an instruction takes there.
    """
    name, graph = cluster.devices[0].name, trivial_step()
    program = compile_program(graph, {"mul": name}, {"mul": 0}, cluster, SingleBatch())
    runtime = DistributedRuntime(program, pool, {"w": torch.ones(1, dtype=torch.float32)}, None)
    batch, seconds = torch.ones(1, dtype=torch.float32), []
    for _ in range(REPEATS):
        began = time.perf_counter()
        runtime.train_batch(batch)
        seconds.append(time.perf_counter() - began)
    pool.deployed = None
    instructions_s = len(program.instructions[name]) * costs.of(cluster.devices[0].kind).instruction_s
    return max(sorted(seconds)[REPEATS // 4] - instructions_s, 0.0)
