"""A study as a config has it: the function that is asked, its cases, and its own keys."""

from __future__ import annotations

import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from netsplit.config import build
from netsplit.data.reading.own import as_data
from netsplit.errors import ConfigError
from netsplit.session.request import without_reading
from netsplit.signature import PARTIAL, TARGET, locate
from reproduce.result import StudyResult

__all__ = ["question"]

STUDY, CASES, FOLDER = "study", "cases", "folder"


def question(node: DictConfig, folder: Path) -> Callable[[], StudyResult]:
    """The study as a call without arguments: its cases built, its own keys checked.

    Args:
        node: the config's `study`; its target's parameter `cases: ByName[...]` says what a case is.
        folder: for a target with a parameter of that name.

    Raises:
        ConfigError: the first key or value that cannot be used, or no cases.
    """
    OmegaConf.set_struct(node, False)
    target = locate(str(node.get(TARGET, "")), f"{STUDY}.{TARGET}")
    hints = typing.get_type_hints(target)
    given: dict[str, Any] = {FOLDER: folder} if FOLDER in hints else {}
    if CASES in hints:
        kind = next(iter(typing.get_args(hints[CASES])[-1:]), dict)
        given[CASES] = _cases(node.pop(CASES, None), f"{kind.__module__}.{kind.__qualname__}")
    node[PARTIAL] = True
    study: Callable[[], StudyResult] = build(node, **given)
    return study


def _cases(node: DictConfig | None, kind: str) -> dict[str, Any]:
    """Every case as the class that the study takes; its model is left for the study to build."""
    if not isinstance(node, DictConfig) or not node:
        raise ConfigError(f"{STUDY}.{CASES} is empty: give at least one, as in reproduce/conf/experiment/.")
    cases = {}
    for name in map(str, node):
        case = node[name]
        if not isinstance(case, DictConfig) or case._is_none():
            raise ConfigError(f"{STUDY}.{CASES}.{name} is empty: give it a model, a dataset or a cluster.")
        case, reading = without_reading(case)
        given: dict[str, Any] = {}
        if len(reading) > 1:
            dataset, keys = build(case.dataset), build(OmegaConf.create(reading))
            given["dataset"] = as_data(dataset, str(case.pop("dataset")[TARGET]), keys)
        case[TARGET] = kind
        if isinstance(case.get("model"), DictConfig):
            case.model[PARTIAL] = True
        cases[name] = build(case, **given)
    return cases
