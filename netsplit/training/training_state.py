"""The state of a training: what the devices hold, and what of it is here; loaded, and kept as a checkpoint.

on devices    parameters, buffers, optimiser, averages, schedulers
here          the model's other tensors, where random operators and this process's generator stand, the cut
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from netsplit.errors import NetSplitError
from netsplit.graph.checks.plain import first_names, has_values
from netsplit.graph.ir import Graph
from netsplit.graph.recording.stand_ins import named_tensors, persistent_tensors
from netsplit.interrupts import interrupts_held
from netsplit.runtime.checkpoint.files import Kind, State, check_fits, kind_of, read_extra
from netsplit.runtime.checkpoint.shares import Cut, draws_state, load_draws, load_own, saved_cut
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.training.plain_state import loaded

__all__ = ["TrainingState"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingState:
    """Reads and writes the training state of one placed model.

    Args:
        graph: of the training step.
        opened: the runtime, as long as the workers live.
        cut: of its batches into micro-batches.
    """

    model: nn.Module
    graph: Graph
    opened: Callable[[], DistributedRuntime]
    cut: Cut

    def put(self, state: Mapping[str, Any], strict: bool) -> tuple[list[str], list[str]]:
        """See `ParallelModel.load_state_dict`."""
        if not has_values(self.model, None):
            raise NetSplitError(
                "this model has no memory of its own to load a state into (it is on the meta device): load a "
                "checkpoint, which every device reads its own part of."
            )
        values, missing, unknown = loaded(self.model, self.opened().state(), state, strict)
        placed = self._placed
        with interrupts_held(firmly=True):
            self.opened().put(values)
            for k, tensor in named_tensors(self.model).items():
                if k in values and k not in placed:
                    tensor.data.copy_(values[k])
        return missing, unknown

    def save(self, folder: Path, extra: Mapping[str, Any]) -> None:
        """Write a checkpoint, whole or not at all."""
        with interrupts_held():
            self.opened().save_checkpoint(folder, extra, self._controller_state())

    def load(self, folder: str | Path, holding: Callable[[], AbstractContextManager[None]]) -> dict[str, Any]:
        """See `ParallelModel.load_checkpoint`.

        Args:
            holding: while the model's own tensors are written.
        """
        place = Path(folder).absolute()
        extra = read_extra(place)
        check_fits(place, self._needed())
        runtime = self.opened()
        if (before := saved_cut(place)) is not None and before != self.cut:
            log.warning(
                "checkpoint '%s' was trained with %s, and here are %s: batch statistics, buffers and random "
                "draws go by the micro-batch (schedule.microbatches=%d takes as many)",
                folder, before, self.cut, before.microbatches,
            )  # fmt: skip
        with interrupts_held(firmly=True):
            changed = runtime.load_checkpoint(place)
            draws = load_draws(place, runtime.draws.seed)
            if draws.seed != runtime.draws.seed:
                changed.append(f"seed {runtime.draws.seed} of what is drawn becomes {draws.seed}")
            runtime.draws = draws
            if changed:
                log.warning("checkpoint '%s' brings its own settings: %s", folder, ", ".join(changed))
            state = self._controller_state()
            with holding():
                load_own(place, state)
            late = {k: f"model.{k}" for k in runtime.loaded.late}
            runtime.put({k: state[name] for k, name in late.items() if name in state})
            torch.set_rng_state(state["rng.controller"])
        return extra

    def _needed(self) -> dict[str, Kind]:
        """Every name that a checkpoint of this model has."""
        kinds = {name: kind_of(tensor) for name, tensor in persistent_tensors(self.model).items()}
        for k, init in self.graph.initializers.items():
            if k not in self.graph.constants:
                kinds |= dict.fromkeys((k, *init.aliases), (init.dtype, init.shape))
        return kinds

    def _controller_state(self) -> State:
        """What training needs on no device: tensors it does not use, and where random numbers stand."""
        placed, names = self._placed, first_names(self.model)
        runtime = self.opened()
        late = runtime.late_state()
        state = {
            f"model.{k}": late.get(names[k], t.data)
            for k, t in persistent_tensors(self.model).items()
            if k not in placed
        }
        return {
            **state,
            "rng.controller": torch.get_rng_state(),
            **draws_state(runtime.draws),
            **{f"cut.{key}": value for key, value in asdict(self.cut).items()},
        }

    @property
    def _placed(self) -> set[str]:
        """Names of the tensors that training has on devices."""
        return {name for k, init in self.graph.initializers.items() for name in (k, *init.aliases)}
