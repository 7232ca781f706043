"""A case is one file of code as people write it: a model, its loss, its batches, and what is to come of it.

    build() -> nn.Module, or (model, loss)      left out: the last module class of the file
    loss(outputs, *targets)                     left out: cross entropy; None: the model returns it
    batch(seed) -> (inputs, targets)            left out: vectors of six features
    EXPECT = "refused" | "either"               left out: "equal"
    REASON = "what a refusal must say"          a regular expression, any case

inputs: a tuple is positional arguments, a dict keyword arguments, anything else the one argument.
Optional: RANDOM (it draws from torch's generator), MICROBATCHES, TOLERANCE, SLOW. The folder is the kind.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from tests.models_of_people.data import vectors

__all__ = ["Case", "Loaded", "all_cases"]

HERE = Path(__file__).parent
Batches = Callable[[int], tuple[Any, Any]]


@dataclass(frozen=True)
class Loaded:
    """A case brought to life: no module-level state is shared with another life of it."""

    model: nn.Module
    loss: Callable[..., Any] | None
    batch: Batches


@dataclass(frozen=True)
class Case:
    name: str  # kind/file
    load: Callable[[], Loaded]
    expect: str = "equal"
    reason: str = ""
    random: bool | None = False  # draws from torch's generator; None: see by its operators
    microbatches: int = 2
    tolerance: float = 1e-9
    slow: bool = False

    @property
    def kind(self) -> str:
        return self.name.partition("/")[0]


def all_cases() -> dict[str, Case]:
    """Name -> case, of every file in the folders here."""
    files = sorted(path for path in HERE.glob("*/*.py") if not path.name.startswith("_"))
    return {case.name: case for case in map(_case, files)}


def _case(path: Path) -> Case:
    """What the file says of itself is read without running it, so that collecting stays quick."""
    constants = {
        each.targets[0].id.lower(): ast.literal_eval(each.value)
        for each in ast.parse(path.read_text()).body
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
        if each.targets[0].id in ("EXPECT", "REASON", "RANDOM", "MICROBATCHES", "TOLERANCE", "SLOW")
    }
    return Case(f"{path.parent.name}/{path.stem}", lambda: _load(path), **constants)


def _load(path: Path) -> Loaded:
    name = f"models_of_people_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    if not hasattr(module, "build"):
        own = [each for each in vars(module).values() if getattr(each, "__module__", "") == name]
        module.build = [each for each in own if isinstance(each, type) and issubclass(each, nn.Module)][-1]
    built = module.build()
    if not isinstance(built, tuple):
        built = built, getattr(module, "loss", nn.CrossEntropyLoss())
    return Loaded(*built, getattr(module, "batch", vectors()))
