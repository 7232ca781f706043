"""A program on one process per device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from netsplit.errors import NetSplitError
from netsplit.graph.random import DrawCounter, DrawKey
from netsplit.program.instructions import Program
from netsplit.runtime.checkpoint import Holder
from netsplit.runtime.checkpoint_files import Part, Refusal, State, refuse, write
from netsplit.runtime.executor import Executor
from netsplit.runtime.feeds import loss_shares, mean_loss, split_batch
from netsplit.runtime.memory_meter import MemoryMeter
from netsplit.runtime.pool import WorkerPool
from netsplit.runtime.recorder import merged
from netsplit.runtime.share import OptimizerFactory, Share, UpdateRule
from netsplit.runtime.transport import ProcessTransport
from netsplit.runtime.worker import Worker
from netsplit.simulate.timeline import Event, Timeline

__all__ = ["DistributedRuntime", "Resize"]

Resize = Callable[[Any, Any], Program]
"""Training program for inputs and targets of another number of samples."""


class DistributedRuntime:
    """Trains a program on the workers of a pool; each holds only its own device's tensors.

    Batches are fed from here: a device gets only those input variables that it reads.

    Args:
        values: the initializers.
        inference: the program of `predict`.
        rule: what happens before and after the optimiser steps.
        resized: makes the training program for a batch of another size (see `train_batch`).
        seed: of random operators, with what `draws` counts; not of where they run.
    """

    def __init__(
        self,
        program: Program,
        pool: WorkerPool,
        values: Mapping[str, Tensor],
        optimizer: OptimizerFactory | None,
        inference: Program | None = None,
        rule: UpdateRule | None = None,
        resized: Resize | None = None,
        seed: int = 0,
    ) -> None:
        self.program = program
        self.inference = inference
        self.pool = pool
        self.resized = resized
        self.programs: dict[int, Program] = {_samples(program): program}
        self.running = program
        self.draws = DrawCounter(seed)
        self.optimizer = optimizer
        self.rule = rule or UpdateRule()
        self.rates: list[float] = []  # of the optimiser's groups in the last step
        pool.runs({1: program} if inference is None else {1: program, 2: inference})
        followers = {name for each in program.replicas.values() for name in each[1:]}
        light = _light(program), None if inference is None else _light(inference)
        pool.call_each(
            _load,
            [
                (*light, self._values_of(name, values), optimizer, rule, name not in followers)
                for name in program.devices
            ],
        )

    def _values_of(self, name: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        mine = set(self.program.held[name])
        if self.inference is not None:
            homes = self.inference.initializer_device | self.program.initializer_device
            mine |= {k for k, home in homes.items() if home == name}
        return {k: t.detach() for k, t in values.items() if k in mine}

    def train_batch(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        targets: Tensor | tuple[Tensor, ...],
        *,
        share: float = 1.0,
        step: bool = True,
    ) -> float:
        """One iteration; the mean loss of the samples.

        Args:
            inputs: of the program's batch size, or where `resized` was given of any other: that is
                captured and compiled once for each size.
            share: multiplies the gradients; the batch's part of the samples that one step sees.
            step: without it gradients are only added up, for a later iteration to step on.

        Raises:
            NetSplitError: `step` is False under a schedule whose devices step within the batch.
        """
        return self._loss(self._iterate(inputs, targets, "plain", share, step))

    def measure(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        targets: Tensor | tuple[Tensor, ...],
        bytes_too: bool = False,
        *,
        share: float = 1.0,
        step: bool = True,
    ) -> tuple[float, Timeline]:
        """One iteration like `train_batch`, and its measured timeline.

        With `bytes_too` the timeline has peak bytes, and its seconds are not to be trusted.
        """
        start = time.perf_counter()
        results = self._iterate(inputs, targets, "bytes" if bytes_too else "events", share, step)
        seconds = time.perf_counter() - start
        return self._loss(results), _merged(results, seconds)

    def predict(self, inputs: Tensor | tuple[Tensor, ...]) -> dict[str, Tensor]:
        """Outputs of the inference program for one batch, in evaluation mode, by variable."""
        assert self.inference is not None
        feeds = split_batch(self.inference, inputs)
        results = self._call(_predict, self.inference, feeds, self.draws.predicting())
        self.draws.predictions += 1
        found = {key: tensor for result in results for key, tensor in result.items()}
        for i, feed in enumerate(feeds):  # a model may return an input as it is
            found |= {
                (k, i): tensor for k, tensor in feed.items() if k in self.inference.graph.output_variables
            }
        return {
            k: torch.cat([found[k, i] for i in range(self.inference.microbatches)])
            for k in self.inference.graph.output_variables
        }

    def state(self, averaged: bool = False) -> dict[str, Tensor]:
        """Every initializer by the model's own name, on the CPU; if asked for, parameters' averages."""
        parts = self.pool.call(_state, averaged)
        return {k: t for _, part in sorted(parts, key=lambda found: found[0]) for k, t in part.items()}

    def put(self, values: Mapping[str, Tensor]) -> None:
        """Give initializers these values, on every device that holds them."""
        self.pool.call_each(_put, [(self._values_of(name, values),) for name in self.program.devices])

    @property
    def learning_rates(self) -> list[float]:
        """Of the optimiser's groups, which every device has alike."""
        found: list[float] = self.pool.call_one(0, _rates)
        return found

    @learning_rates.setter
    def learning_rates(self, rates: list[float]) -> None:
        self.pool.call(_set_rates, rates)

    def step_scheduler(self, loss: float | None = None) -> None:
        """Step the learning rate on every device; `loss` is for schedulers that go by it."""
        self.pool.call(_step_scheduler, loss)

    def save_checkpoint(self, folder: Path, extra: Mapping[str, Any], own: State) -> None:
        """Write what all devices hold, and what the controller adds (see `checkpoint_files.write`)."""
        rules = self._checkpoint_rules()
        write(
            folder,
            extra,
            own,
            plan=lambda place: self.pool.call(_plan_part, rules, place),
            write_parts=lambda parts: self.pool.call_each(_write_part, [(part,) for part in parts]),
        )

    def load_checkpoint(self, folder: Path) -> list[str]:
        """Take from a checkpoint what each device holds; hyperparameters that changed by it, in words.

        Raises:
            NetSplitError: a device cannot read it, or has another kind of optimiser.
        """
        answers = self.pool.call(_load_part, self._checkpoint_rules(), folder)
        refuse([answer for answer in answers if isinstance(answer, Refusal)])
        return list(dict.fromkeys(change for answer in answers for change in answer))

    def _checkpoint_rules(self) -> _CheckpointRules:
        programs = [each for each in (self.inference, self.program) if each is not None]
        homes: dict[str, str] = {}
        for each in programs:
            homes |= each.initializer_device
        return _CheckpointRules(
            {k: init.aliases for each in programs for k, init in each.graph.initializers.items()},
            frozenset(k for each in programs for k in each.graph.constants),
            homes,
        )

    def _iterate(self, inputs: Any, targets: Any, mode: str, share: float, step: bool) -> list[_Iteration]:
        program = self._program_for(inputs, targets)
        if program.asynchronous and not step:
            raise NetSplitError(
                "gradients cannot be accumulated over batches under a schedule whose devices step within the "
                "batch: set accumulate to 1, or choose another schedule."
            )
        self.running = self.pool.programs[1] = program
        feeds = split_batch(program, inputs, targets)
        samples = _samples(program)
        shares, key = loss_shares(program, share), self.draws.training()
        results = self._call(_train, program, feeds, samples, shares, step, mode, key)
        self.draws.batches += 1
        self.rates = results[0].rates
        return results

    def _program_for(self, inputs: Any, targets: Any) -> Program:
        tensors = (inputs,) if isinstance(inputs, Tensor) else inputs
        samples = len(tensors[0])
        if (
            samples not in self.programs
            and self.resized is not None
            and 0 < samples <= _samples(self.program)
        ):
            program = self.resized(inputs, targets)
            self.pool.call(_load_size, samples, _light(program))
            self.programs[samples] = program
        return self.programs.get(samples, self.program)

    def _call(self, function: Any, program: Program, feeds: list[dict[str, Tensor]], *args: Any) -> list[Any]:
        own = [
            [{k: feed[k].clone() for k in program.fed(name, i)} for i, feed in enumerate(feeds)]
            for name in program.devices
        ]
        return self.pool.call_each(function, [(mine, *args) for mine in own])

    def _loss(self, results: list[_Iteration]) -> float:
        return mean_loss(self.running, {i: loss for result in results for i, loss in result.losses.items()})


