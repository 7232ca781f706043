"""Several configs in one: what each case changes, applied to the rest.

cases:
  small: {model: {_target_: ..., num_layers: 3}, batch_size: 32}
  large: {schedule: {microbatches: 16}}
"""

from __future__ import annotations

import copy

from omegaconf import DictConfig, OmegaConf

from netsplit.config import TARGET, suggest
from netsplit.errors import ConfigError

__all__ = ["cases_of", "published_of"]

WHOLE = ("partitioner",)  # a case's own methods stand in place of the rest's


def cases_of(cfg: DictConfig) -> dict[str, DictConfig]:
    """Name -> whole config. A node with a `_target_` is replaced, any other is merged; empty without cases.

    Raises:
        ConfigError: a case changes a key that the config does not have.
    """
    found: dict[str, DictConfig] = {}
    for name, deltas in (cfg.get("cases") or {}).items():
        case = copy.deepcopy(cfg)
        OmegaConf.set_struct(case, False)
        case.cases = case.published = None
        for key in map(str, deltas or {}):
            if key not in cfg:
                raise ConfigError(f"cases.{name}.{key} is not a config key: {suggest(key, map(str, cfg))}")
            old, new = case[key], deltas[key]
            nodes = isinstance(old, DictConfig) and isinstance(new, DictConfig)
            merged = nodes and TARGET not in new and key not in WHOLE
            case[key] = OmegaConf.merge(old, new) if merged else new
        found[str(name)] = case
    return found


def published_of(cfg: DictConfig) -> dict[str, dict[str, float]]:
    """Case -> method -> samples per second.

    Raises:
        ConfigError: a figure that is no number above 0.
    """
    found: dict[str, dict[str, float]] = {}
    for case, methods in (cfg.get("published") or {}).items():
        for method, value in (methods or {}).items():
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
                raise ConfigError(
                    f"published.{case}.{method} is {value!r}: give samples per second, above 0."
                )
            found.setdefault(str(case), {})[str(method)] = float(value)
    return found
