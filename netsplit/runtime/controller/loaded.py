"""What the workers of a pool have: programs, sent once each, and the model's parameters and buffers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from netsplit.graph.ir import Graph
from netsplit.graph.surroundings.surroundings import carried_modules, settings, take_settings
from netsplit.interrupts import interrupts_held
from netsplit.profile.costs import Offload
from netsplit.program.instructions import Program
from netsplit.runtime import worker_calls
from netsplit.runtime.checkpoint.files import Refusal, State, refuse, write_checkpoint
from netsplit.runtime.checkpoint.shares import Copies
from netsplit.runtime.checkpoint.tensor_parts import to_send, whole_tensors
from netsplit.runtime.checkpoint.weights import WeightSource
from netsplit.runtime.share import OptimizerFactory, UpdateRule
from netsplit.runtime.worker_calls import CheckpointRules
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.runtime.workers.worker import Worker

__all__ = ["HeldState", "LoadedPrograms", "graphs_of", "light", "tell"]


def tell(pool: WorkerPool, graphs: list[Graph], *others: Any) -> None:
    """Tell workers the surroundings, so that code sent later finds what it finds here."""
    calls = [call for graph in graphs for call in graph.calls.values()]
    pool.carried |= dict.fromkeys(carried_modules([*calls, *(each for each in others if each is not None)]))
    pool.call(_take, settings())


def _take(worker: Worker, given: dict[str, Any]) -> None:
    del worker
    take_settings(given)


class LoadedPrograms:
    """Programs on the workers, by number; the one trained by is the first.

    Args:
        values: the initializers; more than the program's where later programs may need them.
        backend: of `torch.compile`, by which the devices' segments are compiled; None: they are not.
    """

    def __init__(
        self, program: Program, pool: WorkerPool, values: Mapping[str, Tensor], backend: str | None
    ) -> None:
        self.pool, self.values, self.backend = pool, values, backend
        self.uncompiled = backend is not None  # in part: a program's first iteration compiles its segments
        self.late: dict[str, str] = {}  # initializers that came with later programs -> their device
        self.sent_s = 0.0  # that it took to send further ones
        self._every = [program]

    def __iter__(self) -> Iterator[Program]:
        return iter(self._every)

    def deploy(
        self,
        optimizer: OptimizerFactory | None,
        rule: UpdateRule | None,
        weights: WeightSource | None,
        offload: Offload | None,
    ) -> None:
        """Give every worker its part of the first."""
        (program,) = self._every
        initializers = program.graph.initializers
        self.pool.call_each(
            worker_calls.deploy,
            [
                (
                    light(program),
                    {
                        k: own
                        for k in program.held[name]
                        if not (own := to_send(initializers[k], self.values)).is_meta
                    },
                    optimizer,
                    rule,
                    weights,
                    self.backend,
                    offload,
                )
                for name in program.devices
            ],
        )

    def number(self, program: Program) -> int:
        """The number of a program among those that the workers have; a new one is sent to them."""
        for number, known in enumerate(self._every):
            if known is program:
                return number
        began = time.perf_counter()
        homes = {k: home for each in self._every for k, home in each.initializer_device.items()}
        missing = {k: home for k, home in program.initializer_device.items() if k not in homes}
        values = {**self.values, **program.graph.constants}
        new: dict[str, dict[str, Tensor]] = {device: {} for device in program.devices}
        for k in missing:
            value = to_send(program.graph.initializers[k], values)
            for device in program.holders[k] if not value.is_meta else ():
                new[device][k] = value
        number, sent = len(self._every), light(program)
        tell(self.pool, graphs_of(program))
        with interrupts_held(firmly=True):
            self.pool.call_each(worker_calls.add, [(number, sent, new[device]) for device in program.devices])
            self._every.append(program)
            self.uncompiled = self.backend is not None
            self.late |= {k: home for k, home in missing.items() if k not in program.graph.constants}
            self.sent_s += time.perf_counter() - began
        return number

    def switched(self, program: Program, late: Mapping[str, Tensor]) -> None:
        """The workers have this program alone now, and what came late is the controller's again."""
        self._every, self.late, self.values = [program], {}, {**self.values, **late}
        self.uncompiled = self.backend is not None


def graphs_of(program: Program) -> list[Graph]:
    return [graph for graph in (program.graph, program.tail) if graph is not None]


def light(program: Program) -> Program:
    """The program without the constants' values, which go to the one device that uses them.

    And without the outputs' structure: workers know flat tensors, and not the user's own classes.
    """
    plain: dict[str, Any] = {"constants": {}, "output_spec": None}
    tail = None if program.tail is None else replace(program.tail, **plain)
    return replace(program, graph=replace(program.graph, **plain), tail=tail)


@dataclass(frozen=True)
class HeldState:
    """The training state that the workers of a program hold.

    Args:
        loaded: all programs that they have.
    """

    program: Program
    pool: WorkerPool
    loaded: LoadedPrograms

    def tensors(self, averaged: bool = False) -> dict[str, Tensor]:
        """Every parameter and buffer, on the CPU; if asked for, their averages."""
        held = self.pool.call(worker_calls.state, averaged)
        tensors = {k: t for own in held for k, t in own.items()}
        regions = {k: region for each in self.loaded for k, region in each.graph.regions.items()}
        regions |= self.program.slice_regions
        return whole_tensors(tensors, regions)

    def late(self) -> dict[str, Tensor]:
        """Values of the initializers that later programs brought and that are no constants."""
        late = self.loaded.late
        return {k: t for k, t in self.tensors().items() if k in late} if late else {}

    def put(self, values: Mapping[str, Tensor]) -> None:
        """Give parameters and buffers these values, on every device that holds them, or later will."""
        self.loaded.values = every = {**self.loaded.values, **values}
        held = [
            {k: program.graph.initializers[k] for program in self.loaded for k in program.held[name]}
            for name in self.program.devices
        ]
        self.pool.call_each(
            worker_calls.put,
            [
                ({k: to_send(init, every) for k, init in own.items() if init.whole.name in values},)
                for own in held
            ],
        )

    def save(self, folder: Path, extra: Mapping[str, Any], own: State) -> None:
        """Write what all devices hold, and what the controller adds (see `write_checkpoint`)."""
        rules = self._rules()
        write_checkpoint(
            folder,
            extra,
            own,
            plan=lambda place: self.pool.call(worker_calls.plan_part, rules, place),
            write_parts=lambda parts: self.pool.call_each(
                worker_calls.write_part, [(part,) for part in parts]
            ),
        )

    def load(self, folder: Path) -> list[str]:
        """Take from a checkpoint what each device holds; hyperparameters that changed by it, in words.

        Raises:
            NetSplitError: a device cannot read it, or has another kind of optimiser.
        """
        answers = self.pool.call(worker_calls.load_part, self._rules(), folder)
        refuse([answer for answer in answers if isinstance(answer, Refusal)])
        return list(dict.fromkeys(change for answer in answers for change in answer))

    def copies(self) -> Copies:
        """The copies of parameters on every device."""
        held = {name: self.program.copies_on(name) for name in self.program.devices}
        return Copies(held, bool(self.program.replicas))

    def _rules(self) -> CheckpointRules:
        """The rules for the training alone: what later programs brought is the controller's to keep."""
        constants = frozenset(k for program in self.loaded for k in program.graph.constants)
        return CheckpointRules(
            {k: init.aliases for k, init in self.program.graph.initializers.items()},
            constants | frozenset(self.loaded.late),
            self.copies(),
        )
