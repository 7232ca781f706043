"""Steps in one process, whose devices are all the same GPU, or a GPU and the CPU."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.plain import SGD, TOLERANCE, batches_of, difference, net, plain, strict
from netsplit.cluster.cluster import Cluster, Device, Link
from netsplit.graph import capture, initial_values
from netsplit.graph.ir import Graph
from netsplit.placement.placement import Placement, SolverReport, Stage
from netsplit.program import Schedule, compile_program
from netsplit.program.schedules import ZBH1, GPipe, OneFOneB
from netsplit.runtime.local import LocalRuntime

__all__ = ["overhead", "race", "schedules", "tests"]

MICROBATCHES, SAMPLES, STEPS = 4, 64, 3
LOSS = nn.CrossEntropyLoss()
TESTS = ("runtime/offload/test_training.py", "graph/test_autocast.py", "profile/measure")


def schedules(device: str) -> dict[str, Any]:
    """Four devices, all of them `device`: schedules, recomputation and replicas beside plain PyTorch; what is
    drawn at random is the same on one device and on four."""
    strict()
    asked: dict[str, Schedule] = {
        "gpipe": GPipe(MICROBATCHES),
        "1f1b": OneFOneB(MICROBATCHES),
        "zb_h1": ZBH1(MICROBATCHES),
        "1f1b+recompute": replace(OneFOneB(MICROBATCHES), recompute=True),
    }
    batches = batches_of(STEPS, SAMPLES)
    wanted = plain(net(), LOSS, batches, MICROBATCHES, device)
    apart = {
        name: difference(*_trained(net(), batches, each, [device] * 4), wanted)
        for name, each in asked.items()
    }
    # BatchNorm's buffers belong to each replica, and are not compared.
    parameters = {name for name, _ in net().named_parameters()}
    losses, state = _trained(net(), batches, asked["gpipe"], [device] * 2, replicas=True)
    some = {name: tensor for name, tensor in wanted[1].items() if name in parameters}
    apart["replicas"] = difference(losses, state, (wanted[0], some))
    alone = _trained(net(dropout=0.3), batches, asked["gpipe"], [device])
    apart["dropout"] = difference(*_trained(net(dropout=0.3), batches, asked["1f1b"], [device] * 4), alone)
    return {"largest_difference": apart, "tolerance": TOLERANCE}


def race(device: str) -> dict[str, Any]:
    """A GPU and the CPU in turn, with tensors of some MiB: the host reads nothing before it is there."""
    strict()
    width, steps = 64 if device == "cpu" else 1024, 200
    batches = batches_of(4, 256, width) * (steps // 4)
    wanted = plain(net(width, 2), LOSS, batches, MICROBATCHES, device)
    trained = _trained(net(width, 2), batches, OneFOneB(MICROBATCHES), [device, "cpu", device, "cpu"])
    return {
        "largest_difference": {"gpu and cpu": difference(*trained, wanted)},
        "tolerance": 1e-6,  # 200 steps amplify the last bit of sums in another order
        "iterations": steps,
    }


class Scale(nn.Module):
    """One operator, of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def overhead(device: str) -> dict[str, Any]:
    """CPU time of an instruction on tensors of one element, two devices in this process.

    `own` is without what plain PyTorch takes for the same operators.
    """
    torch.set_num_threads(1)
    m, loss = 16, nn.MSELoss()
    batch = torch.ones(m, 1), torch.zeros(m, 1)
    runtime = _runtime(nn.Sequential(Scale(), Scale()), loss, batch, GPipe(m), [device] * 2)
    model = nn.Sequential(Scale(), Scale()).to(device)
    steps = SGD(model.parameters())

    def plainly() -> None:
        for x, t in zip(*(each.to(device).chunk(m) for each in batch), strict=True):
            (loss(model(x), t) / m).backward()
        steps.step()
        steps.zero_grad()

    ours, theirs = _cpu_seconds(lambda: runtime.train_batch(*batch), plainly)
    instructions = sum(map(len, runtime.program.instructions.values()))
    return {
        "us_per_instruction": 1e6 * ours / instructions,
        "own_us_per_instruction": 1e6 * (ours - theirs) / instructions,
        "instructions": instructions,
    }


def _cpu_seconds(*runs: Callable[[], object]) -> list[float]:
    """CPU seconds of each, run in turn: the lower quartile of 100."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(100):
        for run, own in zip(runs, seconds, strict=True):
            began = time.process_time()
            run()
            own.append(time.process_time() - began)
    return [sorted(own)[25] for own in seconds]


def tests(device: str) -> dict[str, Any]:
    """The tests that need CUDA, by pytest."""
    if importlib.util.find_spec("pytest") is None:
        return {"failed": 0, "passed": 0, "skipped": "pytest is not installed here"}
    root = Path(__file__).parents[2] / "tests"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "gpu or cuda"]
    done = subprocess.run(
        [*command, *(str(root / name) for name in TESTS)], capture_output=True, text=True, check=False
    )
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped)", done.stdout)}
    return {"passed": 0, "failed": 0, "skipped": 0, **counts}


def _trained(
    model: nn.Module,
    batches: list[tuple[torch.Tensor, torch.Tensor]],
    schedule: Schedule,
    torch_devices: list[str],
    replicas: bool = False,
) -> tuple[list[float], dict[str, torch.Tensor]]:
    runtime = _runtime(model, LOSS, batches[0], schedule, torch_devices, replicas)
    losses = [runtime.train_batch(*batch) for batch in batches]
    return losses, runtime.state()


def _runtime(
    model: nn.Module,
    loss: nn.Module,
    batch: tuple[torch.Tensor, torch.Tensor],
    schedule: Schedule,
    torch_devices: list[str],
    replicas: bool = False,
) -> LocalRuntime:
    size = len(batch[0]) // schedule.microbatches
    graph = capture(model, loss, (batch[0][:size], batch[1][:size]))
    names = [f"d{i}" for i in range(len(torch_devices))]
    devices = tuple(
        Device(name, where, 2**40, where) for name, where in zip(names, torch_devices, strict=True)
    )
    links = {(p, q): Link(0.0, 0.0) for p in names for q in names if p != q}
    cluster = Cluster("one process", devices, links)
    where = dict.fromkeys(graph.nodes, names[0]) if replicas else _in_turn(graph, names)
    stages = (Stage(tuple(graph.nodes), tuple(names)),) if replicas else ()
    placement = Placement("given", where, graph.position, SolverReport("heuristic", 0.0), stages)
    program = compile_program(graph, placement, cluster, schedule)
    return LocalRuntime(program, cluster, initial_values(model, graph), SGD)


def _in_turn(graph: Graph, names: list[str]) -> dict[str, str]:
    """Pieces of the graph's order, one a device; what must share one goes with its first."""
    where = {v: names[len(names) * i // len(graph)] for i, v in enumerate(graph.nodes)}
    for group in graph.colocated:
        where |= dict.fromkeys(group, where[group[0]])
    return where
