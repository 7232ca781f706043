"""Costs measured on workers, kept and found again: on real ones, and on such as say what they are told to."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from netsplit.cluster.cluster import Cluster
from netsplit.cluster.local import ClusterSpec, LocalDevice, local_cluster
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.profile.measure.clock import trivial_step
from netsplit.profile.measured import Measured, ProfileCache
from netsplit.program import GPipe
from netsplit.progress import Stages
from netsplit.runtime.workers.launch import Hello
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.session import costs as session_costs
from netsplit.session.calibration import Calibration
from netsplit.session.costs import MeasuredCosts
from netsplit.session.session import Session
from netsplit.session.trial_run import Fit, TrialRun
from netsplit.training.options import Training
from tests.builders import cpus
from tests.nets import SGD
from tests.workers import Pools, lent_session


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.inward(x)))


def studied(session: Session, lr: float = 0.1, momentum: float = 0.0) -> Costs:
    torch.manual_seed(0)
    batch = (torch.randn(8, 8), torch.randint(0, 4, (8,)))
    optimizer = partial(torch.optim.SGD, lr=lr, momentum=momentum)
    step = session.step(Net(), nn.CrossEntropyLoss(), batch, Training(optimizer))
    return session.problem(step, GPipe(2)).costs


def test_two_workers_measure_messages_and_the_second_study_finds_the_costs_of_the_first(
    pools: Pools, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with lent_session(pools, tmp_path / "run") as session:
        session.profile, session.profile_cache = "reuse", tmp_path / "kept"
        with caplog.at_level(logging.INFO, logger="netsplit"):
            first = studied(session)
        assert "Measuring" in caplog.text
        assert 1e-6 < first.devices["cpu"].instruction_s < 0.1
        assert "Trial run" in caplog.text
        steady = "uncertain" not in caplog.text  # other work on this machine may forbid it
        # Operators of microseconds: what a trial run takes beyond them can only be its messages'.
        assert not steady or (first.devices["cpu"].message_s or 0.0) > 1e-5
        assert first.devices["cpu"].copy_s_per_byte < 1e-6
        assert any(each.weight_s > 0 for each in first.devices["cpu"].nodes.values())

        caplog.clear()
        with caplog.at_level(logging.INFO, logger="netsplit"):
            again = studied(session)
        assert "Using the costs measured on cpu:0" in caplog.text or "out of date" in caplog.text
        assert len(list((tmp_path / "kept").iterdir())) == 1
        if "uncertain" not in caplog.text and "out of date" not in caplog.text:  # as on a busy machine
            assert "Trial run" not in caplog.text
            assert again == first


TASK = Calibration(trivial_step(), (), {}, SGD)
ALONE = Measured(DeviceCosts({"mul": NodeSeconds(1e-6, 2e-6)}, 1e-9, 3e-5), reference_s=5e-3)
STEADY, UNSURE = Fit(1.2, 1e-4, 0.01), Fit(1.4, 3e-4, 0.5, steady=False)


@dataclass
class Told:
    """A pool whose workers measure what they are told to, and note who was asked for what."""

    spec: ClusterSpec
    hosts: tuple[str, ...]
    processors: tuple[str, ...]
    speed_s: float = 5e-3
    asked: list[tuple[str, int]] = field(default_factory=list)

    @property
    def hellos(self) -> list[Hello]:
        return [Hello(rank, len(self.hosts), 1, host, 1) for rank, host in enumerate(self.hosts)]

    def call_one(self, rank: int, function: Callable[..., Any], *args: Any) -> Any:
        self.asked.append((function.__name__, rank))
        said = {"kind": "cpu", "processor": self.processors[rank], "host": self.hosts[rank]}
        own = (frozenset({rank}), 1.5)  # each bound to a processor, in a container
        told = {"_identity": said, "_processors": own, "measure_part": ALONE, "speed_of": self.speed_s}
        return told.get(function.__name__, 2e-10)

    def call(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        return [self.call_one(rank, function, *args) for rank in range(len(self.hosts))]

    def took(self) -> list[tuple[str, int]]:
        """Who measured since the last call."""
        asked, self.asked = self.asked, []
        return [(what, rank) for what, rank in asked if what == "measure_part"]


@dataclass
class Stage:
    """Two workers of one machine, a folder, and what their next trial run finds."""

    folder: Path
    fit: Fit = STEADY
    took: float = 1.1  # by a short trial run, beside what kept costs say
    tried: list[tuple[str, ...]] = field(default_factory=list)
    checked: list[tuple[str, ...]] = field(default_factory=list)
    spec: ClusterSpec = field(
        default_factory=lambda: local_cluster("two", [LocalDevice("cpu:0"), LocalDevice("cpu:1")])
    )
    pool: Told = field(init=False)

    def __post_init__(self) -> None:
        self.pool = Told(self.spec, ("here", "here"), ("x86", "x86"))

    def costs(self, cluster: Cluster | None = None) -> Costs:
        pool, linked = cast(WorkerPool, self.pool), cluster or cpus(2)
        cache = ProfileCache(self.folder)
        return MeasuredCosts(self.spec, False, cache, Stages(), lambda: pool, lambda: linked).measured(TASK)

    def files(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.folder.iterdir())]

    def hour_ago(self) -> None:
        for path in self.folder.iterdir():
            data = json.loads(path.read_text())
            path.write_text(json.dumps(data | {"measured_at": data["measured_at"] - 3600}))


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage(tmp_path)

    def fit_trial(trial: TrialRun, *_: object) -> Fit:
        made.tried.append(trial.names)
        return made.fit

    def checked_trial(trial: TrialRun, *_: object) -> tuple[float, float]:
        made.checked.append(trial.names)
        return 1e-3, made.took * 1e-3

    monkeypatch.setattr(session_costs, "fit_trial", fit_trial)
    monkeypatch.setattr(session_costs, "checked_trial", checked_trial)
    return made


def test_a_steady_fit_is_kept_and_not_tried_again(stage: Stage) -> None:
    first = stage.costs()
    assert (first.devices["cpu"].contention, first.devices["cpu"].message_s) == (1.2, 1e-4)
    assert stage.costs() == first
    assert stage.tried == [("cpu:0", "cpu:1")]
    assert stage.pool.took() == [("measure_part", 0)]


def test_an_unsure_fit_serves_once_and_the_next_study_runs_with_the_seconds_kept(stage: Stage) -> None:
    stage.fit = UNSURE
    assert stage.costs().devices["cpu"].contention == 1.4
    (kept,) = stage.files()
    assert (kept["steady"], kept["costs"]["contention"], kept["costs"]["message_s"]) == (False, 1.0, None)
    stage.hour_ago()

    stage.fit = STEADY
    assert stage.costs().devices["cpu"].contention == 1.2
    assert stage.pool.took() == [("measure_part", 0)]
    (again,) = stage.files()
    assert (again["steady"], again["costs"]["contention"]) == (True, 1.2)
    assert again["measured_at"] == pytest.approx(kept["measured_at"] - 3600, abs=60)
    stage.costs()
    assert len(stage.tried) == 2


@pytest.mark.parametrize(("fit", "took"), [(STEADY, 1.25), (UNSURE, 0.33)])
def test_kept_costs_that_a_trial_run_contradicts_are_measured_anew(
    stage: Stage, fit: Fit, took: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Tries one device of an unsure profile: nothing is known of how several slow one another."""
    stage.fit = fit
    stage.costs()
    stage.hour_ago()
    stage.pool.took()
    stage.took = took
    with caplog.at_level(logging.INFO, logger="netsplit"):
        stage.costs()
    far = abs(took - 1) > 0.3
    assert stage.checked == [("cpu:0", "cpu:1") if fit.steady else ("cpu:0",)]
    assert stage.pool.took() == [("measure_part", 0)] * far
    (kept,) = stage.files()
    assert (time.time() - kept["measured_at"] > 3000) != far
    word, by = ("longer", took - 1) if took > 1 else ("less", 1 - took)
    (line,) = [each for each in caplog.messages if "ago" in each]
    assert f"takes {100 * by:.0f} % {word}" in line
    assert ("Measuring again." in line) == far


@pytest.mark.parametrize("changed", ["host", "torch"])
def test_another_machine_or_version_is_measured_anew(
    stage: Stage, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.costs()
    plain = stage.pool.call_one

    def other(rank: int, function: Callable[..., Any], *args: Any) -> Any:
        said = plain(rank, function, *args)
        return said | {changed: "another"} if function.__name__ == "_identity" else said

    monkeypatch.setattr(stage.pool, "call_one", other)
    stage.costs()
    stage.costs()
    assert len(stage.tried) == len(stage.files()) == 2
