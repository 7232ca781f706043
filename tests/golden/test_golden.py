"""What must not change while the frame is rebuilt: plans, programs, predictions and what is trained.

An intended difference is recorded anew by the script (`python -m tests.golden.record`), and the commit that
does so gives the reason. When the frame is rebuilt, this folder goes.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.cover import few
from tests.golden.cases import GOLDEN
from tests.golden.grid import CLUSTERS, MODELS
from tests.golden.planned import Made, record_of
from tests.golden.recorded import machine, recorded
from tests.models_of_people.cases import all_cases

ALIKE = 1e-9  # relative: machines sum in other orders


@pytest.mark.parametrize("name", few(sorted(GOLDEN), 6))
def test_a_case_is_planned_and_trained_as_recorded(name: str) -> None:
    made, wanted = record_of(Made(GOLDEN[name])), recorded("cases")["cases"][name]
    for part in ("schedule", "placement", "peak_bytes"):
        assert made[part] == wanted[part], part
    assert made["program"] == wanted["program"], "the program's text: see --dump of tests.golden.record"
    assert _alike(made["iteration_s"], wanted["iteration_s"])
    assert all(map(_alike, made["losses"], wanted["losses"])), (made["losses"], wanted["losses"])
    assert made["state"].keys() == wanted["state"].keys()
    apart = [k for k, number in made["state"].items() if not _alike(number, wanted["state"][k])]
    assert not apart
    if machine() == recorded("cases")["machine"]:
        assert made["bits"] == wanted["bits"], "equal but for the last bits"


def test_everything_is_recorded() -> None:
    """Cases, what comes of people's models (which `test_models_of_people.py` compares), and cells."""
    assert recorded("cases")["cases"].keys() == GOLDEN.keys()
    assert recorded("people").keys() == all_cases().keys()
    assert recorded("grid")["cells"].keys() <= {f"{m} on {c}" for m in MODELS for c in CLUSTERS}


def _alike(a: Any, b: Any) -> bool:
    return math.isclose(a, b, rel_tol=ALIKE, abs_tol=ALIKE)
