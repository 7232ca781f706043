"""The scripts of `examples/` do what they promise, from any folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
OWN_MODEL = ROOT / "examples" / "own_model.py"


@pytest.mark.slow
def test_the_example_trains_a_model_of_its_own_from_any_folder(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(OWN_MODEL)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    for device in ("cpu:0", "cpu:1"):
        assert re.search(rf"{device}: [1-9]\d* operators", done.stdout), done.stdout
    accuracy = [float(percent) for percent in re.findall(r"test accuracy ([\d.]+)%", done.stdout)]
    assert len(accuracy) == 5
    assert accuracy[-1] > max(80, accuracy[0])
    state = torch.load(tmp_path / "outputs" / "two_paths.pt", weights_only=True)
    assert state["stem.weight"].shape == (256, 64)
