"""Options of an installed package are found without a word on the command line."""

from __future__ import annotations

import subprocess
import sys
from importlib import invalidate_caches
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from netsplit.config import build
from netsplit.partition import Partitioner
from runners._entry import command_line, entry, options
from runners.cli.skeletons import new
from tests.commands import Command
from tests.messages import tells

SEEN: dict[str, object] = {}


def job(cfg: DictConfig) -> None:
    SEEN["partitioner"] = {name: build(node) for name, node in cfg.partitioner.items()}
    SEEN["options"] = options("partitioner")
    SEEN["model"] = OmegaConf.to_container(cfg.model)


def test_a_distribution_that_pip_installed_brings_its_options(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `netsplit new plugin` writes, and a model beside it."""
    new("plugin", "lab_plugin")
    model = tmp_path / "lab_plugin" / "lab_plugin" / "conf" / "model" / "lab_net.yaml"
    model.parent.mkdir()
    model.write_text("_target_: torch.nn.Linear\nin_features: 3\nout_features: 2\n")
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "-q"]
    subprocess.run([*pip, "--target", "site", "./lab_plugin"], check=True, capture_output=True, cwd=tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "site")
    invalidate_caches()
    ended = command(entry()(job), "job", "partitioner=[lab_plugin,single]", "model=lab_net")
    assert (ended.code, ended.err) == (0, "")
    chosen = SEEN["partitioner"]
    assert isinstance(chosen, dict)
    assert isinstance(chosen["lab_plugin"], Partitioner)
    assert {"lab_plugin", "netsplit"} <= set(SEEN["options"])  # type: ignore[call-overload]
    assert SEEN["model"] == {"_target_": "torch.nn.Linear", "in_features": 3, "out_features": 2}


def test_an_option_that_netsplit_s_own_would_hide_is_refused(command: Command, tmp_path: Path) -> None:
    own = tmp_path / "conf" / "partitioner" / "single.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("single:\n  _target_: netsplit.partition.MTopo\n")
    words = ["--config-dir", str(tmp_path / "conf"), "partitioner=[m_topo,single]"]
    ended = command(entry()(job), "job", *words)
    assert ended.code == 2
    assert tells(ended.err, "partitioner=single is both in NetSplit itself", "conf", "rename one")
    assert command(entry()(job), "job", *words[:2], "partitioner=[m_topo]").code == 0


def test_a_command_that_is_suggested_keeps_where_the_options_are(command: Command, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text("defaults: [train, _self_]\n")
    own = ["hydra.searchpath=[pkg://tests]", "--config-dir", "conf", "--config-name", "mine"]
    suggested: list[str] = []
    ended = command(entry()(lambda cfg: suggested.append(command_line("train", ["seed=1"]))), "job", *own)
    assert ended.code == 0, ended.err
    assert suggested == [f"netsplit train '{own[0]}' {' '.join(own[1:])} seed=1"]