def _light(program: Program) -> Program:
    """The program without the constants' values, which go to the one device that uses them."""
    tail = None if program.tail is None else replace(program.tail, constants={})
    return replace(program, graph=replace(program.graph, constants={}), tail=tail)


def _samples(program: Program) -> int:
    tail = program.tail or program.graph
    return program.graph.batch_size * (program.microbatches - 1) + tail.batch_size


@dataclass(frozen=True)
class _CheckpointRules:
    """What a worker must know beside its share to write and read its part of a checkpoint."""

    aliases: dict[str, tuple[str, ...]]
    constants: frozenset[str]
    homes: dict[str, str]  # initializer -> the first device that holds it

    def holder(self, worker: Worker) -> Holder:
        device = worker.device.name
        copies = frozenset(k for k, home in self.homes.items() if home != device)
        return Holder(worker.memory["share"], device, self.aliases, self.constants, copies)


@dataclass(frozen=True)
class _Iteration:
    device: str
    losses: dict[int, float]  # by micro-batch
    began_s: float
    events: list[Event]
    peak_bytes: int | None
    rates: list[float]  # of the optimiser's groups, as they were in the step


def _merged(results: list[_Iteration], seconds: float) -> Timeline:
    """One timeline with the earliest device's begin as zero."""
    zero = min(result.began_s for result in results)
    events = merged((event for result in results for event in result.events), zero)
    peaks = {result.device: result.peak_bytes for result in results if result.peak_bytes is not None}
    return Timeline(events, seconds, peaks)


