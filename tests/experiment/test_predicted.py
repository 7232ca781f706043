"""`profile=predicted`: plans for devices that run, made without measuring an operator on them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import netsplit
from netsplit.cluster.catalogue import CPU_THREAD, RATES, accelerator, rates_by_kind
from netsplit.cluster.cluster import Device
from netsplit.cluster.local import ClusterSpec
from netsplit.data import synthetic
from netsplit.errors import ConfigError
from netsplit.experiment import calibration
from netsplit.experiment.calibration import predicted_here
from netsplit.experiment.comparison import Experiment, compare
from netsplit.experiment.session import Session
from netsplit.partition import MTopo
from netsplit.planning.decide import decide
from netsplit.planning.workload import Workload
from netsplit.profile.measure.overhead import trivial_step
from netsplit.profile.measure.step_scratch import optimizer_scratch
from netsplit.profile.measured import CACHE_VARIABLE
from netsplit.profile.predict import predicted_costs
from netsplit.program import GPipe
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.settings import Settings
from netsplit.tracking import MethodRun, Tracker
from tests.builders import cpus
from tests.experiment.test_calibration import Told
from tests.workers import Pools, cpu_workers, lent_session, lent_to_sessions

ADAM = partial(torch.optim.Adam, lr=0.02)
ALPHA = 4
GPU = Device("cuda:0", "NVIDIA Voodoo 2", 2**30, "cuda:0")


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ways = nn.ModuleList(nn.Linear(12, 64) for _ in range(3))
        self.head = nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(sum(torch.tanh(way(x)) for way in self.ways))


def samples(count: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 12, generator=torch.Generator().manual_seed(count))
    return x, x[:, :4].argmax(1)


def fresh() -> Wide:
    torch.manual_seed(0)
    return Wide()


@pytest.fixture
def _nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would measure costs fails, here and before it reaches a worker."""

    def measured(*_: object) -> None:
        raise AssertionError("a cost was measured")

    monkeypatch.setattr("netsplit.experiment.here.costs.calibrate", measured)
    for name in ("_measure_part", "_measure_copying", "fit_trial"):
        monkeypatch.setattr(calibration, name, measured)


def session_of(pools: Pools, folder: Path) -> Session:
    session = lent_session(pools, folder)
    session.profile = "predicted"
    session.spec = replace(session.spec, latency_s=1e-5, bandwidth=1e9)
    return session


def test_of_a_machine_its_speed_alone_is_measured() -> None:
    """Once for each kind of device, by the piece of work that rates were fitted beside."""
    graph, rates = trivial_step(), accelerator(CPU_THREAD)
    pool = Told(cpu_workers(2), ("here", "here"), ("x86", "x86"), speed_s=2 * rates.reference_s)
    costs = predicted_here(graph, ADAM, cast(WorkerPool, pool), cpus(2))
    assert pool.asked == [("_speed", 0)]
    predicted = predicted_costs(graph, {"cpu": rates.at(0.5, rates.name)}, ALPHA)
    assert costs == replace(predicted, scratch=optimizer_scratch(ADAM))
    assert costs.predicted
    as_fitted = predicted_costs(graph, {"cpu": rates}, ALPHA).devices["cpu"]
    here = costs.devices["cpu"]
    assert here.nodes["mul"].forward_s == pytest.approx(2 * as_fitted.nodes["mul"].forward_s)
    assert here.message_overhead_s == pytest.approx(2 * as_fitted.message_overhead_s)
    assert here.contention == as_fitted.contention >= 1


def test_of_a_gpu_of_the_catalogue_nothing_is_measured() -> None:
    devices = (Device("cuda:0", "NVIDIA H200", 2**30, "cuda:0"), cpus(1).devices[0])
    pool = Told(cpu_workers(2), ("here", "here"), ("x86", "x86"))
    costs = predicted_here(trivial_step(), ADAM, cast(WorkerPool, pool), replace(cpus(2), devices=devices))
    assert pool.asked == [("_speed", 1)]
    gpu = predicted_costs(trivial_step(), {"NVIDIA H200": RATES["H200-SXM"]}, ALPHA)
    assert costs.devices["NVIDIA H200"] == gpu.devices["NVIDIA H200"]


