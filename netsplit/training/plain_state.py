"""A split model's state as the plain model itself gives and takes it: with its own keys, hooks, extra state.

trained values ──► into the model ──► its own state_dict() or load_state_dict() ──► the model as it was
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from netsplit.errors import NetSplitError
from netsplit.files import write_atomically
from netsplit.graph.checks.plain import first_names, holding, unseen
from netsplit.graph.code_places import where_of
from netsplit.graph.recording.stand_ins import named_tensors

__all__ = ["loaded", "loss_state", "plain_state", "save_state"]


def plain_state(model: nn.Module, values: Mapping[str, Tensor]) -> OrderedDict[str, Any]:
    """The model's `state_dict` with these values, on the CPU; what is not among them is the model's own."""
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
    """The loss's `state_dict`, of values by the names that model and loss have together."""
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

    Args:
        values: the present ones, by initializer.

    Raises:
        NetSplitError: it does not take the state; nothing is changed then.
    """
    names = first_names(model)
    with holding(model, values):
        try:
            answer = model.load_state_dict(state, strict=strict)
        except Exception as error:
            raise NetSplitError(
                f"{type(model).__name__} does not load the state{where_of(error)}: "
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
    """Write a state to a file that `torch.load` reads, whole or not at all.

    Raises:
        NetSplitError: it cannot be written there.
    """
    try:
        write_atomically(path, lambda file: torch.save(state, file))
    except OSError as error:
        raise NetSplitError(
            f"'{path}' cannot be written ({error.strerror or error}): choose another place, or make room."
        ) from error
    except RuntimeError as error:  # torch's way to say that the disk is full
        reason = str(error).splitlines()[0]
        raise NetSplitError(
            f"checkpoint '{path}' could not be written whole, most likely as no room is left ({reason}): "
            "make room, or choose another place."
        ) from error


def _is(value: Any, tensor: Tensor) -> bool:
    """Whether a value of a state is that very tensor."""
    if not isinstance(value, Tensor) or value.layout != tensor.layout or value.dtype != tensor.dtype:
        return False
    if value.layout is not torch.strided or value.is_meta:
        return value.shape == tensor.shape
    return value.data_ptr() == tensor.data_ptr() and (value.shape, value.stride()) == (
        tensor.shape,
        tensor.stride(),
    )


def _own_copy(value: Any) -> Any:
    """Tensors on the CPU; nothing that the model changes later."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    copied = tree_map_only(Tensor, _own_copy, value)
    try:
        return copy.deepcopy(copied)
    except Exception:
        return copied
