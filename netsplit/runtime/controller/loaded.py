"""Which programs the workers of a pool have: sent once each, with the initializers that are new with them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from netsplit.graph.ir import Graph
from netsplit.interrupts import interrupts_held
from netsplit.profile.costs import Offload
from netsplit.program.instructions import Program
from netsplit.runtime import worker_calls
from netsplit.runtime.checkpoint.weights import WeightSource
from netsplit.runtime.checkpoint.wholes import to_send
from netsplit.runtime.share import OptimizerFactory, UpdateRule
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.runtime.workers.tell import tell

__all__ = ["LoadedPrograms", "graphs_of", "light"]


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
        """Of a program among those that the workers have; one that is new is sent to them."""
        for number, known in enumerate(self._every):
            if known is program:
                return number
        began = time.perf_counter()
        here = {k: home for each in self._every for k, home in each.initializer_device.items()}
        missing = {k: home for k, home in program.initializer_device.items() if k not in here}
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
