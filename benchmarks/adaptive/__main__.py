"""A worker that becomes slow in the middle of a training, with a plan that stays and with one that changes.

    python -m benchmarks.adaptive                 # on 2 and on 4 CPU workers
    python -m benchmarks.adaptive --factor 4 --iterations 300

The busiest worker takes `--factor` times as long for all it computes, from a third of the training on: it
sleeps within every span, as a core does that is throttled. A chain of layers in double precision is trained
thrice from the same parameters: on workers as they are, and slowed with and without ``adapt``. Losses are
compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import netsplit
from benchmarks._command import command_parser
from netsplit.program import GPipe
from netsplit.runtime.recorder import TimelineRecorder
from netsplit.runtime.workers.messages import Worker
from netsplit.tables import Column, Table
from netsplit.training.adapt.adaptation import Decision

__all__ = ["main"]

WIDTH, LAYERS, SAMPLES, MICROBATCHES = 256, 12, 256, 4
COLUMNS = (
    Column("workers", "d"),
    Column("plan", text=True),
    Column("before, ms", ",.1f", 1e3),
    Column("slowed, ms", ",.1f", 1e3),
    Column("at the end, ms", ",.1f", 1e3),
    Column("samples/s at the end", ",.0f"),
    Column("searches, s", ",.2f"),
    Column("changes, ms", ",.1f", 1e3),
    Column("MiB moved", ",.2f", 2.0**-20),
    Column("largest loss difference", ".1e"),
)


@dataclass(frozen=True)
class Course:
    """One training: seconds of every iteration, what they were trained to, and what was decided."""

    seconds: list[float]
    losses: list[float]
    decisions: list[Decision]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser("adaptive", __doc__)
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[2, 4], help="number of workers (default: 2 4)"
    )
    parser.add_argument("--factor", type=float, default=6.0, help="slowdown of one worker (default: 6)")
    parser.add_argument(
        "--iterations", type=int, default=150, help="iterations of each training (default: 150)"
    )
    given = parser.parse_args(arguments)
    rows: list[tuple[Any, ...]] = []
    for workers in given.workers:
        usual = course(workers, given.iterations, 1.0, adapt=False)
        for adapt in (False, True):
            done = course(workers, given.iterations, given.factor, adapt)
            rows.append(_row(workers, "changed" if adapt else "kept", done, usual))
            print("\n".join(map(str, done.decisions)), flush=True)
    print(Table(COLUMNS, rows).markdown())
    return 0


def course(workers: int, iterations: int, factor: float, adapt: bool) -> Course:
    """A training of which the last two thirds have a slow worker."""
    done = Course([], [], [])
    with netsplit.parallelize(
        _model(), nn.CrossEntropyLoss(), _batch(0), cluster=workers, schedule=GPipe(MICROBATCHES),
        partitioner="m_topo", adapt=adapt, progress=False,
    ) as placed:  # fmt: skip
        if placed.adaptation is not None:
            placed.adaptation.left = iterations
        loads = placed.plan.loads
        busiest = max(range(workers), key=lambda rank: loads[f"cpu:{rank}"].compute_s)
        for n in range(iterations):
            if n == iterations // 3:
                placed.runtime.pool.call_one(busiest, _slow, factor)
            batch, made_s, began = _batch(n), placed.made_s, time.perf_counter()
            done.losses.append(placed.train_batch(*batch))
            done.seconds.append(time.perf_counter() - began - (placed.made_s - made_s))
        if placed.adaptation is not None:
            done.decisions.extend(placed.adaptation.decisions)
    return done


def _row(workers: int, plan: str, done: Course, usual: Course) -> tuple[Any, ...]:
    third = len(done.seconds) // 3
    end_s = statistics.median(done.seconds[-third // 2 :])
    return (
        workers,
        plan,
        statistics.median(done.seconds[third // 2 : third]),
        statistics.median(done.seconds[third : third + 10]),
        end_s,
        SAMPLES / end_s,
        sum(each.search_s for each in done.decisions),
        sum(each.switch_s for each in done.decisions),
        sum(each.nbytes for each in done.decisions),
        max(abs(a - b) for a, b in zip(done.losses, usual.losses, strict=True)),
    )


def _model() -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10)).double()


def _batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(SAMPLES, WIDTH, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(0, 10, (SAMPLES,), generator=generator)


def _slow(worker: Worker, factor: float) -> None:
    """All that the worker computes takes so many times as long from now on."""
    usual = TimelineRecorder.span

    @contextmanager
    def span(recorder: TimelineRecorder, *given: Any) -> Iterator[None]:
        with usual(recorder, *given):
            began = time.perf_counter()
            yield
            time.sleep((factor - 1.0) * (time.perf_counter() - began))

    TimelineRecorder.span = span  # type: ignore[method-assign]


if __name__ == "__main__":
    raise SystemExit(main())