def _load(
    worker: Worker,
    program: Program,
    inference: Program | None,
    values: dict[str, Tensor],
    optimizer: OptimizerFactory | None,
    rule: UpdateRule | None,
    leading: bool,
) -> None:
    initializers = program.graph.initializers
    trainable = [k for k in values if k in initializers and initializers[k].requires_grad]
    worker.memory.clear()
    worker.memory["share"] = Share.of(values, worker.torch_device, optimizer, trainable, rule, leading)
    devices = {device.name: torch.device(device.torch_device) for device in worker.devices}
    worker.memory["transport"] = ProcessTransport(devices, worker.device.name, worker.timeout_s)
    worker.memory["train"] = {}
    _load_size(worker, _samples(program), program)
    if inference is not None:
        worker.memory["predict"] = _executor(worker, inference)


def _load_size(worker: Worker, samples: int, program: Program) -> None:
    worker.memory["train"][samples] = _executor(worker, program)


def _executor(worker: Worker, program: Program) -> Executor:
    transport: ProcessTransport = worker.memory["transport"]
    transport.prepare([program])
    name, share = worker.device.name, worker.memory["share"]
    executor = Executor(program, name, share, transport, worker.torch_device, worker.timeout_s)
    executor.recorder.on_instruction = worker.board.at
    executor.recorder.on_wait = worker.board.waits
    return executor


def _train(
    worker: Worker,
    feeds: list[dict[str, Tensor]],
    samples: int,
    shares: list[float],
    step: bool,
    mode: str,
    key: DrawKey,
) -> _Iteration:
    executor: Executor = worker.memory["train"][samples]
    rates = executor.share.learning_rates
    worker.board.phase = 1
    executor.recorder.detailed = mode == "events"
    peak: int | None = None
    if mode == "bytes":
        with MemoryMeter(worker.torch_device, worker.memory["share"].all_tensors()) as meter:
            outputs = executor.run(feeds, shares, step, key)
        peak = meter.peak_bytes
    else:
        outputs = executor.run(feeds, shares, step, key)
    worker.board.at(-1)
    recorder = executor.recorder
    losses = {i: float(tensor) for (_, i), tensor in outputs.items()}
    events = recorder.events if mode == "events" else []
    return _Iteration(worker.device.name, losses, recorder.began_s, events, peak, rates)


def _predict(worker: Worker, feeds: list[dict[str, Tensor]], key: DrawKey) -> dict[tuple[str, int], Tensor]:
    executor: Executor = worker.memory["predict"]
    worker.board.phase = 2
    outputs = executor.run(feeds, key=key)
    worker.board.at(-1)
    return {key: tensor.cpu() for key, tensor in outputs.items()}


def _plan_part(worker: Worker, rules: _CheckpointRules, folder: Path) -> SavePlan:
    part = worker.memory["part"] = Part(rules.holder(worker).state(), folder)
    return part.plan()


def _write_part(worker: Worker, plan: SavePlan) -> list[WriteResult] | Refusal:
    part: Part = worker.memory.pop("part")
    return part.write(plan)


def _load_part(worker: Worker, rules: _CheckpointRules, folder: Path) -> list[str] | Refusal:
    return rules.holder(worker).load(folder)


def _state(worker: Worker, averaged: bool) -> tuple[bool, dict[str, Tensor]]:
    """Whether this is a first replica, and its tensors."""
    share: Share = worker.memory["share"]
    found = share.tensors
    if averaged and share.averages is not None:
        found = found | share.averages.values
    return share.leading, {k: tensor.detach().cpu() for k, tensor in found.items()}


def _put(worker: Worker, values: dict[str, Tensor]) -> None:
    """Take these values; in place, as segments and the optimiser have the tensors."""
    share: Share = worker.memory["share"]
    with torch.no_grad():
        for name, value in values.items():
            share.tensors[name].copy_(value)


def _rates(worker: Worker) -> list[float]:
    share: Share = worker.memory["share"]
    return share.learning_rates


def _set_rates(worker: Worker, rates: list[float]) -> None:
    share: Share = worker.memory["share"]
    share.set_learning_rates(rates)


def _step_scheduler(worker: Worker, loss: float | None) -> None:
    share: Share = worker.memory["share"]
    share.step_scheduler(loss)
