"""Seconds of an iteration, and bytes that the controller sends in it, by who reads the batches.

    python -m benchmarks.feeding --size 224 --batch 32 --workers 0 2

A small model on large pictures, split over two processes. The two ways take turns in one run, so that what
else keeps the machine busy falls on both; what counts are the ratios.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import netsplit
from netsplit.data import Data
from netsplit.data.reading.own import ReadingKeys, as_data
from netsplit.runtime.workers import pool as pools
from netsplit.training.epochs import fit

ROUNDS, ITERATIONS = 3, 14


@dataclass(frozen=True)
class Pictures:
    """Random pictures and classes, made of an index in about as long as reading them would take."""

    size: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(index)
        whole = torch.randint(256, (3, self.size, self.size), dtype=torch.uint8, generator=draw)
        return whole.float() / 255, torch.tensor(index % 10)


class Sent:
    """Bytes of all messages to workers."""

    def __init__(self) -> None:
        self.nbytes = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        packed = pools.packed

        def counting(message: object) -> bytes:
            content = packed(message)
            self.nbytes += len(content)
            return content

        pools.packed = counting  # type: ignore[attr-defined]
        try:
            yield
        finally:
            pools.packed = packed  # type: ignore[attr-defined]


def model() -> nn.Module:
    """Looks at every pixel once, then at few numbers."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 8, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 64),
        nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def measured(parallel: Any, data: Data) -> tuple[float, float]:
    """Median seconds and mean bytes of an iteration."""
    sent = Sent()
    with sent.counted():
        history = fit(parallel, data, epochs=1, metric=None, drop_last=True)
    return statistics.median(it.seconds for it in history.iterations[3:]), sent.nbytes / ITERATIONS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--partitioner", default="balanced")
    asked = parser.parse_args()
    pictures = Pictures(asked.size, asked.batch * ITERATIONS)
    example = torch.rand(asked.batch, 3, asked.size, asked.size), torch.zeros(asked.batch, dtype=torch.long)
    descent = partial(torch.optim.SGD, lr=0.01)
    with netsplit.parallelize(
        model(),
        nn.CrossEntropyLoss(),
        example,
        partitioner=asked.partitioner,
        schedule="gpipe",
        optimizer=descent,
    ) as parallel:
        for workers in asked.workers:
            seconds: dict[str, list[float]] = {"controller": [], "workers": []}
            nbytes: dict[str, float] = {}
            for _, reader in itertools.product(range(ROUNDS), seconds):
                keys = ReadingKeys(workers=workers, read_by=reader)  # type: ignore[arg-type]
                took, nbytes[reader] = measured(parallel, as_data(pictures, "pictures", keys))
                seconds[reader].append(took)
            own = {reader: statistics.median(took) for reader, took in seconds.items()}
            print(f"dataset.workers={workers}, batches of {asked.batch} x 3 x {asked.size} x {asked.size}")
            for reader, took in own.items():
                print(f"  read_by={reader:10}  {1e3 * took:7.1f} ms  {nbytes[reader] / 2**20:8.3f} MiB sent")
            print(f"  workers / controller  {own['workers'] / own['controller']:.2f}")


if __name__ == "__main__":
    main()
