"""The benchmark of predicted costs runs through on a tiny model; what it measures is not judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import predicted


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
