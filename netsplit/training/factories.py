"""What an optimiser's or a scheduler's own code reads, of which workers were told once, before training."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MethodType
from typing import Any

from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from netsplit.errors import NetSplitError
from netsplit.graph.checks.notice import names_read
from netsplit.graph.checks.python_state.state import StateSnapshot, bare, equal, state_in
from netsplit.graph.checks.screen import Screen
from netsplit.graph.surroundings.reach import within

__all__ = ["FactoryWatch"]

_HOOKS = {
    "before": _global_optimizer_pre_hooks,
    "after": _global_optimizer_post_hooks,
}
_ENTRIES = ("step", "get_lr", "zero_grad")  # of optimisers and schedulers
_ATTRIBUTE = re.compile(r"^'(\w+)' of |\.(\w+)$")


class FactoryWatch:
    """Globals, variables around functions, settings that are tensors, attributes that their code names.

    Args:
        factories: of optimisers and schedulers, by what they are called in a sentence.
    """

    def __init__(self, factories: Mapping[str, Any]) -> None:
        self._roots = [(name, _users(each)) for name, each in factories.items()]
        self._roots += [(f"the hooks {when} all optimizers' steps", each) for when, each in _HOOKS.items()]
        self.accept()

    def look(self) -> None:
        """Called before every batch.

        Raises:
            NetSplitError: names what has changed.
        """
        if self._screen.is_same():
            return
        reached = self._reached()
        methods = (value.__name__ for _, value in reached if isinstance(value, MethodType))
        named = names_read(reached, (*_ENTRIES, *methods))
        for name in _changed(self._held, state_in(reached, moving=False)):
            owned = _ATTRIBUTE.search(name)
            if owned is None or (owned[1] or owned[2]) in named:
                raise NetSplitError(
                    f"{bare(name)} has been changed since training began, and the devices' optimizers and "
                    "schedulers, which have copies of what their code reads, do not see it: set "
                    "learning_rate of what parallelize gave, give a scheduler, or call parallelize again."
                )
        self.accept()

    def accept(self) -> None:
        """From now on this is how they stand, as after a factory was called here."""
        reached = self._reached()
        self._screen = Screen([value for _, value in reached], ())
        self._held = state_in(reached, moving=False)

    def _reached(self) -> list[tuple[str, Any]]:
        return list(within(self._roots))


def _users(factory: Any) -> Any:
    """What of it is the user's: of a factory of this package, what it was made of."""
    return vars(factory) if type(factory).__module__.startswith("netsplit.") else factory


def _changed(before: StateSnapshot, now: StateSnapshot) -> Iterable[str]:
    for name in dict.fromkeys((*before.values, *now.values)):
        missing = name not in before.values or name not in now.values
        if missing or not equal(before.values[name], now.values[name]):
            yield name
    for name in dict.fromkeys((*before.tensors, *now.tensors)):
        missing = name not in before.tensors or name not in now.tensors
        if missing or before.tensors[name].content != now.tensors[name].content:
            yield name
