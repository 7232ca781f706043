"""What the controller of a training calls in the process of every device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from netsplit.graph.random_draws import DrawKey
from netsplit.profile.measure.memory_meter import MemoryMeter
from netsplit.program.instructions import Program
from netsplit.runtime.checkpoint.files import CheckpointPart, Refusal
from netsplit.runtime.checkpoint.shares import Holder
from netsplit.runtime.executor import Executor
from netsplit.runtime.share import OptimizerFactory, Share, UpdateRule
from netsplit.runtime.transport.process import ProcessTransport
from netsplit.runtime.workers.worker import Worker
from netsplit.simulate.timeline import Event

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import SavePlan
    from torch.distributed.checkpoint.storage import WriteResult

__all__ = [
    "INFERENCE", "TRAINING", "CheckpointRules", "DeviceIteration", "add", "deploy", "load_part", "plan_part",
    "predict", "put", "rates", "set_rates", "state", "step_scheduler", "train", "write_part",
]  # fmt: skip

TRAINING, INFERENCE = 1, 2  # phases in the workers' heartbeats


@dataclass(frozen=True)
class CheckpointRules:
    """What a worker must know beside its share to write and read its part of a checkpoint."""

    aliases: dict[str, tuple[str, ...]]
    constants: frozenset[str]
    homes: dict[str, str]  # initializer -> the first device that holds it

    def holder(self, worker: Worker) -> Holder:
        device = worker.device.name
        copies = frozenset(k for k, home in self.homes.items() if home != device)
        return Holder(worker.memory["share"], device, self.aliases, self.constants, copies)


@dataclass(frozen=True)
class DeviceIteration:
    """What one device tells of an iteration."""

    device: str
    outputs: dict[tuple[str, int], float]  # by variable and micro-batch
    began_s: float
    events: list[Event]
    peak_bytes: int | None
    rates: list[float]  # of the optimiser's groups, as they were in the step


def deploy(
    worker: Worker,
    program: Program,
    values: dict[str, Tensor],
    optimizer: OptimizerFactory | None,
    rule: UpdateRule | None,
    leading: bool,
    backend: str | None = None,
) -> None:
    initializers = program.graph.initializers
    trainable = [k for k in values if initializers[k].requires_grad]
    worker.memory.clear()
    worker.memory["share"] = Share.of(values, worker.torch_device, optimizer, trainable, rule, leading)
    worker.memory["transport"] = worker.transport()
    worker.memory["programs"] = {}
    worker.memory["backend"] = backend
    add(worker, 0, program, {})


def add(worker: Worker, number: int, program: Program, values: dict[str, Tensor]) -> None:
    """One more program, and what it alone needs; nothing of that is trained."""
    share: Share = worker.memory["share"]
    share.tensors |= {k: value.clone().to(worker.torch_device) for k, value in values.items()}
    worker.memory["programs"][number] = _executor(worker, program)


def _executor(worker: Worker, program: Program) -> Executor:
    transport: ProcessTransport = worker.memory["transport"]
    transport.prepare([program])
    name, share = worker.device.name, worker.memory["share"]
    backend = worker.memory["backend"]
    executor = Executor(program, name, share, transport, worker.torch_device, worker.timeout_s, backend)
    executor.recorder.on_instruction = worker.heartbeat_file.at
    executor.recorder.on_wait = worker.heartbeat_file.waits
    return executor


def train(
    worker: Worker,
    feeds: list[dict[str, Tensor]],
    number: int,
    fractions: list[float],
    step: bool,
    mode: str,
    key: DrawKey,
) -> DeviceIteration:
    executor: Executor = worker.memory["programs"][number]
    rates = executor.share.learning_rates
    worker.heartbeat_file.phase = TRAINING
    executor.recorder.detailed = mode == "events"
    peak: int | None = None
    if mode == "bytes":
        with MemoryMeter(worker.torch_device, worker.memory["share"].all_tensors()) as meter:
            outputs = executor.run(feeds, fractions, step, key)
        peak = meter.peak_bytes
    else:
        outputs = executor.run(feeds, fractions, step, key)
    worker.heartbeat_file.at(-1)
    recorder = executor.recorder
    values = {key: float(tensor) for key, tensor in outputs.items()}
    events = recorder.events if mode == "events" else []
    return DeviceIteration(worker.device.name, values, recorder.began_s, events, peak, rates)


def predict(
    worker: Worker, feeds: list[dict[str, Tensor]], number: int, key: DrawKey
) -> dict[tuple[str, int], Tensor]:
    executor: Executor = worker.memory["programs"][number]
    worker.heartbeat_file.phase = INFERENCE
    outputs = executor.run(feeds, key=key)
    worker.heartbeat_file.at(-1)
    return {key: tensor.cpu() for key, tensor in outputs.items()}


def plan_part(worker: Worker, rules: CheckpointRules, folder: Path) -> SavePlan:
    part = worker.memory["part"] = CheckpointPart(rules.holder(worker).state(), folder)
    return part.plan()


def write_part(worker: Worker, plan: SavePlan) -> list[WriteResult] | Refusal:
    part: CheckpointPart = worker.memory.pop("part")
    return part.write(plan)


def load_part(worker: Worker, rules: CheckpointRules, folder: Path) -> list[str] | Refusal:
    return rules.holder(worker).load(folder)


def state(worker: Worker, averaged: bool) -> tuple[bool, dict[str, Tensor]]:
    """Whether this is a first replica, and its tensors."""
    share: Share = worker.memory["share"]
    tensors = share.tensors
    if averaged and share.averages is not None:
        tensors = tensors | share.averages.values
    return share.leading, {k: tensor.detach().cpu() for k, tensor in tensors.items()}


def put(worker: Worker, values: dict[str, Tensor]) -> None:
    """Take these values; in place, as segments and the optimiser have the tensors."""
    share: Share = worker.memory["share"]
    with torch.no_grad():
        for name, value in values.items():
            share.tensors[name].copy_(value)


def rates(worker: Worker) -> list[float]:
    share: Share = worker.memory["share"]
    return share.learning_rates


def set_rates(worker: Worker, rates: list[float]) -> None:
    share: Share = worker.memory["share"]
    share.set_learning_rates(rates)


def step_scheduler(worker: Worker, loss: float | None) -> None:
    share: Share = worker.memory["share"]
    share.step_scheduler(loss)
