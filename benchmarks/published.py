"""Training runs that others measured on real clusters, beside what is predicted of them.

    python -m benchmarks.published                      # every run: minutes to hours
    python -m benchmarks.published --runs 8B --no-plan  # those of that name, without a plan of ours
    python -m benchmarks.published --fit                # rates fitted to one system, tried on the other

A run is given as its authors ran it: degrees, slices, recomputation, schedule, micro-batches, precision. Then
`schedule=auto` plans the same step on the same cluster, and is predicted in the same way.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from statistics import median
from typing import Literal

import numpy as np
import torch
from torch import nn

import netsplit
from benchmarks._command import command_parser
from benchmarks.gpt import GPT
from benchmarks.llama import SIZES, Llama, next_token_loss
from netsplit.cluster.catalogue import SUSTAINED
from netsplit.cluster.described import ClusterDescription, uniform_cluster
from netsplit.errors import NetSplitError
from netsplit.placement.parallelism import Parallelism
from netsplit.planning.plan import Plan
from netsplit.program import Interleaved, OneFOneB, Schedule
from netsplit.tables import Column, Table

__all__ = ["RUNS", "Master", "Run", "main"]

GIB = 2**30
SystemName = Literal["torchtitan", "Megatron-LM"]


class Master(torch.optim.Optimizer):
    """Adam's states for parameters in half precision: a copy and two moments in single precision."""

    def __init__(self, params: Sequence[nn.Parameter]) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                for name in ("copy", "mean", "square") if parameter.grad is not None else ():
                    self.state[parameter].setdefault(name, torch.zeros(parameter.shape))


