"""From config nodes to objects, with every key and value checked against the target's signature.

A config group option names what it builds and gives its parameters::

    _target_: netsplit.models.amoebanet_d
    num_layers: 6

`build` reads the signature of the target and lets pydantic check the node's values against it, so that a
parameter is declared in one place only: where it is used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, get_origin

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ConfigDict, TypeAdapter

from netsplit.errors import ConfigError, NetSplitError
from netsplit.settings import Settings
from netsplit.signature import (
    PARTIAL,
    TARGET,
    Parameter,
    dataclass_in,
    describe,
    key_as_given,
    locate,
    plain_types,
    signature_of,
    suggest,
)

__all__ = ["build", "require_node", "settings_in", "validated"]

_CALLED = ("loss", "metrics")  # nodes that may be a function as well as what one makes


def build(node: Mapping[str, Any] | DictConfig, /, **extra: Any) -> Any:
    """Call the node's `_target_` with the node's parameters and `extra`, which the node must not give.

    With `_partial_: true` the answer is a `functools.partial`, and parameters may be missing. Parameters
    that are nodes with a `_target_` of their own are built first.

    Raises:
        ConfigError: an unknown or missing key, a wrong type, a target that cannot be imported, or
            values that the target itself refuses.
    """
    if not isinstance(node, Mapping):
        raise ConfigError(f"{node!r} has no {TARGET}: name there what to build.")
    config = node if isinstance(node, DictConfig) else OmegaConf.create(dict(node))
    target, arguments = _checked(config, extra)
    for name in _nested(config):
        arguments[name] = build(config[name])
    if config.get(PARTIAL):
        return partial(target, **arguments, **extra)
    place = _full_key(config) or config[TARGET]
    try:
        return target(**arguments, **extra)
    except NetSplitError:
        raise
    except (ValueError, MemoryError, RuntimeError) as error:  # of memory that no machine has, torch's own
        raise ConfigError(f"{place}: {config[TARGET]} rejects these values: {error}") from error


def require_node(config: DictConfig, key: str, options: bool) -> None:
    """Refuse what `build` cannot use, such as `loss=None`; `options`: the key is a config group."""
    node = config.get(key)
    if not isinstance(node, DictConfig) or not node:
        choice = f", or choose an option of the group {key}" if options else ""
        raise ConfigError(
            f"{key} is {_shown(node)}: name a callable that returns it, such as "
            f"{key}.{TARGET}=my_package.{key}{choice}."
        )


def settings_in(config: DictConfig, groups: Iterable[str] | None = None) -> Settings:
    """The checked top-level settings; `groups` are other allowed keys, None allows any."""
    known = {*Settings.__annotations__, *(groups if groups is not None else map(str, config))}
    for key in map(str, config):
        if key not in known:
            raise ConfigError(f"{key} is not a config key: {suggest(key, known)}")
    given = {name: config[name] for name in Settings.__annotations__ if name in config}
    values = _convert(signature_of(Settings, "config"), DictConfig(given), "", frozenset(), "the config")
    return Settings(**values)


def validated(
    config: DictConfig,
    provided: Mapping[str, Iterable[str]] | None = None,
) -> Settings:
    """The top-level settings; every node that has a `_target_`, at any depth, is checked too, and none built.

    `provided`: full key of a node -> names of the parameters that the program will give to `build`.
    """
    settings = settings_in(config)
    _check_nodes(config, {key: frozenset(names) for key, names in (provided or {}).items()})
    return settings


def _check_nodes(node: Any, provided: Mapping[str, frozenset[str]]) -> None:
    if isinstance(node, DictConfig) and not node._is_none() and not node._is_missing():
        if TARGET in node:
            _checked(node, provided.get(_full_key(node), frozenset()))
        children: Iterable[Any] = [_child(node, name) for name in node]
    elif isinstance(node, ListConfig) and not node._is_none() and not node._is_missing():
        children = [_child(node, index) for index in range(len(node))]
    else:
        return
    for child in children:
        _check_nodes(child, provided)


def _child(node: DictConfig | ListConfig, key: Any) -> Any:
    """A child; None if missing or an interpolation, which is checked where it is used."""
    if OmegaConf.is_missing(node, key) or OmegaConf.is_interpolation(node, key):
        return None
    return node[key]


def _checked(config: DictConfig, extra: Iterable[str]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The node's target and its own parameters as Python values, without nested targets."""
    place = _full_key(config)
    if TARGET not in config:
        raise ConfigError(f"{place or 'the node'} has no {TARGET}: give the dotted name of what to build.")
    name = str(config[TARGET])
    target = locate(name, _join(place, TARGET))
    signature = signature_of(target, name, _join(place, TARGET))
    if not isinstance(config.get(PARTIAL, False), bool):
        raise ConfigError(f"{_join(place, PARTIAL)} is {config[PARTIAL]}: give true or false.")
    if config.get(PARTIAL):
        signature = {key: value._replace(required=False) for key, value in signature.items()}
    itself = ""
    if place in _CALLED and inspect.isfunction(target):
        itself = f" To use {name} itself, not what it returns, add {_join(place, PARTIAL)}=true."
    return target, _convert(signature, config, place, frozenset(extra), name, itself)


