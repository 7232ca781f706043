"""What an optimiser keeps that neither a checkpoint nor a change of plan would carry."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from netsplit.optim.optimizers import plain_attributes

__all__ = ["uncarried_attribute", "uncarried_state"]


def uncarried_state(optimizer: torch.optim.Optimizer) -> str | None:
    """Of one that has stepped, what of its parameters' state would be lost or doubled, in words."""
    for state in optimizer.state.values():
        seen: dict[int, str] = {}
        for place, value in _flat(state):
            if any("." in key for key in place if isinstance(key, str)):
                return f"keeps state under '{'.'.join(map(str, place))}', in which a dot stands for a level"
            name = ".".join(map(str, place))
            if isinstance(value, Tensor) and value.numel() and seen.setdefault(id(value), name) != name:
                return f"keeps one tensor as '{seen[id(value)]}' and '{name}', which would become two"
    return None


def uncarried_attribute(optimizer: torch.optim.Optimizer, step: Callable[[], object]) -> str | None:
    """The name of an attribute that changes as it steps, and is not of plain values."""
    before = {key: _as_bytes(value) for key, value in vars(optimizer).items()}
    step()
    plain = {"state", "param_groups", "defaults", *plain_attributes(optimizer)}
    for key, value in vars(optimizer).items():
        if key not in plain and _as_bytes(value) != before.get(key):
            return key
    return None


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
        return pickle.dumps(value)
    except Exception:
        return None
