"""What an optimiser's or a scheduler's own code reads, of which workers were told once, before training."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from netsplit.errors import NetSplitError
from netsplit.graph.checks.python_state.state import StateSnapshot, bare, equal, state_in
from netsplit.graph.checks.screen import Screen
from netsplit.graph.surroundings.reach import is_own_module, names_in, within
from netsplit.optim.learning_rate import LearningRate
from netsplit.optim.optimizers import OptimizerFactory, make_optimizer

__all__ = ["FactoryWatch"]

_HOOKS = {
    "before": _global_optimizer_pre_hooks,
    "after": _global_optimizer_post_hooks,
}
_ATTRIBUTE = re.compile(r"\.(\w+)$|^'(\w+)' of [^\[]*\)$")


class FactoryWatch:
    """Looks at one optimiser and scheduler, made here like those of the devices: at globals and variables
    that their code names, at attributes that it names, and at tensors that the optimiser was given.

    What only the factory read when it made them is nothing afterwards.
    """

    def __init__(self, optimizer: OptimizerFactory, rate: LearningRate | None) -> None:
        made = make_optimizer(optimizer, {})
        scheduler = None if rate is None else rate.of(made.optimizer)
        self._roots: list[tuple[str, Any]] = [
            *((f"the hooks {when} all optimizers' steps", each) for when, each in _HOOKS.items()),
            *(("a tensor among the optimizer's settings", tensor) for tensor in made.given),
            ("the optimizer", made.optimizer),
            ("the scheduler", scheduler),
        ]
        self._code = [*_run_by(made.optimizer), *_run_by(scheduler)]
        reached = list(within(self._roots))
        self._screen = Screen([value for _, value in reached], ())
        self._held = state_in(reached, moving=False)

    def look(self) -> None:
        """Called before every batch.

        Raises:
            NetSplitError: names what has changed.
        """
        if self._screen.is_same():
            return
        reached = list(within(self._roots))
        named, now = self._names(value for _, value in reached), state_in(reached, moving=False)
        for name in _changed(self._held, now):
            owned = _ATTRIBUTE.search(name)
            if owned is None or (owned[1] or owned[2]) in named:
                raise NetSplitError(
                    f"{bare(name)} has been changed since training began, and the devices' optimizers and "
                    "schedulers, which have copies of what their code reads, do not see it: set "
                    "learning_rate of what parallelize gave, give a scheduler, or call parallelize again."
                )
        self._screen, self._held = Screen([value for _, value in reached], ()), now

    def _names(self, reached: Iterable[Any]) -> set[str]:
        """In the code that runs after each batch, and in what that calls, by its names."""
        functions: dict[str, list[FunctionType]] = {}
        for value in reached:
            if isinstance(value, FunctionType):
                functions.setdefault(value.__name__, []).append(value)
        ahead, names = list(self._code), set[str]()
        while ahead:
            new = set(names_in(ahead.pop().__code__)) - names
            names |= new
            ahead += [each for name in new for each in functions.pop(name, ())]
        return names


def _run_by(value: Any) -> Iterator[FunctionType]:
    """The user's functions in an optimiser or a scheduler: methods of its class, and what it holds."""
    if isinstance(value, Optimizer | LRScheduler):
        for kind in type(value).__mro__:
            if is_own_module(kind.__module__):
                yield from (each for part in vars(kind).values() for each in _run_by(part))
        held = {key: part for key, part in vars(value).items() if key != "optimizer"}
        yield from _run_by(list(held.values()))
    elif isinstance(value, FunctionType):
        yield value
        yield from _run_by(getattr(value, "__wrapped__", None))
    elif isinstance(value, MethodType):
        yield from _run_by(value.__func__)
    elif isinstance(value, functools.partial):
        yield from _run_by(value.func)
    elif isinstance(value, list | tuple | dict):
        parts = value.values() if isinstance(value, dict) else value
        yield from (each for part in parts for each in _run_by(part))
    elif is_own_module(type(value).__module__):
        yield from _run_by(vars(type(value)).get("__call__"))


def _changed(before: StateSnapshot, now: StateSnapshot) -> Iterable[str]:
    for name in dict.fromkeys((*before.values, *now.values)):
        missing = name not in before.values or name not in now.values
        if missing or not equal(before.values[name], now.values[name]):
            yield name
    for name in dict.fromkeys((*before.tensors, *now.tensors)):
        missing = name not in before.tensors or name not in now.tensors
        if missing or before.tensors[name].content != now.tensors[name].content:
            yield name
