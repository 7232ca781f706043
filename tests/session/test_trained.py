"""What is decided is trained: exactly what plain PyTorch trains with as many micro-batches."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import netsplit
from tests.builders import costs_of
from tests.nets import CASES, SGD, STAGES, TOLERANCE, Case, plain_training
from tests.workers import Pools, lent_to_sessions, set_costs

SLOW, FAST = (1e-2, 1e4), (0.0, 1e12)  # latency in seconds, bytes per second


@pytest.fixture
def by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators take as long as they have samples."""
    set_costs(monkeypatch, lambda graph: costs_of(graph, 1e-3 * graph.batch_size, 2e-3 * graph.batch_size))


@pytest.mark.usefixtures("by_size")
@pytest.mark.parametrize(
    ("case", "link", "options", "kinds"),
    [
        (CASES["chain"], FAST, {"microbatches": 4, "replicas": False, "schedules": ["1f1b"]}, {"pipeline"}),
        (STAGES, FAST, {"microbatches": 4, "schedules": ["gpipe"]}, {"data parallel", "hybrid"}),
        (CASES["attention"], SLOW, {"microbatches": 2}, {"single"}),
    ],
    ids=["pipeline", "replicas", "single"],
)
def test_the_decided_plan_trains_as_plain_pytorch_does(
    case: Case, link: tuple[float, float], options: dict[str, Any], kinds: set[str], pools: Pools
) -> None:
    spec = replace(netsplit.cpu_cluster(2), latency_s=link[0], bandwidth=link[1])
    open_ = netsplit.AutoSchedule(**options, time_limit_s=1.5)
    inputs = case.inputs[0] if len(case.inputs) == 1 else case.inputs
    with lent_to_sessions(pools):
        parallel = netsplit.parallelize(
            case.fresh(), case.loss, (inputs, case.targets), cluster=spec, schedule=open_, optimizer=SGD
        )
    with parallel:
        whole = parallel.plan
        assert whole.choice.frontier[0].kind in kinds
        losses = [parallel.train_batch(inputs, case.targets) for _ in range(3)]
        state = parallel.state_dict()
    wanted, plain = plain_training(case, whole.schedule.microbatches)
    assert losses == pytest.approx(wanted, rel=TOLERANCE)
    replicated = {name for stage in whole.placement.stages if len(stage.devices) > 1 for name in stage.nodes}
    for name, tensor in plain.items():
        if replicated and ("running" in name or "tracked" in name):
            continue  # of the first replica alone, which is remarked on
        torch.testing.assert_close(state[name], tensor, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.usefixtures("by_size")
def test_a_capacity_that_one_device_lacks_takes_two_and_trains_all_the_same(pools: Pools) -> None:
    case, example = CASES["chain"], (CASES["chain"].inputs[0], CASES["chain"].targets)
    only: dict[str, Any] = {"microbatches": 2, "schedules": ["gpipe"], "replicas": False, "recompute": False}
    open_ = netsplit.AutoSchedule(**only, time_limit_s=1.5)
    roomy = netsplit.plan(case.fresh(), case.loss, example, 1, schedule=open_, optimizer=SGD)
    capacity = int(0.9 * max(roomy.peak_bytes.values()))
    spec = replace(netsplit.cpu_cluster(2, capacity=capacity), latency_s=SLOW[0], bandwidth=SLOW[1])
    with lent_to_sessions(pools):
        parallel = netsplit.parallelize(
            case.fresh(), case.loss, example, cluster=spec, schedule=open_, optimizer=SGD
        )
    with parallel:
        whole = parallel.plan
        assert whole.choice.frontier[0].devices == 2
        losses = [parallel.train_batch(case.inputs[0], case.targets) for _ in range(3)]
        peaks = parallel.plan.simulated[1].peak_bytes
    assert losses == pytest.approx(plain_training(case, 2)[0], rel=TOLERANCE)
    assert max(peaks.values()) <= capacity
