"""The benchmark commands run through, on models that take milliseconds; what they measure is not judged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from benchmarks import fidelity, runtime
from benchmarks._subjects import Subject, UNet, resnet
from netsplit.partition.base import Problem
from tests.workers import Pools, lent_to_sessions

CHAIN = Subject("chain", partial(resnet, (1, 1), 8), (3, 16, 16), 2, chain=True)
SKIPS = Subject("skips", partial(UNet, 2, 4), (3, 16, 16), 2, maps=True)


@pytest.fixture
def lent(pools: Pools) -> Iterator[None]:
    with lent_to_sessions(pools):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("unmeasured", "lent")
def test_runtime_measures_us_and_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runtime, "subjects", lambda quick, names: [CHAIN])
    file = tmp_path / "raw.json"
    arguments = "--rounds 2 --microbatches 4 --schedules gpipe 1f1b zb_h1 --json"
    assert runtime.main([*arguments.split(), str(file)]) == 0, capsys.readouterr().out
    seconds = json.loads(file.read_text())["models"]["chain"]["seconds"]
    assert {"plain", "single", "zb_h1", "torch 1f1b", "torch zb_h1", "1f1b again"} <= set(seconds)
    assert all(len(pair) == 2 for pair in seconds.values())
    assert "torch's 1f1b / our zb_h1" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("unmeasured", "lent")
def test_fidelity_keeps_the_other_cases_of_one_that_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(self: object, problem: Problem) -> None:
        raise RuntimeError("no placement today")

    monkeypatch.setattr(fidelity, "subjects", lambda quick, names: [SKIPS])
    monkeypatch.setattr(fidelity.METHODS["balanced"], "partition", refuse)
    file = tmp_path / "raw.json"
    arguments = "--rounds 2 --partitioners balanced layerwise --schedules gpipe --json"
    assert fidelity.main([*arguments.split(), str(file)]) == 1
    refused, kept = json.loads(file.read_text())
    assert "no placement today" in refused["failure"]
    assert len(kept["measured_s"]) == len(kept["again_s"]) == 2
    assert all(metered > 0 for _, metered in kept["bytes_of"].values())
    assert "1 of 2 cases" in capsys.readouterr().out
