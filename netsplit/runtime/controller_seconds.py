"""What the controller adds to an iteration, measured on the workers."""

from __future__ import annotations

import time

import torch

from netsplit.cluster.cluster import Cluster
from netsplit.placement.placement import Placement
from netsplit.profile.costs import Costs
from netsplit.profile.measure.clock import trivial_step
from netsplit.program.compile import compile_program
from netsplit.program.schedules import SingleBatch
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.workers.pool import WorkerPool

__all__ = ["controller_seconds"]

REPEATS = 24


def controller_seconds(pool: WorkerPool, cluster: Cluster, costs: Costs) -> float:
    """Seconds of an iteration of one number on the first worker, less its instructions.

    The bytes of a batch are not counted, nor what a dataset takes to read.

    Args:
        costs: what an instruction takes there.
    """
    name, graph = cluster.devices[0].name, trivial_step()
    program = compile_program(graph, Placement.given({"mul": name}, {"mul": 0}), cluster, SingleBatch())
    runtime = DistributedRuntime(program, pool, {"w": torch.ones(1, dtype=torch.float32)}, None)
    batch, seconds = torch.ones(1, dtype=torch.float32), []
    for _ in range(REPEATS):
        began = time.perf_counter()
        runtime.train_batch(batch)
        seconds.append(time.perf_counter() - began)
    pool.deployed = None
    instructions_s = len(program.instructions[name]) * costs.of(cluster.devices[0].kind).instruction_s
    return max(sorted(seconds)[REPEATS // 4] - instructions_s, 0.0)
