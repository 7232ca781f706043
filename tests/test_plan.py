"""`netsplit.plan`: an answer without a worker, and a model that is left as it was."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import netsplit
from benchmarks.llama import Llama, LlamaSize, next_token_loss
from netsplit.cluster.described import ClusterDescription, uniform_cluster
from netsplit.errors import ConfigError, InfeasibleError, NetSplitError
from netsplit.formats.own import save_workload
from netsplit.graph import capture
from netsplit.planning.workload import Workload
from netsplit.program.schedules import GPipe, OneFOneB
from tests.builders import costs_of, cpus

LOSS = nn.CrossEntropyLoss()
X, Y = torch.randn(32, 12), torch.randint(3, (32,))
QUICK = netsplit.AutoSchedule(microbatches=[1, 4], time_limit_s=1.0)


@pytest.fixture(autouse=True)
def _no_worker_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netsplit.session.session.WorkerPool", None)


def fresh() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def on_meta(value: Any) -> Any:
    return value.to("meta")


def test_a_plan_leaves_model_and_batch_as_they_are_and_one_without_values_has_the_same() -> None:
    model = fresh()
    before = copy.deepcopy(model.state_dict())
    whole = netsplit.plan(model, LOSS, (X, Y), "v100x8", schedule=QUICK, progress=False)
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"cpu"}
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    hollow = netsplit.plan(
        on_meta(copy.deepcopy(model)), LOSS, (on_meta(X), on_meta(Y)), "v100x8", schedule=QUICK
    )
    assert hollow.problem.graph == whole.problem.graph
    assert hollow.problem.costs == whole.problem.costs
    assert set(whole.peak_bytes) == {f"d{q}" for q in range(8)}


def test_a_named_schedule_is_planned_as_parallelize_would() -> None:
    whole = netsplit.plan(
        fresh(), LOSS, (X, Y), "titan_rtx3", schedule="1f1b", partitioner="m_topo", optimizer=torch.optim.Adam
    )
    assert (whole.schedule.name, whole.schedule.microbatches) == ("1f1b", 4)
    assert whole.placement.method == "m_topo"
    assert [row.why_not for row in whole.choice.frontier] == [""]
    again = netsplit.plan(
        fresh(), LOSS, (X, Y), "titan_rtx3", schedule=GPipe(2, recompute=True), partitioner="single"
    )
    assert again.schedule == GPipe(2, recompute=True)


@pytest.mark.parametrize("schedule", ["gpipe", QUICK], ids=["gpipe", "auto"])
def test_what_does_not_fit_is_refused_whether_a_method_heeds_it_or_not(schedule: Any) -> None:
    tiny = netsplit.cpu_cluster(2, capacity=2000)
    with pytest.raises(InfeasibleError, match=r"\d+ bytes over its limit"):
        netsplit.plan(fresh(), LOSS, (X, Y), tiny, schedule=schedule, partitioner="single")


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    graph = capture(fresh(), LOSS, (X[:8], Y[:8]))
    save_workload(Workload("kept", graph, costs_of(graph, 1e-3, 2e-3), cpus(2)), tmp_path / "graph.json")
    return tmp_path / "graph.json"


def test_a_measured_profile_keeps_its_micro_batches(profile: Path) -> None:
    whole = netsplit.plan(fresh(), LOSS, (X, Y), 2, schedule=QUICK, profile=str(profile))
    assert "1 micro-batch is not tried: 'kept' was measured with micro-batches of 8" in whole.choice.remarks
    assert whole.schedule.microbatches == 4
    assert whole.batch_size == 32
    seconds = {each.forward_s for each in whole.problem.costs.devices["cpu"].nodes.values()}
    assert seconds == {1e-3}
    with pytest.raises(ConfigError, match="has 30 samples, but 'kept' was measured with micro-batches of 8"):
        netsplit.plan(fresh(), LOSS, (X[:30], Y[:30]), 2, profile=profile)
    with pytest.raises(ConfigError, match=r"profile was measured of another model: its '0\.weight'"):
        netsplit.plan(nn.Linear(12, 3), LOSS, (X, Y), 2, profile=profile)


def test_a_parallelism_of_no_sense_is_refused() -> None:
    for bad, words in (
        ({"data": 2.5}, "data is 2.5: give a whole number"),
        ({"shard": "all"}, "shard is 'all': give none, optimizer"),
        ({"recompute": True}, "recompute is True: give none, selective, full"),
    ):
        with pytest.raises(ConfigError, match=words):
            netsplit.Parallelism(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cluster": "v100x9"}, ["cluster is 'v100x9'", "v100x8"]),
        ({"offload": "both"}, ["offload is both", "cpu:0", "GPUs"]),
        ({"schedule": netsplit.AutoSchedule(microbatches=3)}, ["32 does not divide into 3"]),
        ({"profile": "nowhere.json"}, ["nowhere.json"]),
        ({"autocast": "fp8"}, ["autocast is 'fp8'"]),
        ({"given": netsplit.Parallelism()}, ["given", "OneFOneB(16)"]),
        ({"given": 8, "schedule": "1f1b"}, ["given is 8", "Parallelism(data=8"]),
        (
            {"given": netsplit.Parallelism(8), "schedule": "1f1b", "cluster": "v100x8"},
            ["cannot be dealt out evenly to 8 replicas"],
        ),
        (
            {
                "given": netsplit.Parallelism(4),
                "schedule": OneFOneB(4, shard="parameters"),
                "cluster": "v100x8",
            },
            ["schedule.shard", "Parallelism(shard=...)"],
        ),
        (
            {
                "given": netsplit.Parallelism(4),
                "schedule": OneFOneB(4, recompute="full"),
                "cluster": "v100x8",
            },
            ["schedule.recompute", "Parallelism(recompute=...)"],
        ),
        ({"given": netsplit.Parallelism(2), "schedule": "1f1b", "partitioner": "ddp"}, ["partitioner=ddp"]),
        ({"given": netsplit.Parallelism(pipeline=9), "schedule": "1f1b", "cluster": "v100x8"}, ["takes 9"]),
    ],
)
def test_a_bad_argument_is_one_sentence(options: dict[str, Any], words: list[str]) -> None:
    given: dict[str, Any] = {"model": fresh(), "loss": LOSS, "batch": (X, Y), "cluster": 2} | options
    with pytest.raises(NetSplitError) as caught:
        netsplit.plan(**given)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), caught.value


def test_autocast_and_averages_count() -> None:
    plain = netsplit.plan(fresh(), LOSS, (X, Y), "v100x8", schedule=QUICK)
    more = netsplit.plan(
        fresh(), LOSS, (X, Y), "v100x8", schedule=QUICK, autocast="float16", ema_decay=0.9, clip_norm=1.0
    )
    assert more.problem.graph.autocast == "float16"
    assert more.problem.costs.alpha == plain.problem.costs.alpha + 1
    assert more.compiler.shared_norm


def wide() -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)))


def many(devices: int) -> ClusterDescription:
    return uniform_cluster([8, devices // 8], [300e9, 25e9], latency=1e-6, model="A100-SXM4-80GB", nic=200e9)


WIDE = torch.zeros(256, 64), torch.zeros(256, 64)


def test_a_plan_by_hand_is_predicted_for_all_that_its_devices_stand_for() -> None:
    given = netsplit.Parallelism(data=4, tensor=2, pipeline=2, shard="gradients", recompute="full")
    whole = netsplit.plan(wide(), nn.MSELoss(), WIDE, many(16), schedule=OneFOneB(16), given=given)
    assert whole.choice.parallelism == given
    assert (whole.schedule.microbatches, whole.batch_size, whole.choice.frontier[0].devices) == (16, 256, 16)
    assert set(whole.peak_bytes) == {"d0", "d8"}
    summary, first, *_ = str(whole.summary()), *whole.explain().lines()
    for words in ("of 256 samples", "of 79 GiB on a device; each device below stands for 8"):
        assert words in str(whole)
        assert words in summary
    assert str(given) in summary
    assert str(given) in first
    assert "each device below stands for 8" in first
    assert whole.to_dict()["devices_alike"] == 8
    assert "data 4 x tensor 2 x pipeline 2, gradients in slices, full recomputation" in str(whole)
    small = replace(many(16), capacities=dict.fromkeys(many(16).capacities, 1000))
    lacking = netsplit.plan(wide(), nn.MSELoss(), WIDE, small, schedule=OneFOneB(16), given=given)
    assert any("does not fit" in note for note in lacking.choice.remarks)
    assert lacking.iteration_s == whole.iteration_s


def test_a_uniform_plan_says_tokens_a_second_and_what_its_degrees_do_not_divide() -> None:
    size = LlamaSize(1, 64, 192, heads=4, groups=2, vocabulary=96)
    batch = torch.zeros(16, 8, dtype=torch.long), torch.zeros(16, 8, dtype=torch.long)
    plans = {
        tensor: netsplit.plan(
            Llama(size, 8), next_token_loss, batch, many(16), schedule=OneFOneB(16),
            given=netsplit.Parallelism(data=2, tensor=tensor),
        )
        for tensor in (2, 4, 5)
    }  # fmt: skip
    assert plans[2].tokens_per_s == pytest.approx(8 * plans[2].samples_per_s)
    assert f"{plans[2].tokens_per_s:,.0f} tokens/s" in str(plans[2].summary())
    assert plans[2].choice.remarks == ()
    assert any("'linear', cannot be cut into 4 parts" in each for each in plans[4].choice.remarks)
    assert any("tensor 5 does not divide" in each for each in plans[5].choice.remarks)


def test_of_many_alike_devices_the_best_uniform_plan_is_chosen() -> None:
    whole = netsplit.plan(
        wide(), nn.MSELoss(), WIDE, many(512), schedule=netsplit.AutoSchedule(time_limit_s=3)
    )
    assert whole.choice.parallelism is not None
    assert whole.choice.frontier[0].kind == "mesh"
    assert whole.to_dict()["parallelism"]["data"] == whole.choice.parallelism.data
    by_hand = netsplit.Parallelism(data=64, pipeline=8)
    other = netsplit.plan(wide(), nn.MSELoss(), WIDE, many(512), schedule=OneFOneB(256), given=by_hand)
    assert whole.iteration_s <= other.iteration_s
    small = replace(many(24), capacities=dict.fromkeys(many(24).capacities, 1000))
    with pytest.raises(InfeasibleError, match="no plan fits: the nearest, data"):
        netsplit.plan(wide(), nn.MSELoss(), WIDE, small, schedule=QUICK)


def test_parts_compete_with_uniform_plans_on_few_devices() -> None:
    auto = netsplit.AutoSchedule(microbatches=[1, 4], time_limit_s=1.0, splits=True)
    whole = netsplit.plan(wide(), nn.MSELoss(), WIDE, "v100x8", schedule=auto)
    assert any(row.kind == "mesh" for row in whole.choice.frontier)
