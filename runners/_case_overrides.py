"""Several configs in one: what each case changes, applied to the rest.

cases:
  small: {model: {_target_: ..., num_layers: 3}, batch_size: 32}
  large: {schedule: {microbatches: 16}}

What the command line gives for all, `batch_size=8`, wins over the cases, and `cases.small.batch_size=16` over
that. Published figures are of a case's own settings, and left out where the command line gives others.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, ListConfig, OmegaConf

from netsplit.config_keys import TARGET
from netsplit.errors import ConfigError
from netsplit.signature import suggest

__all__ = ["cases_of", "published_of"]

CASES, PUBLISHED = "cases", "published"
NAME = re.compile(r"[\w-][\w.-]*")  # it names a folder, and a column of tables
BASIS = ("model", "dataset", "batch_size", "loss", "optimizer", "accumulate", "autocast")
"""What a published throughput stands on, besides the devices that a case is planned for."""
WHOLE = ("partitioner",)  # a case's own methods stand in place of the rest's

log = logging.getLogger(__name__)


class Given(NamedTuple):
    """One key of the command line."""

    key: str  # dotted
    text: str  # as it was written


def cases_of(cfg: DictConfig, overrides: Sequence[str] = ()) -> dict[str, DictConfig]:
    """Name -> whole config. A node with a `_target_` is replaced, any other is merged; empty without cases.

    Args:
        overrides: those of the command line, all of which `cfg` has already.

    Raises:
        ConfigError: a case is no mapping, has a name that no folder could have, or changes a key that the
            config does not have; an override does not fit a case, or leaves no difference between two.
    """
    cases: dict[str, DictConfig] = {}
    for name, deltas in _mapping(cfg.get(CASES), CASES, "names to what each case changes").items():
        if not NAME.fullmatch(name):
            raise ConfigError(
                f"a case is called {name!r}: give it letters, digits, _, - and ., and no . in front."
            )
        cases[name] = _case(cfg, name, _mapping(deltas, f"{CASES}.{name}", "config keys to their values"))
    given = list(_given(overrides)) if cases else []
    before = {name: _plain(case) for name, case in cases.items()}
    for name, case in cases.items():
        _impose(cfg, case, name, given)
    _require_difference(before, cases, given)
    return cases


def published_of(cfg: DictConfig, overrides: Sequence[str] = ()) -> dict[str, dict[str, float]]:
    """Case -> method -> samples per second; of what overrides change only the figures that they give too.

    Args:
        overrides: those of the command line, all of which `cfg` has already.

    Raises:
        ConfigError: a figure that is no number above 0.
    """
    published: dict[str, dict[str, float]] = {}
    left_out: list[str] = []
    given = list(_given(overrides)) if cfg.get(PUBLISHED) else []
    keys = {each.key for each in given}
    for case, methods in _mapping(cfg.get(PUBLISHED), PUBLISHED, "cases to figures").items():
        figures: dict[str, float] = {}
        for method, value in _mapping(
            methods, f"{PUBLISHED}.{case}", "methods to samples per second"
        ).items():
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
                raise ConfigError(
                    f"{PUBLISHED}.{case}.{method} is {value!r}: give samples per second, above 0."
                )
            figures[method] = float(value)
        if changes := _changes(case, given):
            kept = {name: figures[name] for name in figures if f"{PUBLISHED}.{case}.{name}" in keys}
            if len(kept) < len(figures) and case in (cfg.get(CASES) or {}):
                left_out.append(f"{case} ({' '.join(changes)})")
            figures = kept
        published |= {case: figures} if figures else {}
    if left_out:
        log.info("Published figures left out, as the settings differ: %s.", ", ".join(left_out))
    return published


def _changes(case: str, given: Sequence[Given]) -> list[str]:
    """The overrides of what a case's published figures stand on, as they were written."""
    own = f"{CASES}.{case}"
    changes = [
        text
        for key, text in given
        if key in (CASES, own) or key.removeprefix(f"{own}.").partition(".")[0] in BASIS
    ]
    return list(dict.fromkeys(changes))


def _mapping(node: Any, key: str, what: str) -> dict[str, Any]:
    if node is not None and not isinstance(node, DictConfig):
        raise ConfigError(f"{key} is {node!r}: give a mapping of {what}, or null.")
    return {} if node is None else {str(name): node[name] for name in node}


