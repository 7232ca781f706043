"""Ctrl-C by a real signal to this process: no worker is left, and what it came in can be gone on with."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from numba.core.registry import cpu_target
from torch import Tensor, nn

import netsplit
from netsplit.graph.batches.batch import Batch
from netsplit.interrupts import interrupts_held
from netsplit.progress import Stages
from netsplit.runtime.workers.messages import Worker
from netsplit.training.captures import checked_capture
from netsplit.training.parallel import ParallelModel
from tests.workers import Pools, lent_to_sessions

CLUSTER = replace(netsplit.cpu_cluster(2), latency_s=1e-5, bandwidth=1e9)


@pytest.fixture(scope="module", autouse=True)
def _numba_is_whole() -> None:
    """An import that Ctrl-C breaks off would stay half for all later tests."""
    cpu_target.target_context.refresh()


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def pressed_after(seconds: float) -> Iterator[None]:
    """Ctrl-C comes so long after the beginning, in the block in any case."""
    timer = threading.Timer(seconds, press)
    timer.start()
    try:
        yield
        timer.join()
        time.sleep(0.01)
    finally:
        timer.join()


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 16),
        nn.BatchNorm1d(16), nn.Linear(16, 3),
    )  # fmt: skip


def batches(count: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [
        (torch.randn(16, 6, generator=draw), torch.randint(0, 3, (16,), generator=draw)) for _ in range(count)
    ]


def split(**options: Any) -> ParallelModel:
    given = {
        "cluster": CLUSTER,
        "partitioner": "balanced",
        "schedule": "gpipe",
        "profile": "predicted",
    } | options
    return netsplit.parallelize(model(), nn.CrossEntropyLoss(), batches(1)[0], **given)


def started() -> list[psutil.Process]:
    """What runs below this process."""
    return psutil.Process().children(recursive=True)


def none_left(before: list[psutil.Process]) -> bool:
    return not psutil.wait_procs([each for each in started() if each not in before], timeout=10)[1]


# --- the block ----------------------------------------------------------------------------------------


def test_an_interrupt_waits_for_the_end_of_the_outermost_block() -> None:
    done = []

    def block() -> None:
        with interrupts_held():
            with interrupts_held():
                press()
                done.append("inner")
            done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_waits_for_the_end_of_a_capture(tmp_path: Path) -> None:
    """An exception that leaves what torch's dispatcher calls would end the process."""

    class Pressed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            press()
            (tmp_path / "forward").touch()
            return self.scale * x

    call = nn.Module.__call__
    batch = Batch.of(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(KeyboardInterrupt):
        checked_capture(Pressed(), nn.MSELoss(), batch, check=False)
    assert (tmp_path / "forward").exists()
    assert nn.Module.__call__ is call


# --- calls --------------------------------------------------------------------------------------------


def _slowly(worker: Worker, words: str) -> str:
    time.sleep(0.5)
    return f"{words} {worker.rank}"


def _at_once(worker: Worker, words: str) -> str:
    return f"{words} {worker.rank}"


def test_saving_that_is_interrupted_leaves_one_whole_checkpoint_and_nothing_else(
    pools: Pools, tmp_path: Path
) -> None:
    draw = random.Random(5)
    with lent_to_sessions(pools), split() as parallel:
        parallel.save_checkpoint(tmp_path / "one", {"step": 0})
        for step in range(1, 25):
            try:
                with pressed_after(draw.uniform(0.0, 0.08)):
                    parallel.save_checkpoint(tmp_path / "one", {"step": step})
            except KeyboardInterrupt:
                pass
            assert [place.name for place in tmp_path.iterdir()] == ["one"]
        parallel.save_checkpoint(tmp_path / "one", {"step": 25})
        assert parallel.load_checkpoint(tmp_path / "one") == {"step": 25}


def test_a_late_answer_is_none_to_the_next_call(pools: Pools) -> None:
    pool = pools(2)
    for call in (lambda: pool.call(_slowly, "late"), lambda: pool.call_one(1, _slowly, "late")):
        with pytest.raises(KeyboardInterrupt), pressed_after(0.1):
            call()
        assert pool.call_one(0, _at_once, "one") == "one 0"
        assert pool.call(_at_once, "next") == ["next 0", "next 1"]
    assert not pool.failed


# --- training -----------------------------------------------------------------------------------------


def test_a_training_that_is_interrupted_again_and_again_is_the_training(pools: Pools) -> None:
    """Batches, predictions and states are interrupted at drawn moments; a batch counts wholly or not."""
    data, draw = batches(12), random.Random(5)

    def run(interrupted: bool) -> tuple[dict[str, Tensor], int]:
        stops = 0
        with split(schedule="1f1b") as parallel:
            parallel.train_batch(*data[0])
            began = time.perf_counter()
            parallel.train_batch(*data[1])
            took_s = time.perf_counter() - began
            while (done := parallel.trained_batches) < len(data):
                if not interrupted or draw.random() < 0.3:
                    parallel.train_batch(*data[done])
                    continue
                act: Callable[[], object] = draw.choice([
                    lambda: parallel.train_batch(*data[done]),
                    lambda: parallel.train_batch(*data[done]),
                    lambda: parallel.predict(data[done][0]),
                    parallel.state_dict,
                ])  # fmt: skip
                try:
                    with pressed_after(draw.uniform(0, took_s)):
                        act()
                except KeyboardInterrupt:
                    stops += 1
            return parallel.state_dict(), stops

    with lent_to_sessions(pools):
        wanted, _ = run(False)
        got, stops = run(True)
    assert stops > 3
    assert all(torch.equal(got[key], tensor) for key, tensor in wanted.items())


# --- start and end ------------------------------------------------------------------------------------


@contextmanager
def pressed_in(stage: str, delay_s: float) -> Iterator[None]:
    """Ctrl-C comes a moment after a stage of `parallelize` begins."""
    timers: list[threading.Timer] = []
    begin = Stages.stage

    def noted(self: Stages, name: str, *args: Any) -> None:
        begin(self, name, *args)
        if name.startswith(stage):
            timers.append(threading.Timer(delay_s, press))
            timers[-1].start()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stages, "stage", noted)
        try:
            yield
        finally:
            for timer in timers:
                timer.join()
    assert len(timers) == 1


@pytest.mark.parametrize(
    ("stage", "delay_s"),
    [
        ("starting", 0.4),
        ("plan", 0.5),
        *(pytest.param(stage, delay_s, marks=pytest.mark.slow)
          for stage in ("capture", "starting", "probing", "measuring", "trial", "plan", "sending")
          for delay_s in (0.0, 1.0)),
    ],
)  # fmt: skip
def test_parallelize_interrupted_leaves_no_process(stage: str, delay_s: float) -> None:
    before, options = started(), {}
    if stage in ("probing", "measuring", "trial"):
        options = {"cluster": netsplit.cpu_cluster(2), "profile": "off"}
    if stage == "plan":
        options = {"partitioner": "auto"}

    def train() -> None:
        with pressed_in(stage, delay_s), split(**options) as parallel:
            while True:
                parallel.train_batch(*batches(1)[0])

    with pytest.raises(KeyboardInterrupt):
        train()
    assert none_left(before)
