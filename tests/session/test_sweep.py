"""Multiruns: failures stop nothing, what is done is not done again, searches find what is least."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import MissingConfigException
from omegaconf import DictConfig, OmegaConf

from hydra_plugins.netsplit_sweeps._sweep import Mark, marks_in
from netsplit.errors import NetSplitError
from runners import _entry
from runners._entry import entry, sentence
from tests.commands import Command, Ended

Run = Callable[..., Ended]


def job(cfg: DictConfig) -> float:
    """Fails at odd seeds while there is a file `broken`; leaves a line in `ran` each time it runs."""
    with Path("ran").open("a") as file:
        file.write(f"{cfg.seed} {cfg.epochs}\n")
    if cfg.seed % 2 and Path("broken").exists():
        raise NetSplitError(f"seed {cfg.seed} is odd.")
    return float((cfg.seed - 4) ** 2 + cfg.epochs)


SMALL = """
defaults:
  - schedule: gpipe
  - hydra: default
  - _self_
epochs: 3
seed: 0
"""


@pytest.fixture(scope="module")
def small_conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config with one group, composed in a tenth of the time."""
    folder = tmp_path_factory.mktemp("conf")
    for group in ("hydra", "schedule"):
        shutil.copytree(_entry.CONF / group, folder / group)
    (folder / "config.yaml").write_text(SMALL)
    return folder


@pytest.fixture
def run(command: Command, small_conf: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a job as a multirun in an empty folder."""
    monkeypatch.setattr(_entry, "CONF", small_conf)

    def call(*arguments: str, of: Callable[[DictConfig], Any] = job) -> Ended:
        return command(entry()(of), "job", "--multirun", "hydra.sweep.dir=sweep", *arguments)

    return call


def ran() -> list[str]:
    """What ran since the last call, in order."""
    path = Path("ran")
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def rows() -> list[tuple[str, str]]:
    """Overrides and outcome of each job in the table."""
    lines = [line for line in Path("sweep/jobs.txt").read_text().splitlines() if " sweep/" in line]
    cells = [re.split(" {2,}", line) for line in lines]
    return [(line[1], line[2]) for line in cells]


def marks(folder: str = "sweep") -> dict[int, Mark]:
    return {mark.number: mark for mark in marks_in(Path(folder))}


def test_every_job_says_in_its_folder_how_it_ended(run: Run) -> None:
    Path("broken").touch()
    code, _, _ = run("seed=0,1,2", "epochs=5")
    assert code == 2
    ends = marks()
    assert [ends[number].outcome for number in range(3)] == ["done", "failed", "done"]
    assert ends[0].overrides == ("epochs=5", "seed=0")
    assert (ends[2].value, ends[1].value) == (9.0, None)
    assert ends[1].error == "seed 1 is odd."
    assert Path("sweep/1/job.json").is_file()


def test_the_same_command_runs_only_what_is_not_done(run: Run) -> None:
    Path("broken").touch()
    run("seed=0,1,2")
    assert ran() == ["0 3", "1 3", "2 3"]
    before = {number: Path(f"sweep/{number}/job.json").read_bytes() for number in range(3)}
    Path("broken").unlink()
    code, out, _ = run("seed=0,1,2")
    assert (code, ran()) == (0, ["1 3"])
    assert marks()[3].overrides == ("seed=1",)
    assert {number: Path(f"sweep/{number}/job.json").read_bytes() for number in range(3)} == before
    assert out.count("  done  ") == 3
    assert run("seed=0,1,2")[0] == 0
    assert ran() == []


def test_interrupted_sweeps_say_how_to_go_on(run: Run) -> None:
    def interrupted(cfg: DictConfig) -> None:
        if cfg.seed:
            raise KeyboardInterrupt

    code, out, _ = run("seed=0,1,2", of=interrupted)
    assert code == 130
    assert "hydra.sweep.dir=sweep" in out
    assert [mark.outcome for mark in marks().values()] == ["done", "running"]


@pytest.mark.parametrize(("option", "extra"), [("joblib", "sweep"), ("submitit_slurm", "slurm")])
def test_a_launcher_that_is_not_installed_names_its_extra(option: str, extra: str) -> None:
    error = MissingConfigException("absent", f"hydra/launcher/{option}", ["basic"])
    assert f"pip install 'netsplit[{extra}]'" in sentence(error)


LAUNCHERS = {"joblib": "joblib", "submitit_local": "submitit", "ray": "ray"}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_other_processes_fail_alone_and_are_resumed(
    run: Run, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(LAUNCHERS[launcher])
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)  # where this job is
    Path("broken").touch()
    code, out, err = run(f"hydra/launcher={launcher}", "seed=0,1,2,3")
    assert code == 2
    assert "2 jobs failed" in err
    assert err.endswith("error: seed 1 is odd.\n")
    assert {number: mark.outcome for number, mark in marks().items()} == {
        0: "done",
        1: "failed",
        2: "done",
        3: "failed",
    }
    logs = {path.parent.name: path.read_text() for path in Path("sweep").glob("[0-9]*/*.log")}
    assert {name for name, text in logs.items() if "is odd." in text} == {"1", "3"}
    assert "sweep/3" in out
    Path("broken").unlink()
    ran()
    assert run(f"hydra/launcher={launcher}", "seed=0,1,2,3")[0] == 0
    assert sorted(ran()) == ["1 3", "3 3"]


OPTUNA = ("hydra/sweeper=optuna", "hydra.sweeper.sampler=random")


def test_a_search_ends_with_the_least_and_goes_on(run: Run) -> None:
    pytest.importorskip("optuna")
    code, out, _ = run(*OPTUNA, "hydra.sweeper.trials=3", "seed=2,4,6", "epochs=1,2")
    assert code == 0
    assert len(set(ran())) == 3
    assert "Best of 3 trials" in out
    code, out, _ = run(*OPTUNA, "hydra.sweeper.trials=30", "seed=2,4,6", "epochs=1,2")
    assert len(set(ran())) == 3
    assert "Best of 6 trials: 1 with epochs=1 seed=4" in out
    best = OmegaConf.load("sweep/best.yaml")
    assert (best.value, list(best.overrides)) == (1.0, ["epochs=1", "seed=4"])
    assert Path("sweep/study.db").is_file()


def test_a_search_runs_again_what_failed_and_its_table_has_all_jobs(run: Run) -> None:
    pytest.importorskip("optuna")
    search = (*OPTUNA, "seed=2,3")
    Path("broken").touch()
    assert run(*search)[0] == 2
    ran()
    Path("broken").unlink()
    code, out, _ = run(*search)
    assert code == 0
    assert sorted(ran()) == ["3 3"]
    assert "Best of 2 trials" in out
    assert sorted(rows()) == [(f"seed={seed}", "done") for seed in (2, 3)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["seed=2"], "nothing to search"),
        (["seed=2,4", "hydra.sweeper.trials=0"], "hydra.sweeper.trials is 0"),
    ],
)
def test_a_search_that_cannot_begin_says_why(run: Run, arguments: list[str], words: str) -> None:
    pytest.importorskip("optuna")
    code, _, err = run(*OPTUNA, *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert words in err


def test_jobs_with_a_target_of_their_own_are_known_again(run: Run) -> None:
    """The keys of the option go from what a job is given, not from what it is known by."""
    words = ("schedule._target_=netsplit.program.GPipe", "seed=0,2")
    assert "not begun" not in run(*words).out
    run(*words)
    assert Path("ran").read_text().splitlines() == ["0 3", "2 3"]
