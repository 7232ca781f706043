"""What a dotted name in a config stands for, and its parameters as keys of types that can be checked."""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from netsplit.errors import ConfigError

__all__ = [
    "PARTIAL", "TARGET", "Parameter", "called", "check_settings", "dataclass_in", "describe", "key_as_given",
    "locate", "plain_types", "signature_of", "suggest",
]  # fmt: skip

TARGET = "_target_"
PARTIAL = "_partial_"
PRIMITIVES: dict[Any, str] = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
_UNIONS, _LISTS = (Union, types.UnionType), (list, tuple, collections.abc.Sequence)
_MAPPINGS = (dict, collections.abc.Mapping)


class Parameter(NamedTuple):
    hint: Any
    required: bool


def signature_of(target: Callable[..., Any], name: str, key: str = "") -> dict[str, Parameter]:
    """The target's keyword parameters; "**" if it takes any. `key` is where it is named."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError) as error:
        subject = f"{key} is {name}, which" if key else name
        raise ConfigError(
            f"{subject} has no readable signature: wrap it in a function with typed parameters."
        ) from error
    hints = _hints(target)
    answer = {}
    for parameter in parameters:
        if parameter.kind is parameter.VAR_KEYWORD:
            answer["**"] = Parameter(Any, required=False)
        elif parameter.kind not in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            required = parameter.default is parameter.empty
            answer[parameter.name] = Parameter(hints.get(parameter.name, Any), required)
    return answer


def key_as_given(key: str) -> str:
    """A full key as on the command line: `cluster.devices[0]` is `cluster.devices.0` there."""
    return re.sub(r"\[(\d+)\]", r".\1", key)


def describe(hint: Any) -> str:
    """A type in words: `int | None` is "an integer or null"."""
    hint = plain_types(hint)
    if dataclasses.is_dataclass(hint):
        return f"a mapping of {', '.join(field.name for field in dataclasses.fields(hint))}"
    origin, members = get_origin(hint), get_args(hint)
    if origin in _UNIONS:
        words = [describe(member) for member in members if member is not type(None)]
        return " or ".join(words + ["null"] * (type(None) in members))
    if origin is Literal:
        return f"one of {', '.join('null' if value is None else str(value) for value in members)}"
    if origin in _LISTS:
        return f"a list, each item {describe(members[0])}"
    if origin in _MAPPINGS:
        return f"a mapping, each value {describe(members[1])}"
    return PRIMITIVES.get(hint, "anything")


def plain_types(hint: Any) -> Any:
    """The checkable part of a type: `float | Tensor` is float, `Module` is Any."""
    origin, members = get_origin(hint), get_args(hint)
    if origin in _UNIONS:
        known = tuple(each for each in map(plain_types, members) if each is not Any)
        return Union[known] if set(known) - {type(None)} else Any  # noqa: UP007 - built from a tuple
    if origin in _LISTS or (origin in _MAPPINGS and members[0] is str):
        return origin[tuple(each if each is Ellipsis else plain_types(each) for each in members)]
    is_plain = hint in PRIMITIVES or hint is type(None) or origin is Literal
    return hint if is_plain or (inspect.isclass(hint) and dataclasses.is_dataclass(hint)) else Any


def dataclass_in(hint: Any) -> type | None:
    """The dataclass of this type or of its items; None if neither."""
    for member in get_args(hint) if get_origin(hint) in _UNIONS else [hint]:
        inner = get_args(member)[0] if get_origin(member) in _LISTS else member
        if inspect.isclass(inner) and dataclasses.is_dataclass(inner):
            return inner
    return None


def _hints(target: Callable[..., Any]) -> dict[str, Any]:
    """Type hints of the call; none if they need imports for type checking."""
    function = target
    if inspect.isclass(target):
        function = target if dataclasses.is_dataclass(target) else target.__init__
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return {}


def locate(name: str, key: str = "_target_") -> Callable[..., Any]:
    """What a dotted name stands for; `key` is where it was given."""
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


def called(target: Callable[..., Any] | str, key: str) -> Callable[..., Any]:
    """The target, by its dotted name or itself; raises ConfigError if it cannot be called."""
    if isinstance(target, str):
        return locate(target, key)
    if not callable(target):
        raise ConfigError(f"{key} is {target!r}: give a class or function, or its dotted name.")
    return target


def check_settings(
    target: Callable[..., Any], settings: Mapping[str, Any], key: str, partly: bool = False
) -> dict[str, Any]:
    """Settings that the target takes beside its first parameter, which is the program's; lists become tuples.

    Raises:
        ConfigError: it takes no such setting, or needs one that is missing, unless `partly`.
    """
    name = getattr(target, "__name__", str(target))
    try:
        parameters = dict(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        parameters = {}
    of_program = set(list(parameters)[:1])
    any_key = not parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    known = {k: p for k, p in parameters.items() if k not in of_program and p.kind is not p.VAR_KEYWORD}
    for setting in settings:
        if setting in of_program:
            raise ConfigError(f"{key}.{setting} is set by the program: leave it out.")
        if setting not in known and not any_key:
            raise ConfigError(f"{key}.{setting} is not a parameter of {name}: {suggest(setting, known)}")
    missing = [k for k, p in known.items() if p.default is p.empty and k not in settings]
    if missing and not partly and not any_key:
        raise ConfigError(f"{key}.{missing[0]} must be given: {name} needs it.")
    return {k: tuple(value) if isinstance(value, list) else value for k, value in settings.items()}


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the nearest known one, and all others."""
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
