"""Classes of torch named in a config, with settings checked against what they take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from netsplit.errors import ConfigError
from netsplit.signature import locate, suggest

__all__ = ["called", "check_settings"]


def called(target: Callable[..., Any] | str, key: str) -> Callable[..., Any]:
    """The callable of a dotted name, or the target itself; raises ConfigError if not callable."""
    if isinstance(target, str):
        return locate(target, key)
    if not callable(target):
        raise ConfigError(f"{key} is {target!r}: give a class or function, or its dotted name.")
    return target


def check_settings(
    target: Callable[..., Any], settings: Mapping[str, Any], key: str, partly: bool = False
) -> dict[str, Any]:
    """Check the target's settings, without its first parameter; lists become tuples.

    Args:
        partly: required settings may be missing.

    Raises:
        ConfigError: an unknown setting, or a required one is missing.
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
