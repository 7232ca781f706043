"""A program on one process per device."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any

from torch import Tensor

from netsplit.data.reading.loader import BatchPlace
from netsplit.errors import NetSplitError
from netsplit.graph.batches.batch import Batch
from netsplit.graph.random_draws import DrawCounter, DrawKey
from netsplit.interrupts import interrupts_held, let_interrupt
from netsplit.optim.learning_rate import require_same_rates
from netsplit.profile.costs import Offload
from netsplit.profile.measure.optimizer import check_element_wise
from netsplit.program.instructions import Program
from netsplit.program.other_batches import require_used
from netsplit.runtime import moves, worker_calls
from netsplit.runtime.checkpoint.files import Refusal, State, write_checkpoint
from netsplit.runtime.checkpoint.shares import Copies
from netsplit.runtime.checkpoint.torch_format import whole_tensors
from netsplit.runtime.checkpoint.weights import WeightSource
from netsplit.runtime.controller import (
    Attempts,
    LoadedPrograms,
    LossWords,
    graphs_of,
    light,
    merged_timeline,
    tell,
    to_send,
)
from netsplit.runtime.faults import origin_of, require_steady
from netsplit.runtime.feeds import (
    UnlikeBatch,
    UnreadBatch,
    as_batch,
    fed_devices,
    input_tensors,
    loss_fractions,
    mean_loss,
    mean_metrics,
    read_ahead,
    require_alike,
    require_read,
    shared_microbatches,
    split_batch,
)
from netsplit.runtime.share import LossScale, OptimizerFactory, Share, UpdateRule, sliced_for
from netsplit.runtime.values import Absent, Key
from netsplit.runtime.worker_calls import INFERENCE, TRAINING, DeviceComputed, DeviceIteration, on_share
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.simulate.timeline import Timeline

__all__ = ["DistributedRuntime", "Resize"]

_RATES = attrgetter("learning_rates")
Resize = Callable[[Batch], Program]
"""Training program for a batch of other shapes, or of another number of samples."""


class DistributedRuntime:
    """Trains a program on the workers of a pool; each holds only its own device's tensors.

    Args:
        values: the initializers, of later programs too; `weights` has those that are on the meta device.
        resized: makes the program for a batch that is not like the program's.
        backend: of `torch.compile` for the devices' segments; None: they are not compiled.
    """

    def __init__(
        self,
        program: Program,
        pool: WorkerPool,
        values: Mapping[str, Tensor],
        optimizer: OptimizerFactory | None,
        rule: UpdateRule | None = None,
        resized: Resize | None = None,
        seed: int = 0,
        weights: WeightSource | None = None,
        backend: str | None = None,
        offload: Offload | None = None,
    ) -> None:
        self.program = program = sliced_for(program, optimizer)
        self._pool = pool
        self.resized = resized
        self.draws = DrawCounter(seed)
        self.optimizer = optimizer
        self.rule = rule or UpdateRule()
        self.rates: list[float] = []  # of the optimiser's groups in the last step
        self.metrics: Any = None
        self.loss = math.nan  # of the last batch
        self.loaded = LoadedPrograms(program, pool, values, backend)
        self.attempts = Attempts(pool, self.loaded)
        self.programs: dict[Hashable, Program] = {}  # for training, by the batch
        self.readers: frozenset[str] = frozenset()  # devices whose workers have the dataset
        self.scale: LossScale | None = None  # of float16, after the last step
        self.waiting = frozenset[str]()  # parameters whose gradients a later iteration steps on
        self.absent: dict[int, Absent] = {}  # by the program's number, in its last iteration
        self._words = LossWords(self.rule.on_nonfinite)
        pool.deployed = self
        pool.programs = {TRAINING: program}
        tell(pool, graphs_of(program), optimizer, rule, weights)
        check_element_wise(optimizer, program.graph)
        self.loaded.deploy(optimizer, rule, weights, offload)
        if self.rule.learning_rate is not None:
            self._require_same_rates(pool.call(on_share, _RATES))

    @property
    def pool(self) -> WorkerPool:
        """The workers; raises NetSplitError once another model has replaced this one."""
        self._require_held()
        return self._pool

    def _require_held(self) -> None:
        if self._pool.deployed is not self:
            raise NetSplitError(
                "another model has replaced this one on the session's workers: measure all models before "
                "deploying, and give each its own session."
            )

    def train_batch(
        self, inputs: Any, targets: Any = None, *, fraction: float = 1.0, step: bool = True
    ) -> float:
        """One iteration; the mean loss of the samples. `metrics` has what the loss returned beside it.

        Args:
            inputs: as docs/batches.md has them, or a whole `Batch`; of any shapes where `resized` was given.
            fraction: multiplies the gradients; the batch's part of the samples that one step sees.
            step: False only adds up gradients.

        Raises:
            NetSplitError: `step` is False under a schedule whose devices step within the batch.
            NonFiniteError: its loss is not finite, and the rule's `on_nonfinite` is "stop".
            BatchError: a device could not compute it; all is as before, but for schedules whose devices step
                within the batch: under those the workers end, with a `WorkerError`.
        """
        self._iterate(inputs, targets, "plain", fraction, step)
        return self.loss

    def measure(
        self, inputs: Any, targets: Any, bytes_too: bool = False, *, fraction: float = 1.0, step: bool = True
    ) -> tuple[float, Timeline]:
        """Train one iteration and record its timeline: bytes with `bytes_too`, else seconds."""
        start = time.perf_counter()
        results = self._iterate(inputs, targets, "bytes" if bytes_too else "events", fraction, step)
        seconds = time.perf_counter() - start
        return self.loss, merged_timeline(results, seconds) if results else Timeline((), seconds)

    def predict(self, program: Program, inputs: Any) -> list[list[Tensor]]:
        """Outputs of an inference program for one batch: of every micro-batch, in the graph's order."""
        self._require_held()
        number = self.loaded.number(program)
        self.pool.programs[INFERENCE] = program
        feeds = split_batch(program, inputs)
        outputs: dict[tuple[str, int], Tensor] = {}
        attempts, key = self.attempts, self.draws.predicting()
        for result in attempts.computed(worker_calls.predict, program, feeds, number, key):
            outputs |= result
        attempts.begun = None
        self.draws.predictions += 1
        names = program.graph.output_variables
        return [[outputs[k, i] for k in names] for i in range(program.microbatches)]

    def settle(self) -> None:
        """End an interrupted iteration; undone unless devices have stepped."""
        begun = self.attempts.begun
        if begun is not None and begun.steps_last:
            self.attempts.abandon()
        elif begun is not None:
            self._commit()

    def finish(self) -> None:
        """Wait for the last batch's step and raise its error, if any."""
        if self._pool.connections and self._pool.deployed is self:
            self._pool.call(on_share, _RATES)

    def state(self, averaged: bool = False) -> dict[str, Tensor]:
        """Every parameter and buffer by the model's own name, on the CPU; their averages on request."""
        held = self.pool.call(on_share, Share.state, averaged)
        tensors = {k: t for own in held for k, t in own.items()}
        regions = {k: region for each in self.loaded for k, region in each.graph.regions.items()}
        return whole_tensors(tensors, regions | self.program.slice_regions)

    def put(self, values: Mapping[str, Tensor]) -> None:
        """Set parameters and buffers on every device that holds them."""
        self.loaded.values = every = {**self.loaded.values, **values}
        held = [
            {k: program.graph.initializers[k] for program in self.loaded for k in program.held[name]}
            for name in self.program.devices
        ]
        own = [{k: init for k, init in each.items() if init.whole.name in values} for each in held]
        sent = [(Share.put, {k: to_send(init, every) for k, init in each.items()}) for each in own]
        self.pool.call_each(on_share, sent)

    @property
    def learning_rates(self) -> list[float]:
        rates: list[float] = self.pool.call_one(self._training_rank, on_share, _RATES)
        return rates

    @learning_rates.setter
    def learning_rates(self, rates: list[float]) -> None:
        self.pool.call(on_share, Share.set_learning_rates, rates)

    def step_scheduler(self, loss: float | None = None) -> None:
        """Step the learning rate on every device; raises NetSplitError where rates then differ."""
        self._require_same_rates(self.pool.call(on_share, Share.step_scheduler, loss))

    def _require_same_rates(self, rates: Sequence[list[float]]) -> None:
        require_same_rates(dict(zip(self.program.devices, rates, strict=True)))

    def save_checkpoint(self, folder: Path, extra: Mapping[str, Any], own: State) -> None:
        """Write what all devices hold, and what the controller adds (see `write_checkpoint`).

        Raises:
            NetSplitError: it cannot be written, or gradients wait for a step.
        """
        if self.waiting:
            raise NetSplitError(
                "gradients are waiting for a step, and checkpoints hold none: save after the step, or "
                "call drop_gradients()."
            )
        rules = self._checkpoint_rules()
        write_checkpoint(
            folder,
            extra,
            own,
            plan=lambda place: self.pool.call(worker_calls.plan_part, rules, place),
            write_parts=lambda parts: self.pool.call_each(
                worker_calls.write_part, [(part,) for part in parts]
            ),
        )

    def load_checkpoint(self, folder: Path) -> list[str]:
        """Load on every device; describes hyperparameters that the checkpoint changed."""
        self.scale = None
        answers = self.pool.call(worker_calls.load_part, self._checkpoint_rules(), folder)
        refusal = next((answer for answer in answers if isinstance(answer, Refusal)), None)
        if refusal is not None:
            raise NetSplitError(refusal.reason)
        return list(dict.fromkeys(change for answer in answers for change in answer))

    def _checkpoint_rules(self) -> dict[str, Any]:
        aliases = {k: init.aliases for k, init in self.program.graph.initializers.items()}
        constants = frozenset(k for program in self.loaded for k in program.graph.constants)
        return {"aliases": aliases, "skip": constants | frozenset(self.loaded.late), "copies": self._copies()}

    def _copies(self) -> Copies:
        held = {name: self.program.copies_on(name) for name in self.program.devices}
        return Copies(held, bool(self.program.replicas))

    def switch(self, program: Program, resized: Resize | None) -> int:
        """Train by another program of the same graph from the next iteration on; the bytes that moved.

        Raises:
            NetSplitError: gradients wait for a step; nothing is changed then.
            WorkerError: a worker died or hung.
        """
        if program.bundles or self.program.bundles:
            raise NetSplitError(
                "a plan with schedule.shard cannot be changed while training: leave schedule.shard out."
            )
        devices, before = program.devices, self._copies()
        every = dict(zip(devices, self.pool.call(moves.inventory, before), strict=True))
        if any(each.waiting for each in every.values()):
            raise NetSplitError(
                "gradients are waiting for a step: change the plan after it, or call drop_gradients()."
            )
        late, moving = self.late_state(), moves.moves_of(program, every)
        single = {key: value for name in reversed(devices) for key, value in every[name].values.items()}
        arguments = light(program), before, moving, single, self.optimizer, self.rule
        with interrupts_held(firmly=True):
            self.pool.programs = {TRAINING: program}
            self.pool.call_each(moves.move, [arguments for _ in devices])
            self.program, self.programs, self.resized, self.absent = program, {}, resized, {}
            self.loaded.switched(program, late)
        return sum(each.like.nbytes for each in moving)

    def late_state(self) -> dict[str, Tensor]:
        """Initializers that later programs brought, other than constants."""
        late = self.loaded.late
        return {k: t for k, t in self.state().items() if k in late} if late else {}

    @property
    def _training_rank(self) -> int:
        """Rank of the first device with trained parameters, whose optimiser takes every step."""
        program, initializers = self.program, self.program.graph.initializers
        trains = (any(initializers[k].requires_grad for k in program.held[name]) for name in program.devices)
        return next((rank for rank, each in enumerate(trains) if each), 0)

    def _iterate(
        self, inputs: Any, targets: Any, mode: str, fraction: float, step: bool
    ) -> list[DeviceIteration]:
        batch = inputs if isinstance(inputs, UnreadBatch) else as_batch(self.program, inputs, targets)
        self._require_held()  # before further programs are sent there
        program = self._program_for(batch)
        if isinstance(batch, UnreadBatch) and not self.readers.issuperset(fed_devices(program)):
            raise UnlikeBatch("devices cannot read a batch, as they have no dataset.")
        if (program.asynchronous or self.program.asynchronous) and not step:
            raise NetSplitError(
                "gradients cannot be accumulated over batches under a schedule that steps within a batch: "
                "set accumulate to 1, or choose another schedule."
            )
        if step:
            require_used(program, self.waiting)
        feeds = batch.place if isinstance(batch, UnreadBatch) else split_batch(program, batch)
        number = self.loaded.number(program)
        if self.scale is not None and self.pool.programs[TRAINING] is not program:
            self.pool.call(on_share, setattr, "scale", self.scale)  # the devices that step may change
        if self.pool.programs[TRAINING] is not program:
            self.finish()  # the failed program knows the place
            self.pool.programs[TRAINING] = program
        if isinstance(feeds, BatchPlace) and not (program.steps_last and not shared_microbatches(program)):
            read = self.pool.call(read_ahead, number, feeds)
            require_read(self.pool, read)
            require_alike(self.pool, read)
        fractions, key = loss_fractions(program, fraction), self.draws.training()
        with interrupts_held():
            return self._stepped(program, batch, feeds, number, (fractions, step, mode, key))

    def _stepped(
        self,
        program: Program,
        batch: Batch | UnreadBatch,
        feeds: list[dict[str, Tensor]] | BatchPlace,
        number: int,
        how: tuple[list[float], bool, str, DrawKey],
    ) -> list[DeviceIteration]:
        """Train one iteration; None where the batch is skipped or nobody waits for its results."""
        fractions, step, mode, key = how
        outputs = self._trained(program, batch, feeds, number, how)
        loss = mean_loss(program, outputs)
        if not math.isfinite(loss) and self._words.of_nonfinite:
            sentence = f"the loss of iteration {self.draws.batches + 1} is {loss}"
            if not program.steps_last:  # too late to take it back
                self._words.tell(sentence, stepped=True)
            else:
                self.attempts.abandon()
                inputs = input_tensors(program, batch)
                inspections = self.attempts.inspected(program, inputs, number, fractions, key)
                sentence += f": {origin_of(program, inspections, inputs)}"
                if not self._words.tell(sentence, stepped=False):
                    self.loss, self.metrics = loss, None
                    return []
                outputs = self._trained(program, batch, inputs, number, how)
        self._words.trained(loss)
        let_interrupt()  # last chance to interrupt
        with interrupts_held(firmly=True):
            results = self._commit(wait=mode != "plain")
            self.waiting = frozenset() if step else self.waiting.union(program.trained)
            self.loss, self.metrics = loss, mean_metrics(program, outputs)
        if results and self.rule.learning_rate is not None:
            self._require_same_rates([each.next_rates for each in results])
        return results

    def _commit(self, wait: bool = True) -> list[DeviceIteration]:
        awaited = wait or self.rule.loss_scaling or self.rule.learning_rate is not None
        with interrupts_held(firmly=True):
            results = self.attempts.commit(awaited)
            self.draws.batches += 1
            self.scale = next((each.scale for each in results if each.scale is not None), self.scale)
        return results

    def _trained(
        self,
        program: Program,
        batch: Batch | UnreadBatch,
        feeds: list[dict[str, Tensor]] | BatchPlace,
        number: int,
        how: tuple[Any, ...],
    ) -> dict[Key, float]:
        """Outputs of an iteration, repeated until it is known which gradients are absent."""
        absent = self.absent.get(number, frozenset())
        for attempt in count(1):
            parts: list[DeviceComputed] = self.attempts.computed(
                worker_calls.train, program, feeds, number, *how, absent
            )
            self.rates = parts[self._training_rank].rates
            nothing = frozenset(key for part in parts for key in part.nothing)
            if nothing and not program.steps_last:
                self._words.zeros()
            if nothing == absent or not program.steps_last:
                return {name: value for part in parts for name, value in part.outputs.items()}
            self.attempts.abandon()
            require_steady(program, attempt)
            absent = self.absent[number] = nothing
            feeds = input_tensors(program, batch)
        raise AssertionError("an iteration ends")

    def _program_for(self, batch: Batch | UnreadBatch) -> Program:
        if self.resized is None:
            return self.program
        key = batch.key, batch.samples
        if key not in self.programs:
            self.programs[key] = self.resized(batch.here() if isinstance(batch, UnreadBatch) else batch)
        return self.programs[key]

    def drop_gradients(self) -> None:
        """Forget gradients accumulated for a later step."""
        self.pool.call(on_share, Share.drop_gradients)
        self.waiting = frozenset()
