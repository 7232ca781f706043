"""A case as a graph, a program, a trained state: what the tests of equivalence have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from netsplit.graph import Graph, capture, initial_values
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program import Program, Schedule
from netsplit.program.schedules import (
    ZBH1,
    ZBV,
    DualPipeV,
    EagerOneFOneB,
    GPipe,
    Interleaved,
    OneFOneB,
    Searched,
    SingleBatch,
    VHalf,
    VMin,
)
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.share import OptimizerFactory
from netsplit.runtime.workers.pool import WorkerPool
from tests.builders import compile_placed, cpus
from tests.nets import CASES, DRAWING, DROPPED, SGD, STAGES, TOLERANCE, Case, placements
from tests.runtime.references import Batch, Trained, plain_loop

Placed = tuple[dict[str, str], dict[str, int]]  # device and priority of every node

__all__ = [
    "PATIENT",
    "SCHEDULES",
    "Placed",
    "assert_close",
    "assert_same",
    "batches_of",
    "by_stage",
    "captured",
    "captured_for",
    "chain_of",
    "compiled",
    "cut",
    "local",
    "on_workers",
    "parameters_of",
    "plain",
    "scattered",
]

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
_PLAIN: dict[str, Schedule] = {
    "single_batch": SingleBatch(),
    "gpipe": GPipe(4),
    "1f1b": OneFOneB(4),
    "eager_1f1b": EagerOneFOneB(4),
    "interleaved_1f1b": Interleaved(4),
}
SCHEDULES: dict[str, Schedule] = {
    **_PLAIN,
    **{f"{name}+recompute": replace(each, recompute=True) for name, each in _PLAIN.items()},  # type: ignore[type-var]
    **{f"{name}+delayed": replace(each, delay_weights=True) for name, each in _PLAIN.items()},  # type: ignore[type-var]
    "eager_1f1b+minimal": EagerOneFOneB(4, delay_weights="minimal"),
    "gpipe+recompute+delayed": GPipe(4, recompute=True, delay_weights=True),
    "zb_h1": ZBH1(4),
    "zb_h1+recompute": ZBH1(4, recompute=True),
    "zb_v": ZBV(4),
    "zb_v+recompute": ZBV(4, recompute=True),
    "v_half": VHalf(4),
    "v_min": VMin(4),
    "v_min+recompute": VMin(4, recompute=True),
    "dualpipe_v": DualPipeV(4),
    "searched": Searched(4),
    "searched+recompute": Searched(4, kept=0.5, recompute=True),
}
"""Every synchronous schedule, with each of its options."""
_ALL = {case.name: case for case in (*CASES.values(), STAGES, DROPPED, DRAWING)}


@cache
def captured(name: str, size: int) -> Graph:
    """A case's training step on `size` samples."""
    case = _ALL[name]
    return capture(case.fresh(), case.loss, case.another(0, size))


def captured_for(case: Case, schedule: Schedule, batch_size: int = 8) -> Graph:
    """The training step at the micro-batch size."""
    return captured(case.name, schedule.microbatch_size(batch_size))


def cut(graph: Graph, at: Sequence[float]) -> dict[str, str]:
    """Placement that goes to the next device at each of these parts of the graph's order."""
    count = len(graph)
    device_of = {name: f"cpu:{sum(i >= part * count for part in at)}" for i, name in enumerate(graph.nodes)}
    for group in graph.colocated:
        device_of.update(dict.fromkeys(group, device_of[group[0]]))
    return device_of


def by_stage(graph: Graph, device_of_stage: Sequence[str]) -> dict[str, str]:
    """Placement of the case "stages"; the loss goes with the last stage."""
    last = len(device_of_stage) - 1
    stages = {}
    for node in graph:
        first = node.module.split(".")[0]
        stages[node.name] = device_of_stage[int(first) if first.isdigit() else last]
    return stages


def compiled(
    graph: Graph, placed: Placed | dict[str, str], devices: int, schedule: Schedule, **options: Any
) -> Program:
    device_of, priority = placed if isinstance(placed, tuple) else (placed, graph.position)
    if schedule.delay_weights == "minimal":  # in these seconds splitting pays wherever a gradient travels
        seconds = {node.name: NodeSeconds(1.0, 2.0, float(bool(node.initializers))) for node in graph}
        options["costs"] = Costs({"cpu": DeviceCosts(seconds)}, 2)
    return compile_placed(graph, device_of, priority, cpus(devices), schedule, **options)


def batches_of(case: Case, steps: int = 2) -> list[Batch]:
    """Two steps by default: the second has moments, statistics and weights that the first left."""
    return [case.another(seed) for seed in range(steps)]


@cache
def plain(name: str, size: int, steps: int = 2, group: int = 1, clip_norm: float | None = None) -> Trained:
    """What the plain loop makes of a case's batches; many tests split the same one."""
    case = _ALL[name]
    batches = batches_of(case, steps)
    return plain_loop(case.fresh(), case.loss, batches, size, SGD, group=group, clip_norm=clip_norm)


def local(
    program: Program, case: Case, batches: Sequence[Batch], optimizer: OptimizerFactory = SGD, **options: Any
) -> Trained:
    """Trained in this process, from the case's fresh parameters."""
    cluster = cpus(len(program.devices))
    runtime = LocalRuntime(program, cluster, _values(program, case), optimizer, **options)
    losses = [runtime.train_batch(*batch) for batch in batches]
    return Trained(losses, runtime.state())


def on_workers(
    program: Program,
    case: Case,
    batches: Sequence[Batch],
    pool: WorkerPool,
    optimizer: OptimizerFactory = SGD,
    **options: Any,
) -> Trained:
    """The same on worker processes."""
    runtime = DistributedRuntime(program, pool, _values(program, case), optimizer, **options)
    losses = [runtime.train_batch(*batch) for batch in batches]
    return Trained(losses, runtime.state())


def _values(program: Program, case: Case) -> dict[str, Tensor]:
    return initial_values(case.fresh(), program.graph)


def assert_same(trained: Trained, wanted: Trained, tolerance: float = TOLERANCE) -> None:
    """Equal losses and tensors. Of tied parameters the program has one name, plain PyTorch several."""
    assert trained.losses == pytest.approx(wanted.losses, rel=tolerance)
    assert_close(trained.state, wanted.state, tolerance)


def assert_close(trained: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = TOLERANCE) -> None:
    both = trained.keys() & wanted.keys()
    for key in both:
        torch.testing.assert_close(
            trained[key], wanted[key], rtol=tolerance, atol=tolerance, msg=partial("{}: {}".format, key)
        )
    for key in set(wanted) - both:
        assert any(torch.equal(wanted[key], wanted[k]) for k in both), f"{key} is missing"


def chain_of(case: Case) -> nn.Sequential:
    model = case.fresh()
    assert isinstance(model, nn.Sequential)
    return model


def parameters_of(case: Case, trained: Trained) -> Trained:
    """Without the buffers, of which every replica has its own."""
    names = {name for name, _ in case.fresh().named_parameters()}
    return Trained(trained.losses, {k: t for k, t in trained.state.items() if k in names})


def scattered(data: st.DataObject, graph: Graph, devices: int) -> Placed:
    """A drawn placement on more than one device; what hypothesis draws first has all on one."""
    placed = data.draw(placements(graph, devices), label="placement")
    assume(len(set(placed[0].values())) > 1)
    return placed
