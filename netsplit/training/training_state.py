"""The state of a training, on devices and in this process: loaded and saved.

The plain model gives and takes it with its own keys, hooks and extra state:

trained values ──► into the model ──► its own state_dict() or load_state_dict() ──► the model as it was

on devices    parameters, buffers, optimiser, averages, schedulers
here          the model's other tensors, where random operators and this process's generator stand, the cut
"""

from __future__ import annotations

import copy
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from netsplit.errors import NetSplitError
from netsplit.files import write_atomically
from netsplit.graph.checks.plain import first_names, has_values, holding, unseen
from netsplit.graph.ir import Graph
from netsplit.graph.recording.stand_ins import named_tensors, persistent_tensors
from netsplit.graph.user_code import where_of
from netsplit.interrupts import interrupts_held
from netsplit.runtime.checkpoint.files import Kind, State, check_fits, kind_of, read_extra, reason_of
from netsplit.runtime.checkpoint.shares import Cut, draws_state, load_draws, load_own, saved_cut
from netsplit.runtime.distributed import DistributedRuntime

__all__ = ["TrainingState", "loaded", "loss_state", "plain_state", "save_state"]

log = logging.getLogger(__name__)


def plain_state(model: nn.Module, values: Mapping[str, Tensor]) -> OrderedDict[str, Any]:
    """The model's `state_dict` with these values, on the CPU; all else is the model's own."""
    plain, own = model.state_dict(), named_tensors(model)
    if all(key in own and _is(value, own[key]) for key, value in plain.items()):
        names = first_names(model)
        tensors = {
            key: values[names[key]] if names[key] in values else value.detach().cpu()
            for key, value in plain.items()
        }
    else:
        with holding(model, values):
            tensors = {key: _own_copy(value) for key, value in model.state_dict().items()}
    state: Any = OrderedDict(tensors)
    if hasattr(plain, "_metadata"):  # versions of modules, by which their code reads older states
        state._metadata = plain._metadata
    return state


def loss_state(model: nn.Module, loss: nn.Module, values: Mapping[str, Tensor]) -> OrderedDict[str, Any]:
    """The loss's `state_dict`, from values by the names in model and loss together."""
    names: dict[int, str] = {}
    for name, tensor in named_tensors(model, loss).items():
        names.setdefault(id(tensor), name)
    own = ((name, names[id(tensor)]) for name, tensor in named_tensors(loss).items())
    return plain_state(loss, {name: values[k] for name, k in own if k in values})


def loaded(
    model: nn.Module, values: Mapping[str, Tensor], state: Mapping[str, Any], strict: bool
) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """What the model's own `load_state_dict` makes of its tensors; keys it misses, and keys it does not know.

    The model's tensors stay as they were. What it loads into Python (extra state) is loaded.

    Raises:
        NetSplitError: it does not take the state; nothing is changed then.
    """
    names = first_names(model)
    with holding(model, values):
        try:
            answer = model.load_state_dict(state, strict=strict)
        except Exception as error:
            raise NetSplitError(
                f"{type(model).__name__} cannot load the state{where_of(error)}: "
                f"{' '.join(str(error).split()).rstrip('.')}."
            ) from error
        now = named_tensors(model)
        fresh = {k: now[k].detach().cpu().clone() for k in dict.fromkeys(names.values()) if k in now}
    tensors = {k: t.detach().clone() for k, t in named_tensors(model).items()}
    with unseen(model):  # once more, for what it loads into Python
        model.load_state_dict(state, strict=strict)
    for k, tensor in named_tensors(model).items():
        if k in tensors:
            tensor.data.copy_(tensors[k])
    if isinstance(answer, tuple) and len(answer) == 2:
        return fresh, list(answer[0]), list(answer[1])
    return fresh, [], []


def save_state(state: Mapping[str, Any], path: str | Path) -> None:
    """Write a state for `torch.load`, whole or not at all."""
    try:
        write_atomically(path, lambda file: torch.save(state, file))
    except (OSError, RuntimeError) as error:  # the latter is torch's way to say that the disk is full
        raise NetSplitError(
            f"'{path}' cannot be written ({reason_of(error)}): choose another place, or free some space."
        ) from error


def _is(value: Any, tensor: Tensor) -> bool:
    if not isinstance(value, Tensor) or value.layout != tensor.layout or value.dtype != tensor.dtype:
        return False
    if value.layout is not torch.strided or value.is_meta:
        return value.shape == tensor.shape
    return value.data_ptr() == tensor.data_ptr() and (value.shape, value.stride()) == (
        tensor.shape,
        tensor.stride(),
    )


def _own_copy(value: Any) -> Any:
    """Copies on the CPU, which later changes of the model do not reach."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    copied = tree_map_only(Tensor, _own_copy, value)
    try:
        return copy.deepcopy(copied)
    except Exception:
        return copied


@dataclass(frozen=True)
class TrainingState:
    """Reads and writes one model's training state; `opened` raises once its workers have ended."""

    model: nn.Module
    graph: Graph
    opened: Callable[[], DistributedRuntime]
    cut: Cut

    def put(self, state: Mapping[str, Any], strict: bool) -> tuple[list[str], list[str]]:
        if not has_values(self.model, None):
            raise NetSplitError(
                "this model is on the meta device, so it cannot load a state: load a checkpoint, of which "
                "every device reads its own part."
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
        with interrupts_held():
            self.opened().save_checkpoint(folder, extra, self._controller_state())

    def load(self, folder: str | Path, holding: Callable[[], AbstractContextManager[None]]) -> dict[str, Any]:
        """See `ParallelModel.load_checkpoint`; `holding` wraps writes to the model's own tensors."""
        place = Path(folder).absolute()
        extra = read_extra(place)
        check_fits(place, self._needed())
        runtime = self.opened()
        if (before := saved_cut(place)) is not None and before != self.cut:
            log.warning(
                "checkpoint '%s' was trained with %s, this training has %s: batch statistics, buffers and "
                "random draws will differ (schedule.microbatches=%d keeps its number)",
                folder, before, self.cut, before.microbatches,
            )  # fmt: skip
        with interrupts_held(firmly=True):
            changed = runtime.load_checkpoint(place)
            draws = load_draws(place, runtime.draws.seed)
            if draws.seed != runtime.draws.seed:
                changed.append(f"seed {runtime.draws.seed} becomes {draws.seed}")
            runtime.draws = draws
            if changed:
                log.warning("checkpoint '%s' changes settings: %s", folder, ", ".join(changed))
            state = self._controller_state()
            with holding():
                load_own(place, state)
            late = {k: f"model.{k}" for k in runtime.loaded.late}
            runtime.put({k: state[name] for k, name in late.items() if name in state})
            torch.set_rng_state(state["rng.controller"])
        return extra

    def _needed(self) -> dict[str, Kind]:
        kinds = {name: kind_of(tensor) for name, tensor in persistent_tensors(self.model).items()}
        for k, init in self.graph.initializers.items():
            if k not in self.graph.constants:
                kinds |= dict.fromkeys((k, *init.aliases), (init.dtype, init.shape))
        return kinds

    def _controller_state(self) -> State:
        """Training state outside devices: unused tensors and random generators."""
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
        """Names of the training's tensors on devices."""
        return {name for k, init in self.graph.initializers.items() for name in (k, *init.aliases)}
