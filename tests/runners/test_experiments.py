"""Every experiment that compares methods, shrunk, as a person would start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UP_TO_S = 400


def run(folder: Path, experiment: str, *overrides: str) -> str:
    command = [
        sys.executable, "-m", "runners.compare", f"experiment={experiment}", f"hydra.run.dir={folder}",
        "tracking=none", *overrides,
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=folder.parent,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=UP_TO_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_convergence_trains_both_ways_from_the_same_start(tmp_path: Path) -> None:
    run(tmp_path / "convergence", "convergence", "epochs=1", "dataset.limit=128")
    folder = tmp_path / "convergence"
    table = (folder / "comparison.md").read_text()
    assert "netsplit" in table
    assert "ddp" in table
    assert (folder / "training.png").stat().st_size > 1000
    where = json.loads((folder / "netsplit" / "placement.json").read_text())["device_of"]
    assert len(set(where.values())) == 2, "what does not split is no comparison with data parallelism"
