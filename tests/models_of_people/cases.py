"""A case is one file of code as people write it: a model, its loss, its batches, and what is to come of it.

    build() -> nn.Module, or (model, loss)      loss(outputs, *targets), or None: the model returns it
    batch(seed) -> (inputs, targets)            EXPECT = "equal" | "refused" | "either"
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
    given = _constants(path)
    return Case(
        name=f"{path.parent.name}/{path.stem}",
        load=lambda: _load(path),
        expect=given["EXPECT"],
        reason=given.get("REASON", ""),
        random=given.get("RANDOM", False),
        microbatches=given.get("MICROBATCHES", 2),
        tolerance=given.get("TOLERANCE", 1e-9),
        slow=given.get("SLOW", False),
    )


def _constants(path: Path) -> dict[str, Any]:
    body = ast.parse(path.read_text()).body
    constants = {}
    for each in body:
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            name = each.targets[0].id
            if name in ("EXPECT", "REASON", "RANDOM", "MICROBATCHES", "TOLERANCE", "SLOW"):
                constants[name] = ast.literal_eval(each.value)
    return constants


def _load(path: Path) -> Loaded:
    name = f"models_of_people_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    built = module.build()
    model, loss = built if isinstance(built, tuple) else (built, module.loss)
    return Loaded(model, loss, module.batch)
