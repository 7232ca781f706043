"""`netsplit`: the runners under one name, and what stands beside them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from netsplit import __version__
from netsplit.errors import ConfigError, NetSplitError
from netsplit.runners.cli import command, doctor
from netsplit.runners.cli.plan import tensors_of

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

number = 3
"""


def netsplit(*words: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "110", **variables}
    return subprocess.run(
        [sys.executable, "-m", "netsplit", *words],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip


def test_help_and_version_load_no_torch(tmp_path: Path) -> None:
    code = "import sys; from netsplit.runners.cli import command; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
    shown = CliRunner().invoke(command.netsplit, ["--help"])
    assert all(name in shown.output for name in (*command.RUNNERS, "plan", "doctor", "new"))
    assert __version__ in CliRunner().invoke(command.netsplit, ["--version"]).output


@pytest.mark.parametrize("name", command.RUNNERS)
def test_a_runner_gets_all_words_help_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    module = type("Runner", (), {"main": lambda: seen.append(sys.argv)})
    monkeypatch.setattr(command, "import_module", lambda path: {f"netsplit.runners.{name}": module}[path])
    monkeypatch.setattr(sys, "argv", ["netsplit"])
    words = ["--multirun", "cluster=cpu2,cpu4", "--help", "-cd", "mine"]
    assert CliRunner().invoke(command.netsplit, [name, *words]).exit_code == 0
    assert seen == [[f"netsplit {name}", *words]]


def test_a_mistake_in_an_override_is_a_sentence(tmp_path: Path) -> None:
    done = netsplit("compare", "modle=vgg19", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: modle is not a config key: did you mean model?")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["netsplit", "compare", "model=bert"], ["model=bert", "model=bert_small"]),
        (["netsplit", "compare", "model", "=", "bert_s"], ["bert_small"]),
        (["netsplit", "compare", "model", "="], ["alexnet"]),
        (["netsplit", "compare", "partitioner=[auto,he"], ["partitioner=[auto,heft"]),
        (["netsplit", "compare", "partitioner", "=", "[auto,netsplit_e"], ["[auto,netsplit_exact"]),
        (["netsplit", "compare", "clip"], ["clip_norm="]),
        (["netsplit", "partition", "compare_"], ["compare_with="]),
        (["netsplit", "pro"], ["probe"]),
    ],
)
def test_words_are_completed(words: list[str], expected: list[str], tmp_path: Path) -> None:
    done = netsplit(
        folder=tmp_path,
        _NETSPLIT_COMPLETE="bash_complete",
        COMP_WORDS=" ".join(words),
        COMP_CWORD=str(len(words) - 1),
    )
    said = [line.partition(",")[2] for line in done.stdout.splitlines()]
    assert said[: len(expected)] == expected


