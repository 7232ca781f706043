"""Plans of trainings with offload: what fits, how long it takes, what a file says of it."""

from pathlib import Path

import pytest
import torch
from torch import nn

from netsplit.cluster.described import uniform_cluster
from netsplit.errors import ConfigError, InfeasibleError
from netsplit.formats.own import dumps_workload, save_workload
from netsplit.formats.read import read_workload
from netsplit.graph import capture
from netsplit.partition import MTopo
from netsplit.planning.decide import decide
from netsplit.planning.plan import Plan
from netsplit.planning.workload import Workload
from netsplit.program import GPipe, OneFOneB, Schedule
from netsplit.settings import OffloadName
from tests.builders import costs_of

ORDER = GPipe(4)


@pytest.fixture(scope="module")
def work() -> Workload:
    """Six wide layers at micro-batches of 64, with Adam."""
    layers = (layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU()))
    graph = capture(
        nn.Sequential(*layers), nn.CrossEntropyLoss(), (torch.randn(64, 64), torch.zeros(64).long())
    )
    return Workload("wide", graph, costs_of(graph, 1e-3, 2e-3, alpha=4))


def planned(
    work: Workload, offload: OffloadName | None, capacity: str = "4GB", schedule: Schedule = ORDER
) -> Plan:
    cluster = uniform_cluster(2, 1e9, capacity, 1e-5)
    problem = work.problem(cluster, "simulated", schedule=schedule, memory="lifetimes", offload=offload)
    return decide(problem, MTopo())


def test_a_plan_with_offload_needs_less_of_the_devices_and_more_time(work: Workload) -> None:
    plain, *others = (planned(work, name) for name in ("none", "optimizer", "activations", "both"))
    assert plain.timeline is not None
    assert plain.timeline.host_bytes == {}
    for plan in others:
        assert plan.timeline is not None
        assert max(plan.timeline.peak_bytes.values()) < max(plain.timeline.peak_bytes.values())
        assert plan.objective_s > plain.objective_s
        assert sum(plan.timeline.host_bytes.values()) > 0
    optimizer, activations, both = (sum(p.timeline.host_bytes.values()) for p in others if p.timeline)
    assert both == optimizer + activations
    assert "offload both: the host holds " in str(others[-1].summary())
    assert "on the host" not in str(plain.summary())
    assert others[-1].plot("memory") is not None


@pytest.mark.parametrize("schedule", [ORDER, OneFOneB(4)])
def test_what_does_not_fit_may_fit_with_offload(work: Workload, schedule: Schedule) -> None:
    """The planner counts, and the simulator has the last word."""
    most = max(planned(work, "both", schedule=schedule).timeline.peak_bytes.values())  # type: ignore[union-attr]
    capacity = f"{int(1.2 * most)}B"
    assert planned(work, "both", capacity, schedule).problem.costs.offload.name == "both"
    with pytest.raises(InfeasibleError):
        planned(work, "none", capacity, schedule)


def test_a_file_says_what_its_seconds_have_copies_of(work: Workload, tmp_path: Path) -> None:
    problem = planned(work, "both").problem
    save_workload(Workload("both", work.graph, problem.costs), tmp_path / "both.json")
    again = read_workload(tmp_path / "both.json")
    assert again.costs == problem.costs
    assert planned(again, None).objective_s == planned(work, "both").objective_s
    with pytest.raises(ConfigError, match="another offload"):
        planned(again, "optimizer")
    assert '"offload"' not in dumps_workload(work)


def test_offload_is_refused_where_it_means_nothing(work: Workload) -> None:
    cluster = uniform_cluster(2, 1e9, "4GB", 1e-5)
    with pytest.raises(ConfigError, match=r"offload is both.*passes=forward"):
        work.problem(cluster, "latency", passes="forward", memory="lifetimes", offload="both")
    with pytest.raises(ConfigError, match=r"offload is both.*memory=static"):
        work.problem(cluster, "latency", offload="both")
