"""What an optimiser keeps that nothing takes to the devices, to a checkpoint or to another plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import cloudpickle
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from netsplit.errors import ConfigError
from netsplit.optim.optimizers import plain_attributes

__all__ = [
    "check_hooks", "check_keys", "has_step_hooks", "uncarried_attribute", "uncarried_state",
]  # fmt: skip


def uncarried_state(optimizer: torch.optim.Optimizer) -> str | None:
    """What of the state of an optimiser that has stepped would be lost or doubled, in words."""
    for state in optimizer.state.values():
        name_of: dict[int, str] = {}
        for place, value in _flat(state):
            if any("." in key for key in place if isinstance(key, str)):
                return f"keeps state under '{'.'.join(map(str, place))}', in which a dot stands for a level"
            name = ".".join(map(str, place))
            if isinstance(value, Tensor) and value.numel() and name_of.setdefault(id(value), name) != name:
                return f"keeps one tensor as '{name_of[id(value)]}' and '{name}', which would become two"
    return None


def uncarried_attribute(optimizer: torch.optim.Optimizer, step: Callable[[], object]) -> str | None:
    """The name of an attribute that changes as it steps, or of which that cannot be told, and is not of plain
    values."""
    before = {key: _as_bytes(value) for key, value in vars(optimizer).items()}
    step()
    plain = {"state", "param_groups", "defaults", *plain_attributes(optimizer)}
    for key, value in vars(optimizer).items():
        now = None if key in plain else _as_bytes(value)
        if key not in plain and (now is None or now != before.get(key)):
            return key
    return None


def has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Whether functions are called with its steps, which may keep anything."""
    return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)


def _flat(state: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(state, dict):
        for key, value in state.items():
            yield from _flat(value, (*place, key))
    elif isinstance(state, list | tuple):
        for i, value in enumerate(state):
            yield from _flat(value, (*place, i))
    else:
        yield place, state


def _as_bytes(value: Any) -> bytes | None:
    """None of what cannot be written."""
    try:
        return cast(bytes, cloudpickle.dumps(value))
    except Exception:
        return None


def check_hooks() -> None:
    """Refuse those that torch calls for every optimiser of this process: the devices' are in others.

    Raises:
        ConfigError: there are some.
    """
    if _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        raise ConfigError(
            "optimizer: a hook on the steps of all optimizers of this process "
            "(torch.optim.optimizer.register_optimizer_step_…_hook) is not called on the devices, which make "
            "their own: register it on the optimizer in the function that makes it."
        )


def check_keys(optimizer: Optimizer) -> None:
    """Refuse state of no parameter: checkpoints and changes of plan go by parameters.

    Raises:
        ConfigError: it names the key.
    """
    keys = [key for key in optimizer.state if not isinstance(key, Tensor)]
    if keys:
        raise ConfigError(
            f"optimizer {type(optimizer).__name__} keeps state under {keys[0]!r}, which is no parameter: "
            "keep it in its groups (self.param_groups), or by parameter in self.state[parameter]."
        )
