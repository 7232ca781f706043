"""Operators in parts as they are written down: in words, and every part in a file that MLflow shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from netsplit.files import write_json
from netsplit.planning.explanation.parts import PlacedPart, parts_summary
from netsplit.planning.plan import Plan
from netsplit.tracking import MethodRun

__all__ = ["record_parts", "write_parts"]

_FILE = "parts.json"
_COLUMNS = (
    "operator", "module", "along", "part", "of", "size", "fraction", "devices", "seconds", "of_iteration",
)  # fmt: skip


def record_parts(run: MethodRun, plan: Plan, folder: Path) -> None:
    """How many there are; where there are some, which, along what, by what fraction and where."""
    splits = plan.splits
    run.tags({"operators_in_parts": len(splits)})
    if not splits:
        return
    write_parts(plan, folder)
    shown = json.dumps([{"path": _FILE, "type": "table"}])  # as `mlflow.log_table` has it
    run.tags({"in_parts": parts_summary(splits), "mlflow.loggedArtifacts": shown})


def write_parts(plan: Plan, folder: Path) -> None:
    """A row for each part of an operator; no file where none is in parts."""
    if plan.splits:
        write_json(folder / _FILE, {"columns": _COLUMNS, "data": list(_rows(plan))})


def _rows(plan: Plan) -> Iterator[list[Any]]:
    whole = plan.simulated[1].iteration_s
    for split in plan.splits:
        for n, part in enumerate(split.parts, 1):
            seconds = _seconds(plan, part)
            yield [
                split.operator, split.module, split.along, n, len(split.parts), part.size, part.fraction,
                ", ".join(part.devices), seconds, seconds / whole if whole else None,
            ]  # fmt: skip


def _seconds(plan: Plan, part: PlacedPart) -> float:
    """That a part is computed in an iteration, forward and backward of all micro-batches."""
    problem, device_of = plan.problem, plan.placement.device_of
    kinds = {name: problem.cluster.device(device_of[name]).kind for name in part.nodes}
    once = sum(problem.costs.total_s(name, kind) for name, kind in kinds.items())
    return plan.simulated[0].microbatches * once
