"""`model._target_=...` on the command line: the option's keys are gone, and the target's own can be given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from netsplit.session.comparison import experiment_of
from netsplit.session.request import Request
from runners._entry import entry
from tests.commands import Command

SEEN: dict[str, Any] = {}
MINE = """
from torch import nn

def build(hidden: int = 4, name: str = "") -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, hidden), nn.Linear(hidden, 10))

def huge() -> nn.Module:
    import torch
    return torch.empty(2**62, 64)

def three() -> int:
    return 3
"""

Run = Callable[..., tuple[int, str]]


def job(cfg: DictConfig) -> None:
    """What is built of the config."""
    SEEN["model"] = OmegaConf.to_container(cfg.model)
    SEEN["optimizer"] = OmegaConf.to_container(cfg.optimizer)
    SEEN["built"] = experiment_of(Request(cfg), "mine", {}).model


@pytest.fixture
def run(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    (tmp_path / "lab_own_target.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)

    def call(*arguments: str) -> tuple[int, str]:
        SEEN.clear()
        ended = command(entry()(job), "job", "tracking=none", *arguments)
        return ended.code, ended.err

    return call


def test_it_takes_its_own_keys_whatever_the_option_had(run: Run) -> None:
    target = "model._target_=lab_own_target.build"
    assert run("experiment=quick", "model=vgg19", "model.hidden=7", target, "+model.name=x") == (0, "")
    assert SEEN["model"] == {"_target_": "lab_own_target.build", "hidden": 7, "name": "x"}
    assert SEEN["built"][1].out_features == 7


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        (["model._target_=lab_own_target.build", "model.hiden=7"], ["model.hiden", "did you mean hidden?"]),
        (["model._target_=lab_own_target.three"], ["model._target_ returns 3", "torch.nn.Module"]),
        (["model.num_filters=8000000"], ["model", "memory"]),
    ],
)
def test_a_part_that_cannot_be_made_is_a_sentence(run: Run, given: list[str], facts: list[str]) -> None:
    code, error = run(*given)
    assert (code, [fact for fact in facts if fact not in error], error.count("\n")) == (2, [], 1), error
