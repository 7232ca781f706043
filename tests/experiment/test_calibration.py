"""Costs measured on workers, kept and found again: on real ones, and on such as say what they are told to."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from netsplit.cluster.cluster import Cluster, Device
from netsplit.cluster.local import ClusterSpec, LocalDevice, local_cluster
from netsplit.experiment import calibration
from netsplit.experiment.calibration import Calibration, calibrate, located
from netsplit.experiment.session import Session
from netsplit.experiment.trial_run import Fit, TrialRun
from netsplit.profile.costs import Costs, DeviceCosts, NodeBytes, NodeSeconds, PartCosts
from netsplit.profile.measure.overhead import trivial_step
from netsplit.profile.measured import Measured, ProfileCache
from netsplit.program import GPipe
from netsplit.runtime.workers.handshake import Hello
from netsplit.runtime.workers.pool import WorkerPool
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
    return session.planner(Net(), nn.CrossEntropyLoss(), batch, GPipe(2), optimizer).costs


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


@pytest.mark.slow
def test_a_change_of_optimizer_or_a_wish_measures_anew(tmp_path: Path) -> None:
    spec = local_cluster("one", [LocalDevice("cpu:0")])
    with Session(spec, tmp_path / "run", profile="reuse", profile_cache=tmp_path / "kept") as session:
        first = studied(session)
        session.profile = "refresh"
        assert studied(session).devices["cpu"].nodes != first.devices["cpu"].nodes
        assert len(list((tmp_path / "kept").iterdir())) == 1
        session.profile = "reuse"
        studied(session, lr=0.2)
        assert len(list((tmp_path / "kept").iterdir())) == 1
        studied(session, momentum=0.9)
        assert len(list((tmp_path / "kept").iterdir())) == 2


@pytest.mark.slow
def test_a_single_worker_has_no_messages(tmp_path: Path) -> None:
    spec = local_cluster("one", [LocalDevice("cpu:0")])
    with Session(spec, tmp_path / "run") as session:
        costs = studied(session).devices["cpu"]
    assert (costs.message_s, costs.contention, costs.copy_s_per_byte) == (None, 1.0, 0.0)
    assert costs.instruction_s > 0


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
        told = {"_identity": said, "_processors": own, "_measure_part": ALONE, "_speed": self.speed_s}
        return told.get(function.__name__, 2e-10)

    def call(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        return [self.call_one(rank, function, *args) for rank in range(len(self.hosts))]

    def took(self) -> list[tuple[str, int]]:
        """Who measured since the last call."""
        asked, self.asked = self.asked, []
        return [(what, rank) for what, rank in asked if what == "_measure_part"]


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
        cache = ProfileCache(self.folder)
        return calibrate(TASK, cast(WorkerPool, self.pool), cluster or cpus(2), cache)

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

    monkeypatch.setattr(calibration, "fit_trial", fit_trial)
    monkeypatch.setattr(calibration, "checked_trial", checked_trial)
    return made


def test_a_steady_fit_is_kept_and_not_tried_again(stage: Stage) -> None:
    first = stage.costs()
    assert (first.devices["cpu"].contention, first.devices["cpu"].message_s) == (1.2, 1e-4)
    assert stage.costs() == first
    assert stage.tried == [("cpu:0", "cpu:1")]
    assert stage.pool.took() == [("_measure_part", 0)]


def test_an_unsure_fit_serves_once_and_the_next_study_runs_with_the_seconds_kept(stage: Stage) -> None:
    stage.fit = UNSURE
    assert stage.costs().devices["cpu"].contention == 1.4
    (kept,) = stage.files()
    assert (kept["steady"], kept["costs"]["contention"], kept["costs"]["message_s"]) == (False, 1.0, None)
    stage.hour_ago()

    stage.fit = STEADY
    assert stage.costs().devices["cpu"].contention == 1.2
    assert stage.pool.took() == [("_measure_part", 0)]
    (again,) = stage.files()
    assert (again["steady"], again["costs"]["contention"]) == (True, 1.2)
    assert again["measured_at"] == pytest.approx(kept["measured_at"] - 3600, abs=60)
    stage.costs()
    assert len(stage.tried) == 2


@pytest.mark.parametrize("took", [0.33, 1.25, 1.35, 3.0])
@pytest.mark.parametrize("fit", [STEADY, UNSURE])
def test_kept_costs_that_a_trial_run_contradicts_are_measured_anew(
    stage: Stage, fit: Fit, took: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Of an unsure profile one device is tried: nothing is known of how several slow one another."""
    stage.fit = fit
    stage.costs()
    stage.hour_ago()
    stage.pool.took()
    stage.took = took
    with caplog.at_level(logging.INFO, logger="netsplit"):
        stage.costs()
    far = abs(took - 1) > 0.3
    assert stage.checked == [("cpu:0", "cpu:1") if fit.steady else ("cpu:0",)]
    assert stage.pool.took() == [("_measure_part", 0)] * far
    (kept,) = stage.files()
    assert (time.time() - kept["measured_at"] > 3000) != far
    word, by = ("longer", took - 1) if took > 1 else ("less", 1 - took)
    (line,) = [each for each in caplog.messages if "ago" in each]
    assert f"takes {100 * by:.0f} % {word}" in line
    assert ("Measuring anew." in line) == far