def _case(cfg: DictConfig, name: str, deltas: Mapping[str, Any]) -> DictConfig:
    case = copy.deepcopy(cfg)
    OmegaConf.set_struct(case, False)
    case[CASES] = case[PUBLISHED] = None
    for key, new in deltas.items():
        if key not in cfg:
            raise ConfigError(f"{CASES}.{name}.{key} is not a config key: {suggest(key, map(str, cfg))}")
        old = case[key]
        nodes = isinstance(old, DictConfig) and isinstance(new, DictConfig)
        case[key] = OmegaConf.merge(old, new) if nodes and not _replaces(key, new) else new
    return case


def _replaces(key: str, node: Any) -> bool:
    return key in WHOLE or (isinstance(node, DictConfig) and TARGET in node)


def _given(overrides: Sequence[str]) -> Iterator[Given]:
    """Every key that overrides give; of a mapping that is merged, each key in it."""
    for each in OverridesParser.create().parse_overrides(list(overrides)):
        key = each.package or each.key_or_group
        for leaf in _leaves(key, each.value()):
            yield Given(leaf, str(each.input_line))


def _leaves(key: str, value: Any) -> Iterator[str]:
    whole = key.rpartition(".")[2] in WHOLE
    if isinstance(value, dict) and value and not whole and TARGET not in value:
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner)
    else:
        yield key


def _impose(cfg: DictConfig, case: DictConfig, name: str, given: Sequence[Given]) -> None:
    """What was given for all cases, where this one has its own; then what was given for this one."""
    own, imposed = f"{CASES}.{name}.", set()
    deltas = cfg[CASES][name] or {}
    for key, text in sorted(
        given, key=lambda each: "." in each.key
    ):  # an option before what it is changed by
        head = key.partition(".")[0]
        if head not in deltas:
            continue
        if key != head or not isinstance(cfg[head], DictConfig):
            _set(case, key, cfg, key, f"{text} is for all cases, and case '{name}'")
        elif _replaces(head, deltas[head]):
            case[head] = copy.deepcopy(cfg[head])
        imposed.add(head)
    for key, text in given:
        inner = key.removeprefix(own)
        if inner != key and inner.partition(".")[0] in imposed:
            _set(case, inner, cfg, key, f"{text}: case '{name}'")


def _set(case: DictConfig, key: str, cfg: DictConfig, source: str, whose: str) -> None:
    """Give `case` at `key` what `cfg` has at `source`, or nothing where that was removed."""
    above, _, last = source.rpartition(".")
    there = OmegaConf.select(cfg, above) if above else cfg
    parent, _, _ = key.rpartition(".")
    here = OmegaConf.select(case, parent) if parent else case
    if not _takes(here, last, there):
        raise ConfigError(f"{whose} has no {key}: give {CASES}.<name>.{key}=<value> for those that have it.")
    value = OmegaConf.select(cfg, source)
    if isinstance(there, DictConfig) and last not in there:
        here.pop(last, None)
    else:
        OmegaConf.update(case, key, copy.deepcopy(value), merge=False)


def _takes(here: Any, key: str, there: Any) -> bool:
    """Whether a key of one node is one of the other too: it is there, or both build the same."""
    if isinstance(here, DictConfig):
        same = isinstance(there, DictConfig) and here.get(TARGET) == there.get(TARGET)
        return key in here or same
    return isinstance(here, ListConfig) and key.isdigit() and int(key) < len(here)


def _require_difference(before: dict[str, Any], after: dict[str, DictConfig], given: Sequence[Given]) -> None:
    now = {name: _plain(case) for name, case in after.items()}
    for one, other in combinations(now, 2):
        if now[one] != now[other] or before[one] == before[other]:
            continue
        for key, text in given:
            head = key.partition(".")[0]
            if before[one].get(head) != before[other].get(head):
                option = key == head and isinstance(after[one][head], DictConfig)
                own = f"{head}@{CASES}.<name>.{head}" if option else f"{CASES}.<name>.{key}"
                raise ConfigError(
                    f"{text} is for all cases, and leaves no difference between {one} and {other}: "
                    f"give {own}=<value> for one of them."
                )


def _plain(case: DictConfig) -> Any:
    return OmegaConf.to_container(case, resolve=False)
