"""Multiruns: failures stop nothing, what is done is not done again, searches find what is least."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import MissingConfigException
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from netsplit.errors import NetSplitError
from runners import _sweep
from runners._entry import entry, sentence
from runners._sweep import Mark, marks_in

Run = Callable[..., tuple[int, str, str]]


def job(cfg: DictConfig) -> float:
    """Fails at odd seeds while there is a file `broken`; leaves a line in `ran` each time it runs."""
    with Path("ran").open("a") as file:
        file.write(f"{cfg.seed} {cfg.epochs}\n")
    if cfg.seed % 2 and Path("broken").exists():
        raise NetSplitError(f"seed {cfg.seed} is odd.")
    return float((cfg.seed - 4) ** 2 + cfg.epochs)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a job as a multirun in an empty folder; answers its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)

    def call(*arguments: str, of: Callable[[DictConfig], Any] = job) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["job", "--multirun", "hydra.sweep.dir=sweep", *arguments])
        try:
            entry()(of)()
        except SystemExit as end:
            return int(end.code or 0), *capfd.readouterr()
        return 0, *capfd.readouterr()

    return call


def ran() -> list[str]:
    """What ran since the last call, in order."""
    path = Path("ran")
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def marks(folder: str = "sweep") -> dict[int, Mark]:
    return {mark.number: mark for mark in marks_in(Path(folder))}


def test_every_job_says_in_its_folder_how_it_ended(run: Run) -> None:
    Path("broken").touch()
    code, _, _ = run("seed=0,1,2", "epochs=5")
    assert code == 2
    found = marks()
    assert [found[number].outcome for number in range(3)] == ["done", "failed", "done"]
    assert found[0].overrides == ("epochs=5", "seed=0")
    assert (found[2].value, found[1].value) == (9.0, None)
    assert found[1].error == "seed 1 is odd."
    assert Path("sweep/1/job.json").is_file()


def test_the_table_has_every_job_its_own_overrides_and_why_it_failed(run: Run) -> None:
    Path("broken").touch()
    _, out, _ = run("seed=0,1", "epochs=5")
    lines = out.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("job "))
    rows = [line.split() for line in lines[head + 1 : head + 3]]
    assert [(row[0], row[1], row[2], row[-1]) for row in rows] == [
        ("0", "seed=0", "done", "sweep/0"),
        ("1", "seed=1", "failed", "sweep/1"),
    ]
    assert lines[head - 1] == "in all: epochs=5"
    assert "job 1: seed 1 is odd." in lines
    assert "hydra.sweep.dir=sweep runs only what is not done" in lines[-1]
    assert Path("sweep/jobs.txt").read_text().splitlines() == lines[head - 1 : head + 4]


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


def test_more_values_are_added_to_a_sweep(run: Run) -> None:
    run("seed=2")
    ran()
    run("seed=2,4,6", "hydra.sweeper.max_batch_size=1")
    assert ran() == ["4 3", "6 3"]
    assert [mark.overrides for mark in marks().values()] == [("seed=2",), ("seed=4",), ("seed=6",)]


def test_a_job_that_was_killed_is_run_again(run: Run) -> None:
    run("seed=0,2")
    path = Path("sweep/1/job.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"outcome": "running"}))
    ran()
    run("seed=0,2")
    assert ran() == ["2 3"]


def test_a_group_can_be_swept(run: Run) -> None:
    code, out, _ = run("schedule=gpipe,1f1b", "model=amoebanet_d_small,amoebanet_d")
    assert code == 0
    assert len(ran()) == 4
    assert "model=amoebanet_d schedule=1f1b" in out


def test_nothing_runs_when_one_job_cannot_be_composed(run: Run) -> None:
    code, _, err = run("schedule=gpipe,1f2b")
    assert (code, ran()) == (2, [])
    assert "schedule=1f2b is not an option" in err


class Stubborn(NetSplitError):
    """Pickles into what cannot be read back."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}.")


def stubborn(cfg: DictConfig) -> None:
    raise Stubborn("it", "failed")


def test_an_error_that_cannot_be_sent_is_told_in_words(run: Run) -> None:
    with pytest.raises(RuntimeError, match=r"Stubborn: it failed\."):
        run("seed=0", of=stubborn)
    assert marks()[0].error == "it failed."


