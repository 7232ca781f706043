"""The user's model and loss as they are, run on a batch; they are left as they were given."""

from __future__ import annotations

import copy
import os
import random
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from netsplit.errors import CaptureError
from netsplit.graph.autocast import autocast_of
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss
from netsplit.graph.batches.strides import copy_as_it_lies
from netsplit.graph.ir import Graph
from netsplit.graph.plain_draws import draws
from netsplit.graph.random_draws import generators_kept, seed_generators
from netsplit.graph.recording.seeds import no_seeds
from netsplit.graph.recording.stand_ins import attribute_tensors
from netsplit.graph.recording.step import TrainingStep
from netsplit.graph.recording.whole import ModuleCall

__all__ = [
    "TensorsAtOnce", "copies", "forward", "forward_again", "has_values", "hidden", "no_other_draws",
    "own", "stance", "threads_for", "with_own_calls",
]  # fmt: skip

_SMALL = 2**28  # bytes


@contextmanager
def threads_for(activations: int) -> Iterator[None]:
    """Small operators gain nothing by threads, and on a busy machine wait for them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if activations < _SMALL else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def stance(graph: Graph) -> AbstractContextManager[Any]:
    """Compiled functions compute the same as they are; but what stays whole may need the compiler."""
    native = any(isinstance(call, ModuleCall) for call in graph.calls.values())
    return nullcontext() if native else torch.compiler.set_stance("force_eager")


def forward(step: TrainingStep, graph: Graph, tensors: tuple[Tensor, ...], iteration: int) -> list[Tensor]:
    """Loss and metrics of a micro-batch, with the draws that its graph has."""
    cast = autocast_of(graph, "cpu")
    with torch.enable_grad(), stance(graph), draws(graph, iteration=iteration), cast:
        return list(step(*copies(tensors)))


def forward_again(step: TrainingStep, graph: Graph, tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """The same with draws that are as those of every other such call, but not the graph's."""
    with torch.enable_grad(), stance(graph), generators_kept(), no_seeds(), autocast_of(graph, "cpu"):
        seed_generators(1)
        return list(step(*copies(tensors)))


@contextmanager
def hidden(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Code that finds these of the model's own tensors, though others train, computes with NaN meanwhile."""
    held = [(tensor, tensor.detach().clone()) for tensor in tensors]
    for tensor, _ in held:
        tensor.data.fill_(torch.nan)
    try:
        yield
    finally:
        for tensor, value in held:
            tensor.data.copy_(value)


def has_values(model: nn.Module, loss: Loss | None, batch: Batch | None = None) -> bool:
    """Whether all can be computed: nothing of it is on the meta device."""
    modules = [each for each in (model, loss) if isinstance(each, nn.Module)]
    own = (tensor for each in modules for tensor in (*each.parameters(), *each.buffers()))
    return not any(tensor.is_meta for tensor in (*own, *(batch.tensors if batch is not None else ())))


class TensorsAtOnce:
    """Buffers, attributes that are tensors, and others that are given, at one moment."""

    def __init__(self, step: nn.Module, others: Iterable[Tensor] = ()) -> None:
        stores = ((module._buffers, each) for module in step.modules() for each in module._buffers.items())
        self._held: list[tuple[Any, str, Tensor]] = [(s, k, t) for s, (k, t) in stores if t is not None]
        self._held += [(vars(module), key, t) for module, key, _, t in attribute_tensors(step)]
        tensors = {id(t): t for t in (*(t for _, _, t in self._held), *others)}
        self._values = [(t, t.detach().clone()) for t in tensors.values()]

    def back(self) -> None:
        for store, key, tensor in self._held:
            store[key] = tensor
        for tensor, value in self._values:
            tensor.data.copy_(value)


def with_own_calls(graph: Graph) -> Graph:
    """What whole modules keep in Python is then another's than the graph's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of torch, about copies of its own structures
        return replace(graph, calls=copy.deepcopy(dict(graph.calls)))


def own(tensor: Tensor, trained: bool) -> Tensor:
    copied = tensor.detach().clone()
    return nn.Parameter(copied) if trained else copied


def copies(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(map(copy_as_it_lies, tensors))


@contextmanager
def no_other_draws(name: str) -> Iterator[None]:
    """Python's and NumPy's random numbers are drawn at capture once and for all."""
    python: Any = random.getstate()
    numpy: Any = np.random.get_state()
    with mock.patch.object(random, "_urandom", wraps=os.urandom) as system:  # of SystemRandom
        yield
    drawn = [] if random.getstate() == python and not system.called else ["Python's random"]
    now: Any = np.random.get_state()
    if now[2] != numpy[2] or not np.array_equal(now[1], numpy[1]):
        drawn.append("numpy.random")
    if drawn:
        raise CaptureError(
            f"{name} draws from {drawn[0]}, which a captured step would do once and for all: draw with torch "
            f"(torch.rand, torch.bernoulli), which stays in the step."
        )