@dataclass(frozen=True)
class Run:
    """One published run: the model, how it was trained, and what was measured."""

    system: SystemName
    name: str
    model: Callable[[], nn.Module]
    dtype: torch.dtype
    length: int  # tokens of a sample
    samples: int  # of the whole batch
    device: str
    links: tuple[float, float]  # bytes/s of a GPU within its host, and to another
    given: Parallelism
    microbatch: int  # samples of a micro-batch of one replica
    seconds: float  # of a step, as published
    gib: float | None = None  # of a GPU, at most
    eight_bit: bool = False  # its products were in 8 bits, and are predicted in 16: tells an order alone

    @property
    def schedule(self) -> Schedule:
        kind = Interleaved if self.given.chunks > 1 else OneFOneB
        return kind(self.samples // self.microbatch)

    def cluster(self, sustained: float = SUSTAINED) -> ClusterDescription:
        """Hosts of eight GPUs, each with a NIC; `sustained` in the place of the catalogue's."""
        inside, between = self.links
        hosts = self.given.devices // 8
        cluster = uniform_cluster(
            [8, hosts] if hosts > 1 else 8,
            [inside, between] if hosts > 1 else inside,
            latency=[1e-5, 2e-5] if hosts > 1 else 1e-5,
            nic=8 * between if hosts > 1 else "auto",
            model=self.device,
            name=f"{self.given.devices} x {self.device}",
            collectives="nccl",
        )
        rates = next(iter(cluster.accelerators.values()))
        half = {
            kind: each if each.start is None else replace(each, compute=each.compute * sustained / SUSTAINED)
            for kind, each in rates.half_efficiency.items()
        }
        return replace(
            cluster, accelerators=dict.fromkeys(cluster.accelerators, replace(rates, half_efficiency=half))
        )

    def plan(self, given: bool, sustained: float = SUSTAINED) -> Plan:
        """The run as published, or as `schedule=auto` would have it."""
        tokens = torch.zeros(self.samples, self.length, dtype=torch.long, device="meta")
        return netsplit.plan(
            self.model().to(self.dtype),
            next_token_loss,
            (tokens, tokens),
            self.cluster(sustained),
            schedule=self.schedule if given else netsplit.AutoSchedule(splits=True),
            given=self.given if given else None,
            optimizer=Master,
        )


def _torchtitan() -> Iterator[Run]:
    """github.com/pytorch/torchtitan, benchmarks/: Llama 3.1 on H100 of 96 GB and 500 W, 400 Gb/s a GPU."""
    for size, devices, tensor, compiled, recompute, local, rate, gib in (
        ("8B", 8, 1, False, "selective", 2, 5762, 82.4),
        ("8B", 8, 1, True, "selective", 2, 6667, 77.0),
        ("8B", 128, 1, False, "selective", 2, 5605, 67.0),
        ("8B", 128, 1, True, "selective", 2, 6514, 62.0),
        ("8B", 64, 8, True, "selective", 12, 4378, None),
        ("70B", 256, 8, True, "full", 16, 597.3, None),
    ):
        data = devices // tensor
        given = Parallelism(data, tensor, 1, "parameters", tensor > 1, recompute)  # type: ignore[arg-type]
        device = "H100-SXM-96GB" + (" compiled" if compiled else "")
        yield Run(
            "torchtitan", f"{size} on {devices}{', compiled' if compiled else ''}",
            partial(Llama, SIZES[size], 8192), torch.bfloat16, 8192, local * data, device, (370e9, 47e9),
            given, local, local * 8192 / tensor / rate, gib,
        )  # fmt: skip

    for chunks, rate, gib in ((1, 100, 82.5), (2, 128, 72.7)):
        given = Parallelism(8, 8, 8, "gradients", True, "full", chunks)
        yield Run(
            "torchtitan", f"405B on 512, {'interleaved' if chunks > 1 else '1f1b'}, 8 bits",
            partial(Llama, SIZES["405B"], 8192), torch.bfloat16, 8192, 256, "H100-SXM-96GB compiled",
            (370e9, 47e9), given, 4, 32 * 8192 / 64 / rate, gib, True,
        )  # fmt: skip


def _megatron() -> Iterator[Run]:
    """Narayanan et al., SC 2021, table 1; micro-batches and chunks as in examples/sc21/run_table_1.sh of
    github.com/NVIDIA/Megatron-LM. A100 of 80 GB, eight NICs of 200 Gb/s a host. Its FLOPs count the forward
    twice, as all of it is computed again."""
    for billion, heads, width, layers, tensor, pipeline, devices, samples, tflops, microbatch, chunks in (
        (1.7, 24, 2304, 24, 1, 1, 32, 512, 137, 16, 1),
        (3.6, 32, 3072, 30, 2, 1, 64, 512, 138, 16, 1),
        (7.5, 32, 4096, 36, 4, 1, 128, 512, 142, 16, 1),
        (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135, 8, 1),
        (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138, 4, 1),
        (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140, 2, 3),
        (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148, 2, 2),
        (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155, 1, 2),
        (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163, 1, 3),
        (1008, 160, 25600, 128, 8, 64, 3072, 3072, 163, 1, 1),
    ):
        length, words = 2048, 51_200
        once = 1 + length / (6 * width) + words / (16 * layers * width)
        flops = 96.0 * samples * length * layers * width**2 * once
        yield Run(
            "Megatron-LM", f"GPT {billion}B on {devices}",
            partial(GPT, layers, width, heads, length, words), torch.float16, length, samples,
            "A100-SXM4-80GB", (235e9, 24e9),
            Parallelism(devices // tensor // pipeline, tensor, pipeline, recompute="full", chunks=chunks),
            microbatch, flops / devices / tflops / 1e12,
        )  # fmt: skip


RUNS = (*_torchtitan(), *_megatron())

_COLUMNS = (
    Column("run"), Column("as published"), Column("s", ".2f"), Column("predicted s", ".2f"),
    Column("error %", "+.0f"), Column("GiB", ".1f"), Column("predicted GiB", ".1f"), Column("our plan"),
    Column("its s", ".2f"),
)  # fmt: skip


def row_of(run: Run, planned: bool) -> tuple[object, ...]:
    """A row of the table; what cannot be planned is said in the place of the plan."""
    as_published = run.plan(given=True)
    peak = max(as_published.peak_bytes.values())
    ours, ours_s = "", None
    if planned:
        try:
            plan = run.plan(given=False)
            chosen = plan.choice.frontier[0]
            how = plan.choice.parallelism or f"{chosen.kind}: {chosen.placement}"
            ours, ours_s = (
                f"{how}, {chosen.schedule}, {plan.schedule.microbatches} micro-batches",
                plan.iteration_s,
            )
        except NetSplitError as error:
            ours = str(error)
    error = 100 * (as_published.iteration_s / run.seconds - 1)
    predicted = as_published.iteration_s, error, run.gib, peak / GIB
    return (run.name, str(run.given), run.seconds, *predicted, ours, ours_s)


@dataclass(frozen=True)
class _Line:
    """Seconds of a run by how much kernels sustain: `rest + work / sustained`."""

    run: Run

    @cached_property
    def ends(self) -> tuple[float, float]:
        one, other = (self.run.plan(True, SUSTAINED * k).iteration_s for k in (1.0, 0.8))
        work = (other - one) / (1 / (0.8 * SUSTAINED) - 1 / SUSTAINED)
        return one - work / SUSTAINED, work

    def error(self, sustained: float) -> float:
        rest, work = self.ends
        return (rest + work / sustained) / self.run.seconds - 1


def fitted(lines: Sequence[_Line]) -> float:
    """What is sustained where errors are least on the whole."""
    tried = np.linspace(0.5, 1.0, 501)
    return float(min(tried, key=lambda each: sum(abs(line.error(each)) for line in lines)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser: argparse.ArgumentParser = command_parser("published", __doc__)
    parser.add_argument("--runs", default="", help="part of the names of the runs wanted (default: all)")
    parser.add_argument("--no-plan", action="store_true", help="without plans of ours")
    parser.add_argument("--fit", action="store_true", help="fit to each system and try on the other")
    options = parser.parse_args(arguments)
    runs = [run for run in RUNS if options.runs in f"{run.system} {run.name}"]
    if options.fit:
        lines = [_Line(run) for run in runs if not run.eight_bit]
        for system in sorted({run.system for run in runs}):
            sustained = fitted([line for line in lines if line.run.system == system])
            others = [100 * line.error(sustained) for line in lines if line.run.system != system]
            print(
                f"fitted to {system}: {sustained:.3f}; errors of the others, %: "
                + ", ".join(f"{each:+.0f}" for each in others)
                + f"; median {median(map(abs, others)):.1f}, worst {max(map(abs, others)):.1f}"
            )
        return 0
    rows = []
    for run in runs:
        rows.append(row_of(run, not options.no_plan))
        print(Table(_COLUMNS, rows[-1:]).markdown().splitlines()[-1], flush=True)
    print(Table(_COLUMNS, rows).markdown())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
