"""The predictor's benchmark runs through on tiny models; what it measures is not judged."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from benchmarks._subjects import Subject, resnet, transformer
from benchmarks.predictor import __main__ as predictor
from netsplit.cluster.catalogue import Overheads, accelerator
from netsplit.profile.costs import DeviceCosts, NodeSeconds
from netsplit.profile.measured import Measured, ProfileCache, default_folder

TINY = [
    Subject("resnet", partial(resnet, (1,), 4), (3, 8, 8), 1),
    Subject("words", partial(transformer, 1, 16, 1, 4, 10), (4,), 1, words=10),
]


def test_each_model_is_predicted_from_the_others_and_profiles_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(predictor, "models", lambda quick, names: TINY)
    monkeypatch.setenv("NETSPLIT_CACHE", str(tmp_path))
    file, fitted = tmp_path / "errors.json", tmp_path / "tiny.json"
    arguments = ["--quick", "--draws", "0", "--classes", "--json", str(file), "--rates", str(fitted)]
    assert predictor.main(arguments) == 0
    first, errors = capsys.readouterr().out, json.loads(file.read_text())
    assert [each["model"] for each in errors] == ["resnet", "words"]
    for each in errors:
        assert len(each["node_errors"]) == each["nodes"]
        assert each["measured_s"] > 0
        assert each["predicted_s"] > 0
    assert "iteration: median" in first
    assert "as kept" not in first
    assert accelerator(str(fitted)).overheads is None
    assert 0 < accelerator(str(fitted)).reference_s < 1
    nodes = {f"node{i}": NodeSeconds(1e-3, 2e-3) for i in range(predictor.FEWEST)}
    for digest, message_s, steady in (("a", 4e-4, True), ("b", 6e-4, True), ("c", 1.0, False)):
        costs = DeviceCosts(nodes, 1e-9, 1e-4, message_s, contention=1.25)
        ProfileCache(default_folder()).put(digest, Measured(costs, steady=steady))
    assert predictor.main(arguments) == 0
    assert accelerator(str(fitted)).overheads == Overheads(1e-4, 5e-4, 1.25, 0.0)
    assert capsys.readouterr().out.count("as kept") == 2
    assert json.loads(file.read_text()) == errors
