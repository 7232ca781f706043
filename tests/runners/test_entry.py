"""`runners._entry`: exit codes, and one sentence for each of a user's mistakes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import DictConfig

from netsplit.config import settings_in, validated
from netsplit.errors import NetSplitError
from netsplit.session.request import GROUPS, without_reading
from runners._entry import entry
from tests.commands import Command

Run = Callable[..., tuple[int, str]]
ROOT = Path(__file__).resolve().parents[2]


def job(cfg: DictConfig) -> None:
    """Fails as its seed says."""
    settings_in(cfg, GROUPS)
    validated(without_reading(cfg)[0])
    if cfg.seed == 2:
        raise NetSplitError("the job found a mistake.")
    if cfg.seed == 3:
        raise KeyboardInterrupt
    if cfg.seed == 4:
        raise RuntimeError("a bug")
    if cfg.seed == 5:
        raise OSError(errno.ENOSPC, "No space left on device", "there")
    if cfg.seed == 6:
        signal.raise_signal(signal.SIGHUP)


@pytest.fixture
def run(command: Command) -> Run:
    """Run `job` as a command in an empty folder; answers its exit code and what it wrote to stderr."""

    def call(*arguments: str) -> tuple[int, str]:
        ended = command(entry()(job), "job", *arguments)
        return ended.code, ended.err

    return call


def test_under_nohup_a_terminal_that_is_closed_ends_no_job(run: Run) -> None:
    kept = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run("seed=6")[0] == 0
    finally:
        signal.signal(signal.SIGHUP, kept)


def logs(folder: Path) -> dict[str, str]:
    return {path.parent.name: path.read_text() for path in folder.rglob("*.log")}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["model=none"], ["model=none is not an option", "amoebanet_d_small"]),
        (["cluster=[cpu2,cpu4]"], ["cluster=[cpu2,cpu4] is a list", "with --multirun cluster=cpu2,cpu4."]),
        (["modle=digits"], ["modle is not a config key", "did you mean model?"]),
        (["model.num_layers=x"], ["model.num_layers is 'x'", "give an integer"]),
        (["seed=5"], ["cannot use 'there': No space left on device; choose another place"]),
    ],
)
def test_a_mistake_gives_one_sentence_and_exit_code_2(
    run: Run, arguments: list[str], words: list[str]
) -> None:
    code, stderr = run(*arguments)
    assert code == 2
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    assert all(word in stderr for word in words), stderr


def test_a_refused_job_leaves_no_folder_that_was_not_there(run: Run, tmp_path: Path) -> None:
    (tmp_path / "outputs/job").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    run("hydra.job.name=job", "seed=2")
    assert sorted(tmp_path.rglob("*")) == before


def test_an_interrupt_while_a_command_imports_is_one_sentence(tmp_path: Path) -> None:
    end = signal.SIGTERM
    (tmp_path / "click.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "netsplit"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(end, signal.SIG_DFL),  # not ignored, as in the background
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(end)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "interrupted by SIGTERM: stopped before the end.\n")


def test_an_interrupt_exits_with_130(run: Run) -> None:
    code, stderr = run("seed=3")
    assert (code, stderr.count("\n")) == (130, 1)
    assert "interrupted" in stderr


def test_a_bug_keeps_its_traceback_and_is_in_the_log(run: Run, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        run("seed=4")
    (log,) = logs(tmp_path).values()
    assert "RuntimeError: a bug" in log
    assert "Traceback" in log


def test_a_failed_job_of_a_multirun_stops_no_other_and_has_its_own_log(run: Run, tmp_path: Path) -> None:
    code, stderr = run("--multirun", "seed=2,0,2")
    assert code == 2
    assert stderr.endswith("the first was:\nerror: the job found a mistake.\n")
    assert "2 jobs failed" in stderr
    texts = logs(tmp_path)
    assert {name for name, text in texts.items() if "the job found a mistake" in text} == {"0", "2"}
    assert set(texts) == {"0", "1", "2"}
