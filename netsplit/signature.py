"""What a dotted name in a config stands for, and its parameters as keys of types that OmegaConf checks."""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from netsplit.errors import ConfigError

__all__ = [
    "PARTIAL", "TARGET", "Parameter", "describe", "key_as_given", "locate", "signature_of", "suggest",
]  # fmt: skip

TARGET = "_target_"
PARTIAL = "_partial_"
PRIMITIVES: dict[Any, str] = {int: "an integer", float: "a number", bool: "true or false", str: "text"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a target as a config key."""

    name: str
    hint: Any  # what OmegaConf can check; Any where the signature says more than it can
    choices: tuple[Any, ...]  # of a Literal; else empty
    required: bool
    as_tuple: bool

    @property
    def is_list(self) -> bool:
        return any(get_origin(member) is list for member in members_of(self.hint))

    @property
    def item(self) -> type | None:
        """The dataclass that the value is, or that its items are; None if neither."""
        for member in members_of(self.hint):
            inner = get_args(member)[0] if get_origin(member) is list else member
            if inspect.isclass(inner) and dataclasses.is_dataclass(inner):
                return inner
        return None

    @property
    def accepts(self) -> str:
        if self.choices:
            return f"one of {', '.join('null' if value is None else str(value) for value in self.choices)}"
        return describe(self.hint)


def signature_of(target: Callable[..., Any], name: str, key: str = "") -> dict[str, Parameter]:
    """The target's keyword parameters; an entry "**" says that it takes any.

    Args:
        name: dotted, of the target.
        key: where a config names it, for the sentence.

    Raises:
        ConfigError: Python knows no signature of it.
    """
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError) as error:
        there = f"{key} is {name}, which" if key else name
        raise ConfigError(
            f"{there} has no readable signature: wrap it in a function with typed parameters."
        ) from error
    hints = _hints(target)
    answer = {}
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            answer["**"] = Parameter("**", Any, (), required=False, as_tuple=False)
        elif parameter.kind not in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            required = parameter.default is parameter.empty
            answer[parameter.name] = _parameter(parameter.name, hints.get(parameter.name, Any), required)
    return answer


def key_as_given(key: str) -> str:
    """A full key as the command line has it: `cluster.devices[0]` is `cluster.devices.0` there."""
    return re.sub(r"\[(\d+)\]", r".\1", key)


def describe(hint: Any) -> str:
    """A type in words: `int | None` is "an integer or null"."""
    if dataclasses.is_dataclass(hint):
        return f"a mapping of {', '.join(field.name for field in dataclasses.fields(hint))}"
    origin, members = get_origin(hint), get_args(hint)
    if _is_union(hint):
        words = [describe(member) for member in members if member is not type(None)]
        return " or ".join(words + ["null"] * (type(None) in members))
    if origin is list:
        return f"a list, each item {describe(members[0])}"
    if origin is dict:
        return f"a mapping, each value {describe(members[1])}"
    return PRIMITIVES.get(hint, "anything")


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    """Type hints of the call; none where they name what is imported for type checking only."""
    function = target
    if inspect.isclass(target):
        function = target if dataclasses.is_dataclass(target) else target.__init__
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}


def _parameter(name: str, hint: Any, required: bool) -> Parameter:
    inner = members_of(hint)
    origin = get_origin(inner[0]) if len(inner) == 1 else None
    choices = get_args(inner[0]) + (None,) * _is_union(hint) if origin is Literal else ()
    as_tuple = origin is tuple
    return Parameter(name, Any if choices else _checkable(hint), choices, required, as_tuple)


def members_of(hint: Any) -> list[Any]:
    """The types of a union without None; of anything else, itself."""
    return [member for member in get_args(hint) if member is not type(None)] if _is_union(hint) else [hint]


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _checkable(hint: Any) -> Any:
    """The nearest type that OmegaConf can check: `float | Tensor` is a float, `Module` is Any."""
    if hint in PRIMITIVES or (inspect.isclass(hint) and dataclasses.is_dataclass(hint)):
        return hint
    origin, members = get_origin(hint), get_args(hint)
    if _is_union(hint):
        return _checkable_union(members)
    if (
        origin in (list, tuple, collections.abc.Sequence)
        and members
        and (origin is not tuple or members[-1] is Ellipsis)
    ):
        return list[_checkable(members[0])]  # type: ignore[misc]
    if origin in (dict, collections.abc.Mapping) and len(members) == 2 and members[0] is str:
        return dict[str, _checkable(members[1])]  # type: ignore[misc]
    return Any


def _checkable_union(members: tuple[Any, ...]) -> Any:
    primitives = tuple(member for member in members if member in PRIMITIVES)
    others = [member for member in members if member not in PRIMITIVES and member is not type(None)]
    nullable = type(None) in members
    containers = [checked for checked in map(_checkable, others) if checked is not Any]
    if primitives and not containers:
        union: Any = Union[primitives]  # noqa: UP007 - built from a tuple
    elif len(containers) == 1 and not primitives and len(others) == 1:
        union = containers[0]
    else:
        return Any
    return union | None if nullable else union


def locate(name: str, key: str = "_target_") -> Callable[..., Any]:
    """What a dotted name stands for; `key` is where it was given, for the error.

    Raises:
        ConfigError: nothing of that name can be imported, or it cannot be called.
    """
    first, *rest = name.split(".")
    prefix, target = first, _import(first, name, key)
    for part in rest:
        if not hasattr(target, part) and isinstance(target, types.ModuleType):
            _import(f"{prefix}.{part}", name, key, target)
        target, prefix = getattr(target, part, None), f"{prefix}.{part}"
        if target is None:
            raise ConfigError(
                f"{key} is {name}, but there is no {prefix}: give the dotted name of a callable."
            )
    if not callable(target):
        raise ConfigError(
            f"{key} is {name}, which cannot be called: give the dotted name of a class or function."
        )
    return typing.cast(Callable[..., Any], target)


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown word: the nearest known one, and all of them."""
    names = sorted(map(str, known))
    if not names:
        return "none may be given here."
    near = difflib.get_close_matches(word, names, n=1)
    every = f"known: {', '.join(names)}."
    return f"did you mean {near[0]}? ({every[:-1]})" if near else every


def _import(module: str, name: str, key: str, parent: types.ModuleType | None = None) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module or (error.name and module.startswith(f"{error.name}.")):
            known = [] if parent is None else [entry for entry in dir(parent) if not entry.startswith("_")]
            near = difflib.get_close_matches(module.rpartition(".")[2], known, n=1)
            hint = f"did you mean {near[0]}?" if near else "give the dotted name of a callable."
            raise ConfigError(f"{key} is {name}, but there is no {module}: {hint}") from error
        raise ConfigError(f"{key} is {name}, which needs the package '{error.name}': install it.") from error
    except ValueError as error:  # an empty part, as in "a..b"
        raise ConfigError(f"{key} is '{name}': give the dotted name of a callable.") from error
