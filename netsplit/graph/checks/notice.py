"""What the user changes in a model after it was captured, which the captured step does not see.

Looked for before every batch, first by identity (`screen`), and only where that shows a difference by name.
Attributes that no code in reach names may change: what a training loop writes down on the model is its own.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from netsplit.errors import NetSplitError
from netsplit.graph.checks.python_state.state import bare, equal, same_values, state_of
from netsplit.graph.checks.screen import Screen, gradient_hooks, hooks_of_all_modules
from netsplit.graph.recording.stand_ins import named_tensors
from netsplit.graph.surroundings.reach import is_own_module, names_in, within

__all__ = ["Notice"]

Trained = Callable[[], Iterable[Mapping[str, Tensor]]]
Reached = list[tuple[str, Any]]

_CODE = (FunctionType, BuiltinFunctionType, MethodType, type)
_INDIRECT = frozenset({"getattr", "vars", "__dict__", "__getattribute__"})
_OF_TORCH = frozenset({"forward", *vars(nn.Module())})
_ATTRIBUTE = re.compile(r"'(\w+)' of (?!class |the function )(.*?\))")


_AGAIN = "set it back, or give what was trained (state_dict) to the model and call parallelize again"
_BATCH = "put what changes while training into the batch, as a tensor, or call parallelize again"


def _nothing() -> Iterable[Mapping[str, Tensor]]:
    return ()


def _always() -> bool:
    return True


class Notice:
    """How a model and its loss stood when they were captured, or when a change was last found harmless.

    Args:
        optimizers: that a factory made here and the user kept, though others train.
    """

    def __init__(self, model: nn.Module, loss: Any, optimizers: Iterable[Optimizer] = ()) -> None:
        self.model, self.loss = model, loss
        self._settings = [(optimizer, _settings(optimizer)) for optimizer in optimizers]
        self._stand(None)

    def accept(self) -> None:
        """From now on this is how they stand: what the program itself did to them is no change."""
        self._stand(self._screen)

    def _stand(self, before: Screen | None) -> None:
        reached = self._reached()
        self._tensors = named_tensors(self.model, self.loss)
        self._trained = {name: tensor.requires_grad for name, tensor in self._tensors.items()}
        self._modules = {name: (type(each), each.training) for name, each in _modules(reached)}
        self._code = _code(reached)
        self._hooks = _hooks(self._tensors)
        self._evaluated: Screen | None = None
        self._state = state_of(self.model, self.loss, moving=False)
        self._screen = self._screened(reached, before)

    def _screened(self, reached: Reached, before: Screen | None) -> Screen:
        return Screen([value for _, value in reached], self._tensors.values(), before)

    def look(self, trained: Trained = _nothing, training: bool = True) -> None:
        """Called before every batch.

        Args:
            training: else it is predicted, for which modes and `requires_grad` are nothing.
            trained: gives states by the model's keys: parameters and buffers of the user's model that are
                as in one of them were copied there (to save them, or for an evaluation), and are no change.

        Raises:
            NetSplitError: names what has changed, and what to do.
        """
        if training and any(_settings(optimizer) != before for optimizer, before in self._settings):
            raise NetSplitError(
                "an optimizer that your factory made has been given other settings since, and it is none of "
                "those that train, of which each device has one: set learning_rate of what parallelize gave, "
                "or give parallelize a scheduler."
            )
        if self._screen.is_same() or (not training and self._evaluated and self._evaluated.is_same()):
            return
        if (change := self._changed(training)) is not None:
            what, cure = change
            raise NetSplitError(
                f"{what} has been changed since the model was split, which its captured step does not see: "
                f"{cure}."
            )
        self._refuse_written(trained)
        if training:
            self.accept()
        else:
            self._evaluated = self._screened(self._reached(), self._screen)

    @contextmanager
    def own(self, looked: bool = False, ran: Callable[[], bool] = _always) -> Iterator[None]:
        """What changes within is the program's own doing: a capture runs the model, for one.

        Args:
            looked: `look` has just passed.
            ran: whether anything within ran the model; asked at the end. A look takes a millisecond or two.
        """
        was_same, ended = looked or self._screen.is_same(), False
        try:
            yield
            ended = True
        finally:
            if was_same and (not ended or ran()) and not self._screen.is_same():
                self.accept()

    def _reached(self) -> Reached:
        return list(within((("the model", self.model), ("the loss", self.loss))))

    def _refuse_written(self, trained: Trained) -> None:
        now = named_tensors(self.model, self.loss)
        written = [
            name
            for name, tensor in self._tensors.items()
            if now.get(name) is not tensor or self._screen.written.has(tensor)
        ]
        if written and not any(all(_is_as_in(state, name, now) for name in written) for state in trained()):
            raise NetSplitError(
                f"'{written[0]}' of your model has been written or replaced since the model was split, and "
                "what trains is a copy: write to that with load_state_dict of what parallelize gave "
                "(strict=False takes a part), or put what changes while training into the batch, as a tensor."
            )

    def _changed(self, training: bool) -> tuple[str, str] | None:
        """What, and what to do instead."""
        for name in _differing(self._hooks, _hooks(self._tensors), _are_same):
            return name, _AGAIN
        reached = self._reached()
        reads = _reads(reached)
        for name, module in _modules(reached):
            kind, was = self._modules.get(name, (type(module), module.training))
            if kind is not type(module):
                return f"the module {name}", _AGAIN
            if training and was != module.training and ("training" in reads or _reads_mode(kind)):
                return f"the mode (train or eval) of {name}", _AGAIN
        for name, tensor in self._tensors.items():
            if training and tensor.requires_grad != self._trained[name]:
                return f"requires_grad of '{name}'", _AGAIN
        idle = {
            f"{name} ({type(each).__name__})" for name, each in _modules(reached) if _is_plain(type(each))
        }
        now = state_of(self.model, self.loss, moving=False)
        for name in (
            *_differing(self._code, _code(reached), _is_same_code),
            *_differing(self._state.values, now.values, equal),
            *_differing(self._state.tensors, now.tensors, lambda a, b: a.content == b.content),
        ):
            owned = _ATTRIBUTE.match(name)
            if owned is None or owned[1] in reads | _OF_TORCH or reads & _INDIRECT:
                return bare(name), _BATCH
            if owned[2] not in idle and name in self._names:
                return bare(name), _BATCH
        return None

    @property
    def _names(self) -> set[str]:
        return self._state.values.keys() | self._state.tensors.keys() | self._code.keys()


def _settings(optimizer: Optimizer) -> list[dict[str, str]]:
    own = ("params", "param_names")
    return [{k: repr(v) for k, v in group.items() if k not in own} for group in optimizer.param_groups]


def _hooks(tensors: Mapping[str, Tensor]) -> dict[str, list[Any]]:
    every = {f"a hook on the gradient of '{name}'": gradient_hooks(each) for name, each in tensors.items()}
    return every | {"a hook on all modules of this process": hooks_of_all_modules()}


def _are_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(map(operator.is_, a, b))


def _modules(reached: Reached) -> Iterator[tuple[str, nn.Module]]:
    return ((name, value) for name, value in reached if isinstance(value, nn.Module))


def _code(reached: Reached) -> dict[str, Any]:
    return {name: value for name, value in reached if isinstance(value, _CODE)}


def _differing(
    before: Mapping[str, Any], now: Mapping[str, Any], same: Callable[[Any, Any], bool]
) -> list[str]:
    """Names of what is another, has come or has gone."""
    names = dict.fromkeys((*before, *now))
    return [name for name in names if not (name in before and name in now and same(before[name], now[name]))]


def _is_same_code(a: Any, b: Any) -> bool:
    return a is b or bool(type(a) is type(b) is MethodType and a == b)


def _is_as_in(state: Mapping[str, Tensor], name: str, now: Mapping[str, Tensor]) -> bool:
    return name in state and name in now and same_values(state[name].cpu(), now[name].cpu())


def _reads(reached: Reached) -> set[str]:
    """Names in the code that runs: of methods those that other code names, from `forward` on."""
    methods: dict[str, list[FunctionType]] = {}
    names: set[str] = set()
    ahead: list[FunctionType] = []
    for _, value in reached:
        if isinstance(value, FunctionType):
            _, _, inner = value.__qualname__.rpartition("<locals>.")
            name = value.__name__
            if "." not in inner or name == "forward" or (name.startswith("__") and name != "__init__"):
                ahead.append(value)
            else:
                methods.setdefault(name, []).append(value)
    while ahead:
        new = set(names_in(ahead.pop().__code__)) - names
        names |= new
        ahead += [method for name in new for method in methods.pop(name, ())]
    return names


def _reads_mode(kind: type) -> bool:
    """Whether a module of this class does something else in training than in evaluation."""
    functions = (
        value
        for each in kind.__mro__[: kind.__mro__.index(nn.Module)]
        for value in vars(each).values()
        if isinstance(value, FunctionType)
    )
    return any("training" in names_in(function.__code__) for function in functions)


def _is_plain(kind: type) -> bool:
    """Whether all code of a module's class is the user's, but for that of torch's `Module`."""
    return all(is_own_module(each.__module__) for each in kind.__mro__[: kind.__mro__.index(nn.Module)])