@pytest.mark.parametrize("shell", command.SHELLS)
def test_every_shell_has_its_script(shell: str) -> None:
    done = CliRunner().invoke(command.netsplit, ["completion", shell])
    assert "_NETSPLIT_COMPLETE" in done.output
    assert (shell == "bash") == ("compopt -o nospace" in done.output)
    assert (shell == "fish") == ("split -m1" in done.output)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batch", "8x3x8x8"], "No loss and targets are given"),
        (["--batch", "8x3x8x8", "--targets", "8:int64<10", "--loss", "torch.nn:CrossEntropyLoss"], ""),
    ],
)
def test_a_model_of_ones_own_is_planned(words: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    options = ["--cluster", "titan_rtx3", "--partitioner", "balanced", "--schedule", "gpipe", "--out", "here"]
    done = netsplit("plan", "mine:build", *words, *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
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
        (["mine"], "MODEL is 'mine': give MODULE:NAME"),
        (["mine:bild", "--batch", "8"], "MODEL is 'mine:bild', which cannot be had"),
        (["nothing:build", "--batch", "8"], "No module named 'nothing'"),
        (["mine:number", "--batch", "8"], "mine:number failed: TypeError"),
        (["mine:broken", "--batch", "8"], "mine:broken failed: RuntimeError: no weights here"),
        (["mine:build", "--batch", "8y3"], "--batch is '8y3': give a shape"),
        (["mine:build", "--batch", "8:cheese"], "--batch is '8:cheese'"),
        (["mine:build", "--batch", "8x3x8x8", "--cluster", "moon"], "cluster=moon is not an option"),
        (["mine:build", "--batch", "8x3x8x8", "--set", "epcohs=3"], "epcohs"),
        (["mine:build", "--batch", "8x3x8x8", "--out", "/proc/x/y"], "--out is '/proc/x/y': '/proc' is no"),
        (["mine:build", "--batch", "8x3x8x8", "--out", "mine.py/y"], "--out is 'mine.py/y': "),
    ],
)
def test_what_cannot_be_planned_is_said_and_nothing_written(
    words: list[str], sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    done = netsplit("plan", *words, folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "outputs").exists()


def test_the_whole_plan_of_a_model_of_ones_own_is_shown_with_what_it_was_chosen_from(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    words = [
        "--batch",
        "8x3x8x8",
        "--cluster",
        "titan_rtx3",
        "--out",
        "here",
        "--set",
        "schedule.time_limit_s=1",
    ]
    done = netsplit("plan", "mine:build", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "why not" in done.stdout
    plan = json.loads((tmp_path / "here" / "plan.json").read_text())
    graph = json.loads((tmp_path / "here" / "graph.json").read_text())
    assert 8 == plan["batch_size"] == plan["microbatches"] * graph["batch_size"]


def test_plan_takes_the_overrides_of_its_runner_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[list[str]] = []
    module = type("Runner", (), {"main": lambda: seen.append(sys.argv)})
    monkeypatch.setattr(command, "import_module", lambda path: {"netsplit.runners.plan": module}[path])
    monkeypatch.setattr(sys, "argv", ["netsplit"])
    words = ["--multirun", "model=bert_small", "cluster=cpu2,cpu4"]
    assert CliRunner().invoke(command.netsplit, ["plan", *words]).exit_code == 0
    folder = ["--config-dir", str(tmp_path)]
    assert CliRunner().invoke(command.netsplit, ["plan", "model=bert", *folder]).exit_code == 0
    assert seen == [["netsplit plan", *words], ["netsplit plan", *folder, "model=bert"]]
    for refused in (
        ["mine:build", "more"],
        ["model=bert", "--cluster", "cpu2"],
        ["mine:build", "--bach", "8"],
    ):
        assert CliRunner().invoke(command.netsplit, ["plan", *refused]).exit_code == 2
    assert len(seen) == 2


@pytest.mark.slow
def test_a_batch_of_the_model_s_own_is_planned_on_workers(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    words = ("--partitioner", "single", "--schedule", "gpipe", "--set", "profile=predicted")
    done = netsplit("plan", "mine:whole", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "cpu:0" in done.stdout


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 5), min_size=1, max_size=4),
            st.sampled_from(["float32", "float64", "bfloat16", "int64", "int32", "bool"]),
            st.integers(2, 9),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_shapes_are_read_as_written(tensors: list[tuple[list[int], str, int]]) -> None:
    text = ",".join(f"{'x'.join(map(str, shape))}:{dtype}<{below}" for shape, dtype, below in tensors)
    drawn = tensors_of(text, "--batch")
    for tensor, (shape, dtype, below) in zip(drawn if len(tensors) > 1 else [drawn], tensors, strict=True):
        assert (list(tensor.shape), tensor.dtype) == (shape, getattr(torch, dtype))
        assert tensor.is_floating_point() or (tensor.int().min() >= 0 and tensor.int().max() < below)


def test_what_is_no_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match="--targets is '8x': give a shape"):
        tensors_of("8x", "--targets")


@pytest.mark.parametrize("kind", [kind for kind in command.KINDS if kind != "plugin"])
def test_what_is_new_runs_at_once(kind: str, tmp_path: Path) -> None:
    done = netsplit("new", kind, "mine", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("try:  netsplit ")]
    ran = netsplit(*line.removeprefix("try:  netsplit ").split(), folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"Written to .*; 'comparison.md' there is this table", ran.stdout.replace("\n", " "))
    again = netsplit("new", kind, "mine", folder=tmp_path)
    assert again.returncode == 2
    assert "is there already" in again.stderr


@pytest.mark.parametrize(
    "name", ["Mine", "a-b", "3d", "../up", "torch", "json", "class", "digits", "é", "ﬁ", "_", "٣a"]
)
def test_a_name_that_python_does_not_take_is_refused(name: str, tmp_path: Path) -> None:
    done = netsplit("new", "dataset", name, folder=tmp_path)
    assert done.returncode == 2
    assert "NAME is" in done.stderr
    assert not list(tmp_path.iterdir())


def test_devices_are_listed(tmp_path: Path) -> None:
    done = netsplit("devices", folder=tmp_path)
    assert done.returncode == 0
    assert "cpu " in done.stdout
    assert f"{os.cpu_count()} cores" in done.stdout or "cores" in done.stdout


@pytest.mark.slow
def test_links_are_probed_and_the_doctor_finds_all_well(tmp_path: Path) -> None:
    done = netsplit("doctor", "--links", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"netsplit        {__version__}" in done.stdout
    for package in ("hydra-core", "omegaconf", "torch", "torchvision", "onnx", "picos", "gurobipy", "mlflow"):
        assert f"{package:16}{version(package)}" in done.stdout
    assert f"nvidia-ml-py    {version('nvidia-ml-py')}" in done.stdout
    assert re.search(r"^picos +reaches .*picos:glpk", done.stdout, re.MULTILINE)
    assert "2 links of cpu2, probed." in done.stdout
    refused = netsplit("probe", "--cluster", "titan_rtx3", folder=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "is described" in refused.stderr


def test_the_doctor_names_a_file_that_hides_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    look = doctor.CHECKS["modules"]
    assert look()
    (tmp_path / "random.py").touch()
    with pytest.raises(NetSplitError, match=re.escape(str(tmp_path / "random.py"))):
        look()


def test_no_runs_are_shown_where_none_were_recorded(tmp_path: Path) -> None:
    done = netsplit("ui", folder=tmp_path)
    assert done.returncode == 2
    assert "outputs/mlflow.db is not there" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_server_of_the_runs_ends_with_its_command(end: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "runs.db").touch()
    words = [sys.executable, "-m", "netsplit", "ui", "--port", "5873", "--database", "sqlite:///runs.db"]
    started = subprocess.Popen(words, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 100
    children: list[psutil.Process] = []
    while time.monotonic() < deadline and len(children) < 2:
        children = psutil.Process(started.pid).children(recursive=True)
        time.sleep(0.2)
    assert len(children) >= 2
    started.send_signal(end)
    started.wait(60)
    assert not psutil.wait_procs(children, 30)[1]