def test_interrupted_sweeps_say_how_to_go_on(run: Run) -> None:
    def interrupted(cfg: DictConfig) -> None:
        if cfg.seed:
            raise KeyboardInterrupt

    code, out, _ = run("seed=0,1,2", of=interrupted)
    assert code == 130
    assert "hydra.sweep.dir=sweep runs only what is not done" in out
    assert [mark.outcome for mark in marks().values()] == ["done", "running"]


def test_what_is_no_mark_is_passed_over(tmp_path: Path) -> None:
    for number, text in enumerate(["", "[]", '{"number": 1}', "no json"]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "job.json").write_text(text)
    assert marks_in(tmp_path) == []


def test_one_config_key_more_is_another_job() -> None:
    config = OmegaConf.create({"a": 1, "b": "${a}", "hydra": {"job": {"num": 3}}})
    same = OmegaConf.create({"b": "${a}", "a": 1})
    assert _sweep._key(["y=2", "x=1"], config) == _sweep._key(["x=1", "y=2"], same)
    assert _sweep._key(["x=1"], config) != _sweep._key(["x=1"], OmegaConf.create({"a": 2, "b": "${a}"}))


@pytest.mark.parametrize(
    ("option", "extra"), [("joblib", "sweep"), ("submitit_slurm", "slurm"), ("submitit_local", "slurm")]
)
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
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)  # where this job is
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


def test_a_search_goes_on_after_failed_jobs(run: Run) -> None:
    pytest.importorskip("optuna")
    Path("broken").touch()
    code, out, _ = run(*OPTUNA, "seed=range(2,6)", "hydra.sweeper.at_once=3")
    assert code == 2
    assert sorted(ran()) == ["2 3", "3 3", "4 3", "5 3"]
    assert "Best of 4 trials: 3 with seed=4" in out


def test_a_search_over_other_values_is_another_study(run: Run) -> None:
    pytest.importorskip("optuna")
    run(*OPTUNA, "hydra.sweeper.trials=1", "seed=2,4")
    code, _, err = run(*OPTUNA, "seed=2,4,6")
    assert code == 2
    assert "searched other values: give another hydra.sweeper.study" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["seed=2"], "nothing to search"),
        (["seed=2,4", "hydra.sweeper.trials=0"], "hydra.sweeper.trials is 0"),
        (["seed=2,4", "hydra.sweeper.direction=down"], "give minimize, maximize"),
        (["seed=2,4", "hydra.sweeper.storage=nowhere"], "hydra.sweeper.storage 'nowhere' cannot be opened"),
    ],
)
def test_a_search_that_cannot_begin_says_why(run: Run, arguments: list[str], words: str) -> None:
    pytest.importorskip("optuna")
    code, _, err = run(*OPTUNA, *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert words in err


def test_a_job_without_a_number_cannot_be_searched(run: Run) -> None:
    pytest.importorskip("optuna")
    code, _, err = run(*OPTUNA, "seed=2,4", of=lambda cfg: None)
    assert code == 2
    assert "needs a command that answers with a number" in err


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    trials=st.integers(1, 30),
    at_once=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_a_search_tries_as_many_different_points_as_it_may(
    sizes: Sequence[int], trials: int, at_once: int, seed: int
) -> None:
    optuna = pytest.importorskip("optuna")
    from hydra_plugins.netsplit_sweeps.optuna_sweeper import OptunaSweeper, _tell

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sweeper = OptunaSweeper(trials, at_once, "minimize", "random", seed, "", "law")
    study = optuna.create_study(sampler=sweeper._sampler())
    space = {
        f"k{axis}": optuna.distributions.CategoricalDistribution(list(map(str, range(size))))
        for axis, size in enumerate(sizes)
    }
    asked = []
    while batch := sweeper._next(study, space):
        assert len(batch) <= at_once
        for point, same in batch.items():
            asked.append(point)
            value = None if len(asked) % 3 == 0 else float(len(asked))
            sweeper._tried[point] = value
            for trial in same:
                _tell(study, trial, value)
    assert len(asked) == len(set(asked)) == min(trials, math.prod(sizes))
