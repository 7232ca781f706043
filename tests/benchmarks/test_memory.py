"""The benchmark of capacities: what is accepted is no less than any plan needs, and runs in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import predicted
from benchmarks.memory.__main__ import main


@pytest.mark.slow
def test_a_small_model_is_planned_run_and_metered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "memory.json"
    asked = ["--models", "vgg19_small", "--schedules", "1f1b", "--devices", "2"]
    assert main([*asked, "--time-limit", "0.1", "--out", str(out)]) == 0
    (case,) = json.loads(out.read_text())
    assert case["failure"] == ""
    assert case["bound"] <= case["pipelines"] <= case["accepted"] < case["static"]
    assert case["bound"] <= case["predicted"] <= case["accepted"]
    assert 0.9 * case["predicted"] <= case["metered"] <= 1.02 * case["accepted"]
    assert "1 of 1 cases planned" in capsys.readouterr().out


@pytest.mark.slow
def test_both_plans_run_in_turn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = "gpt_small dataset=text batch_size=8 model.layers=1 model.width=16 model.heads=2"
    monkeypatch.setattr(predicted, "CAPTURED", (tiny,))
    file = tmp_path / "results.json"
    arguments = ["--models", "gpt_small", "--partitioner", "m_topo", "--rounds", "2", "--json", str(file)]
    assert predicted.main(arguments) == 0
    assert "gpt_small" in capsys.readouterr().out
    (result,) = json.loads(file.read_text())
    assert 0 < result["predicting_s"] < result["measuring_s"]
    assert all(seconds > 0 for seconds in result["iteration_s"])
    assert result["slower"]["median"] > 0
    assert result["node_sum_error"] > -1
