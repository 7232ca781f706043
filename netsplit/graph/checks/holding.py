"""A model that holds other values for a while, and the names that initializers have in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from netsplit.graph.recording.stand_ins import attribute_tensors, named_tensors
from netsplit.graph.surroundings.keep import kept

__all__ = ["by_name", "first_names", "holding", "unseen"]


def first_names(model: nn.Module) -> dict[str, str]:
    """Every name of a parameter or buffer -> that which its initializer has; a tied one has several."""
    first: dict[int, str] = {}
    return {name: first.setdefault(t._cdata, name) for name, t in named_tensors(model).items()}


def by_name(model: nn.Module, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The present parameters and buffers by all their names in the modules."""
    names = first_names(model)
    return {name: values.get(names[name], tensor) for name, tensor in named_tensors(model).items()}


@contextmanager
def holding(model: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """The model with these values in its tensors; afterwards it is as it was, whatever its code did."""
    with unseen(model), kept(model):
        attributes = {f"attribute {name}": tensor for *_, name, tensor in attribute_tensors(model)}
        for name, tensor in (named_tensors(model) | attributes).items():
            if name in values:
                tensor.data.copy_(values[name])
        yield


def unseen(model: nn.Module) -> AbstractContextManager[Any]:
    """Whoever counts writes into the model's tensors counts none of those within."""
    held = (*named_tensors(model).values(), *(tensor for *_, tensor in attribute_tensors(model)))
    tensors = {t._cdata: t for t in held if not t.is_inference()}
    return torch.autograd.grad_mode._unsafe_preserve_version_counter(tuple(tensors.values()))
