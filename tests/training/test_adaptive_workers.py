"""Real workers, one of which becomes slow or seems fast: the plan changes, the losses do not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import netsplit
from netsplit.partition import Dpos
from netsplit.program import GPipe
from netsplit.runtime.recorder import TimelineRecorder
from netsplit.runtime.workers.messages import Worker
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.training.adapt.adaptation import Adapt
from netsplit.training.parallel import ParallelModel
from tests.nets import SGD, TOLERANCE
from tests.runtime.references import Batch, plain_loop
from tests.workers import Pools, lent_to_sessions

WIDTH, SAMPLES, MICROBATCHES = 192, 256, 4
OFTEN = Adapt(every=6, window=3, search_s=1.0, horizon=100_000)
LONG = 120  # iterations, within which it is to have decided
pytestmark = pytest.mark.usefixtures("unmeasured")


def model() -> nn.Module:
    torch.default_generator.manual_seed(3)
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 5)).double()


def batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(SAMPLES, WIDTH, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, 5, (SAMPLES,), generator=generator)


def slow(worker: Worker, factor: float) -> None:
    """All that the worker computes takes so many times as long, from now on; 1: as it was."""
    usual = worker.memory.setdefault("usual span", TimelineRecorder.span)

    @contextmanager
    def span(recorder: TimelineRecorder, *given: Any) -> Iterator[None]:
        with usual(recorder, *given):
            began = time.perf_counter()
            yield
            time.sleep((factor - 1.0) * (time.perf_counter() - began))

    TimelineRecorder.span = usual if factor == 1.0 else span  # type: ignore[method-assign]


@contextmanager
def slowed(pool: WorkerPool, rank: int, factor: float) -> Iterator[None]:
    pool.call_one(rank, slow, factor)
    try:
        yield
    finally:
        if pool.connections:
            pool.call_one(rank, slow, 1.0)


@contextmanager
def parallel(pools: Pools, workers: int, **options: Any) -> Iterator[ParallelModel]:
    with (
        lent_to_sessions(pools),
        netsplit.parallelize(
            model(), nn.CrossEntropyLoss(), batch(0), cluster=workers, schedule=GPipe(MICROBATCHES),
            partitioner="m_topo", optimizer=SGD, progress=False, **options,
        ) as made,
    ):  # fmt: skip
        yield made


def assert_as_plain(placed: ParallelModel, losses: list[float]) -> None:
    batches: list[Batch] = [((inputs,), targets) for inputs, targets in map(batch, range(len(losses)))]
    wanted = plain_loop(model(), nn.CrossEntropyLoss(), batches, SAMPLES // MICROBATCHES, SGD)
    assert losses == pytest.approx(wanted.losses, rel=TOLERANCE)
    for key, tensor in placed.state_dict().items():
        torch.testing.assert_close(tensor, wanted.state[key], rtol=TOLERANCE, atol=TOLERANCE)


def operators_on(placed: ParallelModel, device: str) -> int:
    return sum(each == device for each in placed.plan.placement.device_of.values())


def test_a_worker_that_becomes_slow_in_training_loses_work_and_nothing_else_changes(pools: Pools) -> None:
    with parallel(pools, 2, adapt=OFTEN) as placed:
        adaptation = placed.adaptation
        assert adaptation is not None
        adaptation.methods = (Dpos(),)  # which takes no time that others could take from it
        losses = [placed.train_batch(*batch(n)) for n in range(20)]
        busiest = max(placed.plan.loads, key=lambda name: operators_on(placed, name))
        had, looks = operators_on(placed, busiest), len(adaptation.decisions)
        with slowed(pools(2), int(busiest[-1]), 25.0):
            while len(losses) < LONG and not any(
                each.outcome == "kept" for each in adaptation.decisions[looks:]
            ):
                losses.append(placed.train_batch(*batch(len(losses))))
            kept = [each for each in adaptation.decisions[looks:] if each.outcome == "kept"]
            assert kept, "\n".join(map(str, adaptation.decisions))
            assert operators_on(placed, busiest) < had
            assert kept[0].measured_after_s is not None
            assert kept[0].measured_after_s < kept[0].measured_before_s
            assert str(kept[0]) in str(placed.summary())
        assert_as_plain(placed, losses)
