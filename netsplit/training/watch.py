"""Warnings about changes of the original model, which the training copy does not see."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from netsplit.graph.batches.batch import Batch
from netsplit.graph.checks.plain import by_name, difference
from netsplit.graph.operators import refuse_surrounding
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.feeds import UnreadBatch
from netsplit.training.programs import Programs

__all__ = ["ModelWatch"]

log = logging.getLogger(__name__)

_CHANGED = {
    "training": ("the model's mode (train or eval)", "it trains in the mode it had then"),
    "requires_grad": (
        "requires_grad of the model's parameters",
        "call parallelize again to train other parameters",
    ),
}
"""Attribute -> what was changed, and the cure."""


class ModelWatch:
    """Compares the given model's modes, `requires_grad` and writes before every batch."""

    def __init__(
        self,
        model: nn.Module,
        programs: Programs,
        opened: Callable[[], DistributedRuntime],
        turn: threading.RLock,
    ) -> None:
        self.model, self.opened = model, opened
        self._turn = turn
        self._values = lambda: opened().state()
        programs.captures.trained = self._values
        self._stood: list[tuple[Any, str, bool]] = [
            *((module, "training", module.training) for module in model.modules()),
            *((tensor, "requires_grad", tensor.requires_grad) for tensor in model.parameters()),
        ]
        self._stores = [module._parameters for module in model.modules()]
        self._spaces = [(space, dict(space)) for module in model.modules() for space in _spaces(module)]
        self._versions = self._written()
        self._warned: set[str] = set()

    def look(self) -> None:
        changed = [_CHANGED[key] for each, key, was in self._stood if getattr(each, key) != was]
        if (versions := self._written()) != self._versions:
            if not any(self._is_as_in(state) for state in self._states()):
                changed.append(
                    (
                        "the model's parameters",
                        "change the model that parallelize returned, with its load_state_dict",
                    )
                )
            self._versions = versions
        for what, cure in {what: cure for what, cure in changed if what not in self._warned}.items():
            self._warned.add(what)
            log.warning(
                "You changed %s after parallelize, but the copy that trains does not see the change: %s.",
                what, cure,
            )  # fmt: skip

    def _written(self) -> list[tuple[int, int]]:
        """Storage and version of each of the model's parameters."""
        now = (t for store in self._stores for t in store.values() if t is not None and not is_lazy(t))
        return [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in now]

    def _is_as_in(self, state: dict[str, Tensor]) -> bool:
        """Whether trained values were copied into the model, e.g. to save or evaluate them."""
        pairs = ((state.get(k), t) for k, t in self.model.named_parameters())
        return all(difference(a if a is None else a.cpu(), t.cpu()) is None for a, t in pairs)

    def _states(self) -> Iterator[dict[str, Tensor]]:
        yield by_name(self.model, self.opened().state())
        if self.opened().rule.ema_decay is not None:
            yield by_name(self.model, self.opened().state(averaged=True))

    @contextmanager
    def own(self, programs: Programs, captures_none: bool = False) -> Iterator[None]:
        """Mark NetSplit's own changes of the model."""
        with self._turn:
            refuse_surrounding(programs.captures.asked.autocast)
            programs.captures.trained = self._values  # other runtimes may have replaced it
            self.look()
            spaces = () if captures_none else self._spaces
            others = [(space, dict(space), was) for space, was in spaces if not _is_same(space, was)]
            now = [(each, key, getattr(each, key), was) for each, key, was in self._stood]
            changed = [each for each in now if each[2] != each[3]]
            made_s = programs.made_s
            try:
                for space, _, first in others:
                    _fill(space, first)
                for each, key, _, was in changed:
                    setattr(each, key, was)
                yield
            finally:
                for each, key, value, _ in changed:
                    setattr(each, key, value)
                for space, content, _ in others:
                    _fill(space, content)
                if programs.made_s != made_s:
                    self._versions = self._written()

    @contextmanager
    def training(self, programs: Programs, inputs: Any, targets: Any) -> Iterator[Batch | UnreadBatch]:
        with self._turn:
            # An unread batch becomes new tensors on the workers.
            batch = inputs if isinstance(inputs, UnreadBatch) else programs.batch(inputs, targets)
            with self.own(programs, isinstance(batch, Batch) and programs.has(batch)):
                yield batch


def _spaces(module: nn.Module) -> Iterator[dict[str, Any]]:
    """A module's attributes, parameters, buffers and modules."""
    own = vars(module)
    yield own
    for key in ("_parameters", "_buffers", "_modules"):
        if isinstance(own.get(key), dict):
            yield own[key]


def _is_same(space: dict[str, Any], was: dict[str, Any]) -> bool:
    return len(space) == len(was) and all(space.get(key, space) is value for key, value in was.items())


def _fill(space: dict[str, Any], content: dict[str, Any]) -> None:
    space.clear()
    space.update(content)