@pytest.mark.usefixtures("_nothing_is_measured")
def test_a_session_plans_from_predicted_costs_and_trains_so(
    pools: Pools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "kept"))
    with session_of(pools, tmp_path) as session:
        planner = session.planner(fresh(), nn.CrossEntropyLoss(), samples(16), GPipe(2), ADAM)
        rates = accelerator(CPU_THREAD)
        assert rates.overheads is not None
        speed = rates.overheads.message_s / planner.costs.devices["cpu"].message_overhead_s
        costs = predicted_costs(planner.graph, {"cpu": rates.at(speed, rates.name)}, ALPHA)
        for name, each in costs.devices["cpu"].nodes.items():
            assert planner.costs.devices["cpu"].nodes[name].total_s == pytest.approx(each.total_s)
        plan = planner.plan(MTopo())
        work = Workload("wide", planner.graph, costs, planner.cluster)
        same = decide(work.problem(objective="simulated", schedule=GPipe(2)), MTopo())
        assert plan.placement.device_of == same.placement.device_of
        assert plan.objective_s == pytest.approx(same.objective_s)
        assert "operator times are predicted" in str(plan.summary())
        parallel = session.deploy(planner, plan)
        losses = [parallel.train_batch(*samples(16)) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
    assert not (tmp_path / "kept").exists()


@pytest.mark.usefixtures("_nothing_is_measured")
def test_parallelize_may_predict(pools: Pools) -> None:
    spec = replace(netsplit.cpu_cluster(2), latency_s=1e-5, bandwidth=1e9)
    with (
        lent_to_sessions(pools),
        netsplit.parallelize(
            fresh(),
            nn.CrossEntropyLoss(),
            samples(16),
            cluster=spec,
            partitioner="m_topo",
            schedule="gpipe",
            profile="predicted",
        ) as parallel,
    ):
        assert "operator times are predicted" in str(parallel.summary())
        assert math.isfinite(parallel.train_batch(*samples(16)))


@pytest.mark.parametrize("profile", ["guessed", None, "Predicted"])
def test_another_word_is_refused(profile: Any) -> None:
    with pytest.raises(ConfigError, match=r"^profile is .*: give one of reuse, refresh, off, predicted\.$"):
        netsplit.parallelize(fresh(), nn.CrossEntropyLoss(), samples(16), profile=profile)


@pytest.mark.parametrize(
    ("devices", "autocast", "sentence"),
    [
        (
            [Device("cpu:0", "cpu", 2**30), GPU],
            None,
            "the catalogue has no rates of cuda:0, which is of kind 'NVIDIA Voodoo 2': give profile=reuse",
        ),
        (
            [Device("cpu:0", "cpu", 2**30)],
            "bfloat16",
            "there are no rates of cpu_thread under autocast bfloat16: give profile=reuse",
        ),
    ],
)
def test_what_has_no_rates_is_refused_before_anything_is_captured_or_started(
    devices: list[Device],
    autocast: str | None,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for work in ("session.WorkerPool", "here.step.checked_capture"):
        monkeypatch.setattr(f"netsplit.experiment.{work}", lambda *_: pytest.fail("work began"))
    session = Session(ClusterSpec("few", tuple(devices), 60.0, 0), tmp_path, profile="predicted")
    with pytest.raises(ConfigError) as told:
        session.planner(fresh(), nn.CrossEntropyLoss(), samples(16), GPipe(2), ADAM, autocast=autocast)
    assert str(told.value).startswith(f"profile is predicted, and {sentence}, which measures")


def test_a_gpu_computes_in_half_precision_where_the_catalogue_says_so() -> None:
    volta = Device("cuda:0", "Tesla V100-SXM2-16GB", 2**30, "cuda:0")
    assert rates_by_kind([volta], "float16") == {volta.kind: RATES["V100-SXM2-16GB"]}
    with pytest.raises(ConfigError, match="no rates of V100-SXM2-16GB under autocast bfloat16"):
        rates_by_kind([volta], "bfloat16")


class Sorted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sort(x.flatten(1)).values


@pytest.mark.usefixtures("_nothing_is_measured")
def test_the_runs_of_a_comparison_say_that_costs_were_predicted(
    pools: Pools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags: list[tuple[str, dict[str, str]]] = []
    monkeypatch.setattr(MethodRun, "tags", lambda run, values: tags.append((run.name, dict(values))))
    torch.manual_seed(0)
    experiment = Experiment(
        name="drawn",
        model=nn.Sequential(Sorted(), nn.Linear(12, 10)),
        loss=nn.CrossEntropyLoss(),
        data=synthetic(shape=[3, 2, 2]),
        partitioners={"m_topo": MTopo()},
        schedule=GPipe(2),
        optimizer=ADAM,
        settings=Settings(epochs=1, batch_size=8, seed=0, profile="predicted"),
    )
    unrecorded = Tracker("sqlite:///nowhere.db", "none", enabled=False)
    with session_of(pools, tmp_path) as session:
        comparison = compare(experiment, session, unrecorded, tmp_path, Silent())
    (row,) = comparison.rows
    assert not row.failed
    assert row.measured_s is not None
    said = [name for name, values in tags if values.get("profile") == "predicted"]
    assert len(said) == 2
    assert "m_topo" in said
    assert {values["unknown_operators"] for _, values in tags if "profile" in values} == {
        "aten.sort.default (1)"
    }


class Silent:
    """Progress that nobody looks at."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: nullcontext()
