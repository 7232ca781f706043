"""`profile=predicted`: plans for devices that run, made without measuring an operator on them."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor, nn

import netsplit
from netsplit.cluster.catalogue import CPU_THREAD, accelerator
from netsplit.cluster.cluster import Device
from netsplit.cluster.local import ClusterSpec
from netsplit.errors import ConfigError
from netsplit.partition import MTopo
from netsplit.planning.decide import decide
from netsplit.planning.workload import Workload
from netsplit.profile.measure.clock import trivial_step
from netsplit.profile.measure.optimizer import optimizer_scratch
from netsplit.profile.measured import CACHE_VARIABLE
from netsplit.profile.predict import predicted_costs
from netsplit.program import GPipe
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.session import costs as session_costs
from netsplit.session.calibration import predicted_here
from netsplit.session.session import Session
from netsplit.tracking.records import row_of
from netsplit.training.options import Training
from tests.builders import cpus
from tests.nets import SGD
from tests.session.test_calibration import Told
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
    assert pool.asked == [("speed_of", 0)]
    predicted = predicted_costs(graph, {"cpu": rates.at(0.5, rates.name)}, ALPHA)
    assert costs == replace(predicted, scratch=optimizer_scratch(ADAM))
    assert costs.predicted
    as_fitted = predicted_costs(graph, {"cpu": rates}, ALPHA).devices["cpu"]
    here = costs.devices["cpu"]
    assert here.nodes["mul"].forward_s == pytest.approx(2 * as_fitted.nodes["mul"].forward_s)
    assert here.message_overhead_s == pytest.approx(2 * as_fitted.message_overhead_s)
    assert here.contention == as_fitted.contention >= 1


@pytest.fixture
def _nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would measure costs fails, here and before it reaches a worker."""

    def measured(*_: object) -> None:
        raise AssertionError("a cost was measured")

    monkeypatch.setattr("netsplit.session.costs.MeasuredCosts.measured", measured)
    for name in ("measure_part", "measure_copying", "fit_trial"):
        monkeypatch.setattr(session_costs, name, measured)


@pytest.mark.usefixtures("_nothing_is_measured")
def test_a_session_plans_from_predicted_costs_and_trains_so(
    pools: Pools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "kept"))
    with session_of(pools, tmp_path) as session:
        step = session.step(fresh(), nn.CrossEntropyLoss(), samples(16), Training(ADAM))
        problem = session.problem(step, GPipe(2))
        rates = accelerator(CPU_THREAD)
        assert rates.overheads is not None
        speed = rates.overheads.message_s / problem.costs.devices["cpu"].message_overhead_s
        costs = predicted_costs(problem.graph, {"cpu": rates.at(speed, rates.name)}, ALPHA)
        for name, each in costs.devices["cpu"].nodes.items():
            assert problem.costs.devices["cpu"].nodes[name].total_s == pytest.approx(each.total_s)
        plan = step.plan(problem, MTopo())
        work = Workload("wide", problem.graph, costs, problem.cluster)
        same = decide(work.problem(objective="simulated", schedule=GPipe(2)), MTopo())
        assert plan.placement.device_of == same.placement.device_of
        assert plan.objective_s == pytest.approx(same.objective_s)
        assert "operator times are predicted" in str(plan.summary())
        parallel = session.deploy(step, plan)
        losses = [parallel.train_batch(*samples(16)) for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("devices", "autocast", "sentence"),
    [
        (
            [Device("cpu:0", "cpu", 2**30), GPU],
            None,
            "the catalogue has no rates for cuda:0, of kind 'NVIDIA Voodoo 2': give profile=reuse",
        ),
        (
            [Device("cpu:0", "cpu", 2**30)],
            "bfloat16",
            "there are no rates for cpu_thread under autocast bfloat16: give profile=reuse",
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
    for work in ("session.WorkerPool", "step.checked_capture"):
        monkeypatch.setattr(f"netsplit.session.{work}", lambda *_: pytest.fail("work began"))
    session = Session(ClusterSpec("few", tuple(devices), 60.0, 0), tmp_path, profile="predicted")
    training = Training(ADAM, autocast=autocast)
    with pytest.raises(ConfigError) as told:
        session.step(fresh(), nn.CrossEntropyLoss(), samples(16), training)
    assert str(told.value).startswith(f"profile is predicted, but {sentence}, which measures")


def test_an_iteration_is_predicted_with_the_controller_s_part(pools: Pools) -> None:
    batch = torch.randn(8, 6), torch.randint(0, 3, (8,))
    with lent_to_sessions(pools), netsplit.parallelize(
        nn.Linear(6, 3), nn.CrossEntropyLoss(), batch, cluster=netsplit.cpu_cluster(1), schedule=GPipe(2),
        optimizer=SGD, partitioner="single", profile="predicted", progress=False,
    ) as parallel:  # fmt: skip
        plan = parallel.plan
        assert 0 < plan.problem.costs.controller_s < 1
        assert plan.iteration_s == plan.simulated[1].iteration_s + plan.problem.costs.controller_s
        assert row_of(plan, "single").predicted_s == plan.iteration_s
        assert torch.isfinite(torch.tensor(parallel.train_batch(*batch)))  # the workers are free again
