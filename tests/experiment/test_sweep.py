"""Multiruns: failures stop nothing, what is done is not done again, searches find what is least."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra.errors import MissingConfigException
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from netsplit.errors import NetSplitError
from netsplit.experiment import sweep
from netsplit.experiment.sweep import Mark, marks_in
from runners import _entry
from runners._entry import CONF, entry, sentence
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
    assert "hydra.sweep.dir=sweep" in lines[-1]
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


def test_the_table_keeps_the_jobs_of_earlier_commands(run: Run) -> None:
    run("seed=2,4")
    run("seed=4,6")
    assert rows() == [("seed=2", "done (earlier)"), ("seed=4", "done"), ("seed=6", "done")]


def test_a_job_that_was_killed_is_run_again(run: Run) -> None:
    run("seed=0,2")
    path = Path("sweep/1/job.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"outcome": "running"}))
    ran()
    run("seed=0,2")
    assert ran() == ["2 3"]


def test_groups_of_the_whole_config_can_be_swept(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_entry, "CONF", CONF)
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
    assert "hydra.sweep.dir=sweep" in out
    assert [mark.outcome for mark in marks().values()] == ["done", "running"]


def test_what_is_no_mark_is_passed_over(tmp_path: Path) -> None:
    for number, text in enumerate(["", "[]", '{"number": 1}', "no json"]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "job.json").write_text(text)
    assert marks_in(tmp_path) == []


def test_one_config_key_more_is_another_job() -> None:
    config = OmegaConf.create({"a": 1, "b": "${a}", "hydra": {"job": {"num": 3}}})
    same = OmegaConf.create({"b": "${a}", "a": 1})
    assert sweep._key(["y=2", "x=1"], config) == sweep._key(["x=1", "y=2"], same)
    assert sweep._key(["x=1"], config) != sweep._key(["x=1"], OmegaConf.create({"a": 2, "b": "${a}"}))


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


def test_a_search_goes_on_after_failed_jobs(run: Run) -> None:
    pytest.importorskip("optuna")
    Path("broken").touch()
    code, out, _ = run(*OPTUNA, "seed=range(2,6)", "hydra.sweeper.at_once=3")
    assert code == 2
    assert sorted(ran()) == ["2 3", "3 3", "4 3", "5 3"]
    assert "Best of 4 trials: 3 with seed=4" in out


def test_a_search_runs_again_what_failed_and_its_table_has_all_jobs(run: Run) -> None:
    pytest.importorskip("optuna")
    search = (*OPTUNA, "seed=range(2,6)")
    Path("broken").touch()
    run(*search)
    ran()
    assert run(*search)[0] == 2
    assert sorted(ran()) == ["3 3", "5 3"]
    Path("broken").unlink()
    code, out, _ = run(*search)
    assert code == 0
    assert sorted(ran()) == ["3 3", "5 3"]
    assert "Best of 4 trials" in out
    assert run(*search)[0] == 0
    assert ran() == []
    assert sorted(rows()) == [(f"seed={seed}", "done") for seed in range(2, 6)]


def test_a_search_of_another_config_does_not_count_what_was_found(run: Run) -> None:
    pytest.importorskip("optuna")
    run(*OPTUNA, "seed=2,4", "epochs=1")
    assert len(ran()) == 2
    code, out, err = run(*OPTUNA, "seed=2,4", "epochs=7")
    assert (code, sorted(ran())) == (0, ["2 7", "4 7"])
    assert "another config" in out + err
    assert "Best of 2 trials: 7 with seed=4" in out
    assert OmegaConf.load("sweep/best.yaml").value == 7.0
    assert sorted(rows()) == [
        ("epochs=1 seed=2", "done (earlier)"),
        ("epochs=1 seed=4", "done (earlier)"),
        ("epochs=7 seed=2", "done"),
        ("epochs=7 seed=4", "done"),
    ]
    code, out, _ = run(*OPTUNA, "seed=2,4", "epochs=1")
    assert (code, ran()) == (0, [])
    assert "Best of 2 trials: 1 with seed=4" in out


def test_an_edited_option_is_another_config_of_the_search(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    run(*OPTUNA, "schedule=gpipe,1f1b")
    assert len(ran()) == 2
    whole = sweep._key

    def edited(overrides: Sequence[str], cfg: DictConfig) -> sweep.Key:
        key = whole(overrides, cfg)
        return (key[0], "edited") if "schedule=1f1b" in key[0] else key

    monkeypatch.setattr(sweep, "_key", edited)
    run(*OPTUNA, "schedule=gpipe,1f1b")
    assert len(ran()) == 1
    assert marks()[2].overrides == ("schedule=1f1b",)


def test_a_search_that_was_interrupted_goes_on_with_what_was_running(run: Run) -> None:
    pytest.importorskip("optuna")

    def interrupted(cfg: DictConfig) -> float:
        if len(marks()) == 2:
            raise KeyboardInterrupt
        return job(cfg)

    search = (*OPTUNA, "hydra.sweeper.trials=2", "epochs=1", "+x=interval(0.5,1.5)")
    assert run(*search, of=interrupted)[0] == 130
    (killed,) = (mark for mark in marks().values() if mark.outcome == "running")
    assert run(*search)[0] == 0
    assert marks()[2].overrides == killed.overrides
    assert len(rows()) == 2


def test_numbers_between_two_bounds_can_be_drawn() -> None:
    optuna = pytest.importorskip("optuna")
    from hydra_plugins.netsplit_sweeps.optuna_sweeper import OptunaSweeper

    sweeper = OptunaSweeper(2, 1, "minimize", "random", 0, "", "law")
    drawn = sweeper._untried({"x": optuna.distributions.FloatDistribution(2.0, 3.0)}, {})
    assert 2.0 <= drawn["x"] <= 3.0


def test_values_can_be_added_to_a_search(run: Run) -> None:
    pytest.importorskip("optuna")
    run(*OPTUNA, "seed=2,6")
    ran()
    code, out, _ = run(*OPTUNA, "seed=2,4,6")
    assert (code, ran()) == (0, ["4 3"])
    assert "Best of 3 trials: 3 with seed=4" in out


def test_a_search_composes_every_value_before_its_first_job(run: Run) -> None:
    pytest.importorskip("optuna")
    code, _, err = run(*OPTUNA, "schedule=gpipe,1f1b,nope", "schedule.microbatches=2,4")
    assert (code, ran()) == (2, [])
    assert "schedule=nope is not an option" in err


def test_a_search_over_cases_is_refused_before_its_first_job(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setattr(_entry, "CONF", CONF)
    code, _, err = run(*OPTUNA, "experiment=table_6_4", "seed=2,4")
    assert (code, ran()) == (2, [])
    assert "cases=null" in err


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


def silent(cfg: DictConfig) -> None:
    job(cfg)


def test_a_command_without_a_number_cannot_be_searched(run: Run) -> None:
    pytest.importorskip("optuna")
    code, _, err = run(*OPTUNA, "seed=2,4", of=silent)
    assert (code, ran()) == (2, [])
    assert "answers with a number" in err


def unfit(cfg: DictConfig) -> float | None:
    return None if cfg.seed == 4 else job(cfg)


def test_a_job_in_which_nothing_fits_has_failed_and_the_search_goes_on(run: Run) -> None:
    pytest.importorskip("optuna")
    code, out, err = run(*OPTUNA, "seed=2,4,6", of=unfit)
    assert code == 2
    assert "no method fits" in err
    assert sorted(mark.outcome for mark in marks().values()) == ["done", "done", "failed"]
    assert ("seed=4", "failed") in rows()
    assert "Best of 3 trials: 7 with seed=" in out
    assert run(*OPTUNA, "seed=2,4,6")[0] == 0
    assert "Best of 3 trials: 3 with seed=4" in Path("sweep/jobs.txt").read_text()


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