def _convert(
    signature: dict[str, Parameter],
    config: DictConfig,
    place: str,
    extra: frozenset[str],
    owner: str,
    hint: str = "",
) -> dict[str, Any]:
    """Keys and values of `config`, checked against `signature`."""
    anything = "**" in signature
    known = {name: parameter for name, parameter in signature.items() if name not in extra and name != "**"}
    arguments: dict[str, Any] = {}
    for key in map(str, config):
        if key in (TARGET, PARTIAL) or key in _nested(config):
            continue
        if key in extra:
            raise ConfigError(f"{_join(place, key)} is set by the program: leave it out.")
        if key not in known and not anything:
            whole = _join(place, key)
            raise ConfigError(
                f"{whole} is not a parameter of {owner}: {suggest(key, known)} If an experiment sets it, "
                f"'~{whole}' removes it."
            )
        if OmegaConf.is_missing(config, key):
            raise ConfigError(_must_be_given(_join(place, key), known[key].hint if key in known else Any))
        value = _resolved(config, key, place)
        arguments[key] = _value(known[key].hint, value, _join(place, key)) if key in known else _plain(value)
    for name, parameter in known.items():
        if parameter.required and name not in arguments and name not in _nested(config):
            raise ConfigError(_must_be_given(_join(place, name), parameter.hint) + hint)
    return arguments


def _must_be_given(key: str, hint: Any) -> str:
    return f"{key} must be given, and is {describe(hint)}: add {key_as_given(key)}=<value>."


def _value(hint: Any, value: Any, key: str) -> Any:
    """One value, converted to its type by pydantic; dataclasses key by key."""
    item = dataclass_in(hint)
    if item is not None and isinstance(value, DictConfig):
        return _instance(item, value, key)
    each: list[Any] = (
        [_child(value, index) for index in range(len(value))] if isinstance(value, ListConfig) else [None]
    )
    if item is not None and all(isinstance(entry, DictConfig) for entry in each):
        items = [_instance(item, entry, f"{key}[{index}]") for index, entry in enumerate(each)]
        return tuple(items) if get_origin(hint) is tuple else items
    plain, types = _plain(value), plain_types(hint)
    try:
        if item is not None and plain is not None:
            raise ValueError("no mapping")
        if isinstance(plain, bool) or types is bool:
            return TypeAdapter(types).validate_python(plain, strict=True)
        return TypeAdapter(types, config=ConfigDict(coerce_numbers_to_str=True)).validate_python(plain)
    except ValueError as error:
        raise ConfigError(f"{key} is {_shown(value)}: give {describe(hint)}.") from error


def _resolved(config: DictConfig, key: str, place: str) -> Any:
    try:
        return config[key]
    except OmegaConfBaseException as error:
        raise ConfigError(f"{_join(place, key)}: {str(error).splitlines()[0]}.") from error


def _instance(kind: type, config: DictConfig, place: str) -> Any:
    owner = kind.__name__
    return kind(**_convert(signature_of(kind, owner), config, place, frozenset(), owner))


def _shown(value: Any) -> str:
    return "null" if value is None else repr(_plain(value))


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _nested(config: DictConfig) -> list[str]:
    children = ((str(key), _child(config, key)) for key in config)
    return [key for key, child in children if isinstance(child, DictConfig) and child and TARGET in child]


def _full_key(config: DictConfig) -> str:
    return str(config._get_full_key(None) or "")


def _join(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key
