"""A program on one process per device."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from netsplit.program.instructions import Program
from netsplit.runtime.board import Place
from netsplit.runtime.executor import Executor, OptimizerFactory, Share
from netsplit.runtime.feeds import split_batch
from netsplit.runtime.memory_meter import MemoryMeter
from netsplit.runtime.pool import WorkerPool
from netsplit.runtime.transport import ProcessTransport
from netsplit.runtime.worker import Worker
from netsplit.simulate.timeline import Event, Timeline

__all__ = ["DistributedRuntime"]


class DistributedRuntime:
    """Trains a program on the workers of a pool; each holds only its own device's tensors.

    Batches are fed from here: a device gets only those input variables that it reads.
    """

    def __init__(
        self,
        program: Program,
        pool: WorkerPool,
        values: Mapping[str, Tensor],
        optimizer: OptimizerFactory | None,
        inference: Program | None = None,
    ) -> None:
        self.program = program
        self.inference = inference
        self.pool = pool
        homes = (inference.initializer_device if inference is not None else {}) | program.initializer_device
        own = [
            {k: values[k].detach() for k, home in homes.items() if home == name} for name in program.devices
        ]
        pool.describe = self._describe
        program, inference = _light(program), None if inference is None else _light(inference)
        pool.call_each(_load, [(program, inference, mine, optimizer) for mine in own])

    def train_batch(self, inputs: Tensor | tuple[Tensor, ...], targets: Tensor | tuple[Tensor, ...]) -> float:
        """One iteration; the mean loss of the micro-batches."""
        return self._loss(self._iterate(inputs, targets, "plain"))

    def measure(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        targets: Tensor | tuple[Tensor, ...],
        bytes_too: bool = False,
    ) -> tuple[float, Timeline]:
        """One iteration like `train_batch`, and its measured timeline.

        With `bytes_too` the timeline has peak bytes, and its seconds are not to be trusted.
        """
        start = time.perf_counter()
        results = self._iterate(inputs, targets, "bytes" if bytes_too else "events")
        seconds = time.perf_counter() - start
        return self._loss(results), _merged(results, seconds)

    def predict(self, inputs: Tensor | tuple[Tensor, ...]) -> dict[str, Tensor]:
        """Outputs of the inference program for one batch, in evaluation mode, by variable."""
        assert self.inference is not None
        feeds = split_batch(self.inference, inputs)
        results = self._call(_predict, self.inference, feeds)
        found = {key: tensor for result in results for key, tensor in result.items()}
        for i, feed in enumerate(feeds):  # a model may return an input as it is
            found |= {
                (k, i): tensor for k, tensor in feed.items() if k in self.inference.graph.output_variables
            }
        return {
            k: torch.cat([found[k, i] for i in range(self.inference.microbatches)])
            for k in self.inference.graph.output_variables
        }

    def state(self) -> dict[str, Tensor]:
        """Every initializer by the model's own name, on the CPU."""
        return {k: t for part in self.pool.call(_state) for k, t in part.items()}

    def _iterate(self, inputs: Any, targets: Any, mode: str) -> list[_Iteration]:
        return self._call(_train, self.program, split_batch(self.program, inputs, targets), mode)

    def _call(self, function: Any, program: Program, feeds: list[dict[str, Tensor]], *args: Any) -> list[Any]:
        own = [
            [{k: feed[k].clone() for k in program.feeds[name]} for feed in feeds] for name in program.devices
        ]
        return self.pool.call_each(function, [(mine, *args) for mine in own])

    def _loss(self, results: list[_Iteration]) -> float:
        losses = [loss for result in results for loss in result.losses]
        return sum(losses) / len(losses)

    def _describe(self, rank: int, place: Place) -> str:
        program = self.inference if place.phase == 2 and self.inference is not None else self.program
        instructions = program.instructions[program.devices[rank]]
        return str(instructions[place.index]) if place.index < len(instructions) else "end"


def _light(program: Program) -> Program:
    """The program without the constants' values, which go to the one device that uses them."""
    return replace(program, graph=replace(program.graph, constants={}))


@dataclass(frozen=True)
class _Iteration:
    device: str
    losses: list[float]
    began_s: float
    events: list[Event]
    peak_bytes: int | None


def _merged(results: list[_Iteration], seconds: float) -> Timeline:
    """One timeline with the earliest device's begin as zero."""
    zero = min(result.began_s for result in results)
    events = [
        replace(event, start_s=event.start_s - zero, end_s=event.end_s - zero)
        for result in results
        for event in result.events
    ]
    peaks = {result.device: result.peak_bytes for result in results if result.peak_bytes is not None}
    return Timeline(tuple(sorted(events, key=lambda e: e.start_s)), seconds, peaks)


def _load(
    worker: Worker,
    program: Program,
    inference: Program | None,
    values: dict[str, Tensor],
    optimizer: OptimizerFactory | None,
) -> None:
    initializers = program.graph.initializers
    trainable = [k for k in values if k in initializers and initializers[k].requires_grad]
    worker.memory.clear()
    torch.manual_seed(worker.rank)  # random operators draw alike in every run
    share = Share.of(values, worker.torch_device, optimizer, trainable)
    transport = ProcessTransport(worker.rank_of, worker.torch_device)
    for phase, each in (("train", program), ("predict", inference)):
        if each is not None:
            executor = Executor(
                each, worker.device.name, share, transport, worker.torch_device, worker.timeout_s
            )
            executor.recorder.on_instruction = worker.board.at
            worker.memory[phase] = executor
    worker.memory["share"] = share


def _train(worker: Worker, feeds: list[dict[str, Tensor]], mode: str) -> _Iteration:
    executor: Executor = worker.memory["train"]
    worker.board.phase = 1
    executor.recorder.detailed = mode == "events"
    peak: int | None = None
    if mode == "bytes":
        with MemoryMeter(worker.torch_device, worker.memory["share"].all_tensors()) as meter:
            outputs = executor.run(feeds)
        peak = meter.peak_bytes
    else:
        outputs = executor.run(feeds)
    worker.board.at(-1)
    recorder = executor.recorder
    losses = [float(tensor) for tensor in outputs.values()]
    events = recorder.events if mode == "events" else []
    return _Iteration(worker.device.name, losses, recorder.began_s, events, peak)


def _predict(worker: Worker, feeds: list[dict[str, Tensor]]) -> dict[tuple[str, int], Tensor]:
    executor: Executor = worker.memory["predict"]
    worker.board.phase = 2
    outputs = executor.run(feeds)
    worker.board.at(-1)
    return {key: tensor.cpu() for key, tensor in outputs.items()}


def _state(worker: Worker) -> dict[str, Tensor]:
    share: Share = worker.memory["share"]
    return {k: tensor.detach().cpu() for k, tensor in share.tensors.items()}
