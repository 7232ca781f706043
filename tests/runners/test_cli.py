"""`netsplit`: the runners under one name, and what stands beside them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from netsplit import __version__
from netsplit.runners.cli import command as cli
from tests.commands import Command, Ended

ROOT = Path(__file__).resolve().parents[2]
MODEL = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 10))

def whole():
    import torch
    return build(), nn.CrossEntropyLoss(), (torch.randn(8, 3, 8, 8), torch.randint(0, 10, (8,)))

def broken():
    raise RuntimeError("no weights here")

"""


def netsplit(*words: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "110", **variables}
    return subprocess.run(
        [sys.executable, "-m", "netsplit", *words],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip


def test_a_runner_gets_all_words_help_too(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    module = type("Runner", (), {"main": lambda: seen.append(sys.argv)})
    monkeypatch.setattr(cli, "import_module", lambda path: {"netsplit.runners.train": module}[path])
    monkeypatch.setattr(sys, "argv", ["netsplit"])
    words = ["--multirun", "cluster=cpu2,cpu4", "--help", "-cd", "mine"]
    assert CliRunner().invoke(cli.netsplit, ["train", *words]).exit_code == 0
    assert seen == [["netsplit train", *words]]


def test_words_are_completed(tmp_path: Path) -> None:
    words = ["netsplit", "compare", "partitioner=[auto,he"]
    done = netsplit(
        folder=tmp_path,
        _NETSPLIT_COMPLETE="bash_complete",
        COMP_WORDS=" ".join(words),
        COMP_CWORD=str(len(words) - 1),
    )
    said = [line.partition(",")[2] for line in done.stdout.splitlines()]
    assert said == ["partitioner=[auto,heft"]


@pytest.fixture
def run(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Ended]]:
    """`netsplit` in a folder with a module `mine`."""
    (tmp_path / "mine.py").write_text(MODEL)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield partial(command, cli.main, "netsplit")
    sys.modules.pop("mine", None)


def test_a_model_of_ones_own_is_planned(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    words = ("--batch", "8x3x8x8", "--cluster", "titan_rtx3", "--partitioner", "balanced")
    done = netsplit("plan", "mine:build", *words, "--schedule", "gpipe", "--out", "here", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "No loss is given" in done.stdout
    assert "balanced: heuristic" in done.stdout
    device_of = json.loads((tmp_path / "here" / "placement.json").read_text())["device_of"]
    assert set(device_of.values()) <= {"gpu0", "gpu1", "gpu2"}
    graph = json.loads((tmp_path / "here" / "graph.json").read_text())
    assert len(graph["nodes"]) == len(device_of) > 3
    assert (tmp_path / "here" / "graph.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["mine:build"], "--batch must be given"),
        (["mine:bild", "--batch", "8"], "MODEL is 'mine:bild', which cannot be imported"),
        (["mine:broken", "--batch", "8"], "mine:broken failed: RuntimeError: no weights here"),
        (["mine:build", "--batch", "8y3"], "--batch is '8y3': give a shape"),
        (["mine:build", "--batch", "8x3x8x8", "--out", "mine.py/y"], "--out is 'mine.py/y': "),
    ],
)
def test_what_cannot_be_planned_is_said_and_nothing_written(
    words: list[str], sentence: str, run: Callable[..., Ended]
) -> None:
    done = run("plan", *words)
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert sentence in done.err
    assert not Path("outputs").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in cli.KINDS if kind != "plugin"])
def test_what_is_new_runs_at_once(kind: str, tmp_path: Path) -> None:
    done = netsplit("new", kind, "mine", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("try:  netsplit ")]
    ran = netsplit(*line.removeprefix("try:  netsplit ").split(), folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"This table is also in .*comparison\.md", ran.stdout.replace("\n", " "))


def test_what_is_there_already_is_not_written_again(run: Callable[..., Ended]) -> None:
    assert run("new", "dataset", "lab").code == 0
    again = run("new", "dataset", "lab")
    assert again.code == 2
    assert "already exists" in again.err


@pytest.mark.parametrize("name", ["../up", "torch"])
def test_a_name_that_python_does_not_take_is_refused(name: str, run: Callable[..., Ended]) -> None:
    before = set(Path().iterdir())
    done = run("new", "dataset", name)
    assert done.code == 2
    assert "NAME is" in done.err
    assert set(Path().iterdir()) == before


def test_devices_are_listed_and_runs_only_where_some_were_recorded(run: Callable[..., Ended]) -> None:
    listed = run("devices")
    assert (listed.code, "cores" in listed.out) == (0, True)
    refused = run("ui")
    assert refused.code == 2
    assert "there is no database" in refused.err


@pytest.mark.slow
def test_links_are_probed_and_the_doctor_finds_all_well(tmp_path: Path) -> None:
    done = netsplit("doctor", "--links", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"netsplit        {__version__}" in done.stdout
    for package in ("hydra-core", "omegaconf", "torch", "torchvision", "onnx", "picos", "gurobipy", "mlflow"):
        assert f"{package:16}{version(package)}" in done.stdout
    assert f"nvidia-ml-py    {version('nvidia-ml-py')}" in done.stdout
    assert re.search(r"^picos +can use .*picos:glpk", done.stdout, re.MULTILINE)
    assert "2 links of cpu2, probed." in done.stdout
    refused = netsplit("probe", "--cluster", "titan_rtx3", folder=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "is only described" in refused.stderr


@pytest.mark.slow
def test_the_server_of_the_runs_ends_with_its_command(tmp_path: Path) -> None:
    (tmp_path / "runs.db").touch()
    words = [sys.executable, "-m", "netsplit", "ui", "--port", "5873", "--database", "sqlite:///runs.db"]
    started = subprocess.Popen(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 100
    children: list[psutil.Process] = []
    while time.monotonic() < deadline and len(children) < 2:
        children = psutil.Process(started.pid).children(recursive=True)
        time.sleep(0.2)
    assert len(children) >= 2
    started.send_signal(signal.SIGTERM)
    started.wait(60)
    assert not psutil.wait_procs(children, 30)[1]
