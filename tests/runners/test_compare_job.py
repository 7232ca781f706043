"""`python -m runners.compare` around its comparisons: what they are told, and what is refused before them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig
from rich.console import Console

from netsplit.errors import NetSplitError
from netsplit.experiment import comparison
from netsplit.experiment.comparison import each_method
from netsplit.experiment.records import Comparison
from netsplit.tracking import ComparisonRow, Tracker
from runners import _compared, compare
from runners._compared import SHOWN, written
from runners._entry import CONF

Run = Callable[..., tuple[int, list[str]]]
CASES = "cases={one: {batch_size: 32}, two: {}}"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command with no work done; answers its exit code, and the tag `command` of each comparison."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    began: list[str] = []

    def nothing(
        parts: object,
        name: str,
        labels: dict[str, str],
        folder: Path,
        console: object,
        command: object = None,
    ) -> Comparison:
        began.append(labels["command"])
        folder.mkdir(parents=True, exist_ok=True)
        return Comparison(folder)

    def call(*arguments: str) -> tuple[int, list[str]]:
        monkeypatch.setattr("sys.argv", ["compare", *arguments, "experiment=quick"])
        try:
            compare.main()
        except SystemExit as end:
            return int(end.code or 0), began
        return 0, began

    monkeypatch.setattr(_compared, "one", nothing)
    return call


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["hydra.run.dir=alone"], ["alone"]),
        (["hydra.run.dir=outer/cases", CASES], ["cases", "cases"]),
        (["--multirun", "hydra.sweep.dir=outer/sweep", "seed=0,1"], ["sweep", "sweep"]),
        (["--multirun", "hydra.sweep.dir=sweep", "hydra.sweep.subdir=a/b", "seed=0"], ["sweep"]),
    ],
)
def test_comparisons_of_one_command_have_one_tag(run: Run, arguments: list[str], command: list[str]) -> None:
    assert run(*arguments, "tracking=none") == (0, command)


@pytest.mark.parametrize("arguments", [[], [CASES], ["cluster=titan_rtx3"]])
def test_a_server_that_is_not_there_is_said_before_the_work(
    run: Run, capfd: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run("tracking.uri=http://127.0.0.1:1", *arguments) == (2, [])
    assert "no MLflow server answers at http://127.0.0.1:1" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("loss=None", "loss is 'None': name what makes it, as in loss._target_=my_package.loss."),
        ("loss=null", "loss is null: name what makes it"),
        ("cases={one: {loss: abc}}", "case one: loss is 'abc': name what makes it"),
        ("resume=foo", "resume is 'foo', where there is no whole checkpoint"),
        ("resume=/nowhere", "resume is '/nowhere', where there is no whole checkpoint"),
        ("model._target_=builtins.dict", "model._target_ is builtins.dict, which has no readable signature"),
    ],
)
def test_what_cannot_be_built_or_gone_on_from_is_said_and_nothing_is_left(
    run: Run, word: str, sentence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(word) == (2, [])
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"error: {sentence}")
    assert not list(tmp_path.iterdir())


def test_a_compiler_that_torch_does_not_know_is_said_before_the_work(
    run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("tracking=none", "compile_backend=fast") == (2, [])
    assert "compile_backend is 'fast', which torch.compile does not know" in capfd.readouterr().err


@pytest.mark.parametrize("case", [[], [CASES]])
def test_costs_that_cannot_be_predicted_are_said_before_the_work(
    run: Run, capfd: pytest.CaptureFixture[str], case: list[str]
) -> None:
    assert run("tracking=none", "profile=predicted", "autocast=bfloat16", *case) == (2, [])
    assert "no rates of cpu_thread under autocast bfloat16" in capfd.readouterr().err
    assert run("tracking=none", "profile=predicted", *case)[0] == 0


NAMES = ("amoeba", "wide", "unet")


def test_a_case_that_fails_stops_no_other_and_is_named_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[str] = []
    shown: list[str] = []

    def comparison(parts: object, name: str, *_: object) -> Comparison:
        began.append(name)
        if name == "models: wide":
            raise NetSplitError("there is no room.")
        return Comparison(tmp_path)

    unrecorded = Tracker("sqlite:///nowhere.db", enabled=False)
    requests: Any = {name: SimpleNamespace(tracker=unrecorded, own=(), published={}) for name in NAMES}
    labels: dict[str, dict[str, str]] = {name: {} for name in NAMES}
    monkeypatch.setattr(_compared, "one", comparison)
    monkeypatch.setattr(_compared, "show", lambda done, *_: shown.extend(done.comparisons))
    with pytest.raises(NetSplitError, match=r"1 of 3.*\(wide\).*wide: there is no room"):
        _compared.each_case(requests, "models", labels, tmp_path, Console())
    assert began == [f"models: {name}" for name in NAMES]
    assert shown == ["amoeba", "unet"]


@pytest.mark.parametrize(
    ("tracker", "words"),
    [
        (Tracker("sqlite:///nowhere.db", enabled=False), "there is this table."),
        (Tracker(SHOWN), "'make ui' shows the runs, 'comparison.md' there is this table."),
        (Tracker("sqlite:////a/b.db"), "this table; the runs are in sqlite:////a/b.db."),
        (Tracker("http://me:secret@host:5000"), "this table; the runs are in http://me:***@host:5000."),
    ],
)
def test_where_the_runs_are_is_said(tracker: Tracker, words: str) -> None:
    said = written(Path("there"), tracker)
    assert said.startswith("Written to there; '")
    assert said.endswith(words)
    assert ("make ui" in said) == (tracker.uri == SHOWN)


@pytest.mark.parametrize(
    ("uri", "server"),
    [
        (SHOWN, "http://127.0.0.1:5000/"),
        ("http://me:secret@host:5000", "http://host:5000/"),
        ("sqlite:////a/b.db", None),  # which no server is known to show
    ],
)
def test_the_address_of_the_charts_is_where_they_are_served(uri: str, server: str | None) -> None:
    _, *charts = written(Path("there"), Tracker(uri), "#/experiments/1/runs").splitlines()
    assert [line.rpartition(" ")[2] for line in charts] == (
        [f"{server}#/experiments/1/runs"] if server else []
    )


def test_the_default_database_is_the_one_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder, shown in ((CONF.parent, True), (tmp_path, False)):
        monkeypatch.chdir(folder)
        assert (Tracker("sqlite:///outputs/mlflow.db").uri == SHOWN) == shown


class _Recorded:
    """A parent run, or a method's, that keeps what it is given."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    @contextmanager
    def method(self, name: str, config: object, tags: Mapping[str, str]) -> Any:
        self.given |= tags
        yield self

    charts = ""

    def summary(self, values: Mapping[str, Any]) -> None:
        self.given |= values


def test_a_method_s_run_has_the_command_and_its_comparison_s_the_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = ComparisonRow(
        "auto", "heuristic", predicted_s=0.5, measured_s=0.25, throughput=32.0, score=0.75, metric="accuracy",
        measured_peak={"a": 2, "b": 3}, loss=1.5,
    )  # fmt: skip
    parent: Any = _Recorded()
    experiment: Any = DictConfig(
        {"partitioners": {"auto": None}, "labels": {"command": "mine", "model": "m"}, "config": None}
    )
    for name in ("record_workload", "record_comparison"):
        monkeypatch.setattr(comparison, name, lambda *_: None)
    planner: Any = SimpleNamespace(decided=None)
    done = each_method(experiment, planner, parent, Path(), lambda *_: row)
    assert done.rows == [row]
    assert parent.given["command"] == "mine"
    assert "model" not in parent.given
    figures = {key: value for key, value in parent.given.items() if "/" in key and value is not None}
    assert figures == {
        "auto/samples_per_s": 32.0,
        "auto/seconds_per_iteration": 0.25,
        "auto/seconds_per_iteration_predicted": 0.5,
        "auto/peak_bytes": 3,
        "auto/accuracy": 0.75,
        "auto/loss": 1.5,
    }