def test_once_costs_are_out_of_date_nothing_else_that_was_kept_is_taken(stage: Stage) -> None:
    """Parts and sizes in turn were measured when the machine was another."""
    stage.costs()
    cache, parts = ProfileCache(stage.folder), {"relu": PartCosts(NodeSeconds(1.0, 2.0), NodeBytes())}
    cache.add_parts("parts-x", parts)
    for took, kept in ((1.0, parts), (3.0, {})):
        stage.took = took
        calibrate(TASK, cast(WorkerPool, stage.pool), cpus(2), cache)
        assert cache.parts("parts-x") == kept


def test_stated_links_are_part_of_what_a_profile_depends_on(stage: Stage) -> None:
    for latency_s in (None, 1e-5, 1e-4):
        bandwidth = None if latency_s is None else 1e9
        stage.pool.spec = replace(stage.spec, latency_s=latency_s, bandwidth=bandwidth)
        stage.costs()
        stage.costs()
    assert len(stage.files()) == len(stage.tried) == 3


def test_devices_are_tried_with_those_of_their_host_only_whatever_they_are_called(stage: Stage) -> None:
    """On the first host there is one device; contention shows on the second."""
    cluster = cpus(3)
    names, hosts = ("cpu:0", "left", "right"), ("here", "there", "there")
    devices = tuple(replace(d, name=n, host=h) for d, n, h in zip(cluster.devices, names, hosts, strict=True))
    stage.pool = Told(stage.spec, hosts, ("x86",) * 3)
    stage.costs(replace(cluster, devices=devices))
    assert stage.tried == [("left", "right")]
    assert stage.pool.took() == [("_measure_part", 1)]

    apart = tuple(replace(d, host=h) for d, h in zip(devices, "abc", strict=True))
    assert stage.costs(replace(cluster, devices=apart)).devices["cpu"].contention == 1.0
    assert len(stage.tried) == 1
    assert len(stage.files()) == 2


def test_each_processor_model_is_a_kind_that_is_measured(stage: Stage) -> None:
    devices = (*(Device(f"cpu:{rank}", "cpu", 1) for rank in range(3)), Device("gpu", "H100", 1, "cuda:0"))
    pool = Told(stage.spec, ("one", "two", "two", "two"), ("new", "old", "old", "old"))
    placed = located(devices, cast(WorkerPool, pool))
    assert [(d.kind, d.host, d.processors) for d in placed] == [
        ("cpu new", "one", 1.0), ("cpu old", "two", 1.5), ("cpu old", "two", 1.5), ("H100", "two", 1.5),
    ]  # fmt: skip
    stage.pool = pool
    costs = stage.costs(replace(cpus(1), devices=placed))
    contention = {kind: each.contention for kind, each in costs.devices.items()}
    assert contention == {"cpu new": 1.0, "cpu old": 1.2, "H100": 1.0}

    alike = Told(stage.spec, pool.hosts, ("new", "new", "new", "other beside the GPU"))
    assert {d.kind for d in located(devices, cast(WorkerPool, alike))} == {"cpu", "H100"}


def test_of_several_jobs_of_a_command_the_first_alone_measures_and_tries(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a sweep on a busy machine, whose trial runs are not to be kept."""
    stage.fit = UNSURE
    cache = ProfileCache(stage.folder)
    with caplog.at_level(logging.INFO, logger="netsplit"):
        jobs = [calibrate(TASK, cast(WorkerPool, stage.pool), cpus(2), cache) for _ in range(3)]
    assert jobs[0] == jobs[1] == jobs[2]
    assert len(stage.tried) == 1
    assert stage.pool.took() == [("_measure_part", 0)]
    assert caplog.text.count("Using the costs measured on cpu:0") == 2
    assert caplog.text.count("as an earlier job of this command measured it") == 2


@pytest.mark.parametrize("changed", ["host", "processor", "torch", "netsplit", "neighbours"])
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


def test_it_is_said_how_far_measuring_is(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, int, int]] = []
    plain, parts = stage.pool.call_one, iter([None] * 12 + [ALONE])

    def in_parts(rank: int, function: Callable[..., Any], *args: Any) -> Any:
        said = plain(rank, function, *args)
        return next(parts) if function.__name__ == "_measure_part" else said

    monkeypatch.setattr(stage.pool, "call_one", in_parts)
    cache, pool = ProfileCache(stage.folder), cast(WorkerPool, stage.pool)
    calibrate(TASK, pool, cpus(2), cache, lambda *told: shown.append(told))
    counts = [10] * 11 + [11, 12]  # further rounds, where those differ
    assert shown == [("measuring on cpu:0", done, most) for done, most in enumerate(counts)]


def test_a_device_alone_is_measured_in_parts_by_its_worker(pools: Pools, tmp_path: Path) -> None:
    shown: list[tuple[str, int, int]] = []
    with lent_session(pools, tmp_path / "run") as session:
        session.show = lambda *told: shown.append(told)
        studied(session)
    (alone, first), (together, second) = [
        (what, [(done, most) for each, done, most in shown if each == what])
        for what in dict.fromkeys(what for what, _, _ in shown)
    ]
    assert (alone, together) == ("measuring on cpu:0", "trial run on cpu:0, cpu:1")
    for told, least in ((first, 10), (second, 9)):
        assert [done for done, _ in told] == list(range(len(told)))
        assert told[-1][0] == told[-1][1] >= least
