"""What workers hold of a model, under the model's own names: fetched, given, written and read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from netsplit.program.instructions import Program
from netsplit.runtime import worker_calls
from netsplit.runtime.checkpoint.files import Refusal, State, refuse, write_checkpoint
from netsplit.runtime.checkpoint.shares import Copies
from netsplit.runtime.checkpoint.wholes import to_send, whole_tensors
from netsplit.runtime.controller.loaded import LoadedPrograms
from netsplit.runtime.worker_calls import CheckpointRules
from netsplit.runtime.workers.pool import WorkerPool

__all__ = ["HeldState"]


@dataclass(frozen=True)
class HeldState:
    """Of the workers that train by a program.

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
        """Of the initializers that later programs brought and that are no constants."""
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
        """Of parameters, on every device."""
        held = {name: self.program.copies_on(name) for name in self.program.devices}
        return Copies(held, bool(self.program.replicas))

    def _rules(self) -> CheckpointRules:
        """Of the training alone: what later programs brought is the controller's to keep."""
        constants = frozenset(k for program in self.loaded for k in program.graph.constants)
        return CheckpointRules(
            {k: init.aliases for k, init in self.program.graph.initializers.items()},
            constants | frozenset(self.loaded.late),
            self.copies(),
        )
