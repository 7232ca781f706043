"""Batches, outputs and losses of every kind train as in plain PyTorch, on one process and on several."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from netsplit.partition import METHODS
from netsplit.planning.plan import Plan
from netsplit.program import GPipe, OneFOneB, Schedule
from netsplit.runtime.local import LocalRuntime
from netsplit.session.session import Session
from netsplit.session.step import ModelStep
from netsplit.training.options import Training
from netsplit.training.parallel import ParallelModel
from tests.builders import costs_of, cpus
from tests.cover import covering, few
from tests.runtime.equivalence.running import assert_close
from tests.runtime.kinds import KINDS, Kind, plain_steps
from tests.workers import Pools, set_costs

OPTIMIZER = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
TOLERANCE = 1e-9
SHAPES = [(10, 4), (10, 4), (7, 4), (10, 6), (3, 6), (13, 4), (5, 4), (9, 6)]
"""Samples and lengths of the batches: 10 samples make micro-batches of 3, 3, 3 and 1."""


def planned(
    kind: Kind,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    devices: int = 2,
    schedule: Schedule | None = None,
    method: str = "round_robin",
    first: tuple[int, int] = SHAPES[0],
    **options: Any,
) -> tuple[ModelStep, Plan]:
    """With costs that nobody measured, and so without workers."""
    set_costs(monkeypatch, lambda graph: costs_of(graph, 1e-4, 2e-4, alpha=3))
    cluster = cpus(devices)
    session = Session(_Spec(cluster.devices), folder, _cluster=cluster)  # type: ignore[arg-type]
    training = Training(OPTIMIZER, **options)
    step = session.step(kind.fresh(), kind.loss, kind.give(0, *first), training)
    return step, session.plan(step, schedule or GPipe(4), METHODS[method]())


class _Spec:
    def __init__(self, devices: Any) -> None:
        self.devices = devices


def batches_of(kind: Kind) -> list[tuple[Any, Any]]:
    return [kind.give(seed, n, length) for seed, (n, length) in enumerate(SHAPES)]


def metrics_of(parts: list[Any]) -> list[float]:
    """Means over the samples of the tensors that plain PyTorch's micro-batches gave beside the loss."""
    metrics = []
    for fraction, each in parts:
        beside = each[1] if isinstance(each, tuple) else {k: v for k, v in each.items() if k != "loss"}
        leaves = torch.utils._pytree.tree_leaves(beside)
        metrics.append([fraction * torch.as_tensor(leaf).item() for leaf in leaves])
    return [sum(column) for column in zip(*metrics, strict=True)]


@covering(name=KINDS, schedule=[GPipe(4), OneFOneB(4), GPipe(4, recompute=True)])
def test_batches_of_every_kind_train_as_plain(
    name: str, schedule: Schedule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = KINDS[name]
    step, plan = planned(kind, tmp_path, monkeypatch, 3, schedule)
    assert len(set(plan.placement.device_of.values())) == 3
    assert plan.compiler.batch_size == 10
    assert (plan.asked.graph.batch_size, plan.program.microbatches) == (3, 4)
    programs = step.programs(plan)
    runtime = LocalRuntime(plan.program, plan.asked.cluster, step.values(plan.asked.graph), OPTIMIZER)
    losses = []
    for inputs, targets in batches_of(kind):
        batch = programs.batch(inputs, targets)
        losses.append(runtime.train_batch(batch, program=programs.training(batch)))
    model, wanted, parts = plain_steps(kind, batches_of(kind), 3)
    assert losses == pytest.approx(wanted, rel=TOLERANCE)
    assert_close(runtime.state(), model.state_dict(), TOLERANCE)
    if kind.loss is not None:
        metrics = torch.utils._pytree.tree_leaves(runtime.metrics)
        assert metrics == pytest.approx(metrics_of(parts), rel=TOLERANCE)


@pytest.fixture
def deployed(
    request: pytest.FixtureRequest, pools: Pools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Kind, ParallelModel]:
    kind = KINDS[request.param]
    step, plan = planned(kind, tmp_path, monkeypatch, max_programs=8)
    session = Session(_Spec(plan.asked.cluster.devices), tmp_path, _pool=pools(2))  # type: ignore[arg-type]
    return kind, session.deploy(step, plan)


def plain_output(kind: Kind, state: dict[str, Tensor], inputs: Any) -> Any:
    model = kind.fresh()
    model.load_state_dict(state)
    with torch.no_grad():
        return kind.plain(model.eval(), inputs, None, slice(None))[0]


@pytest.mark.parametrize("deployed", few(list(KINDS), 1), indirect=True)
def test_batches_of_every_kind_on_worker_processes(
    deployed: tuple[Kind, ParallelModel], caplog: pytest.LogCaptureFixture
) -> None:
    kind, parallel = deployed
    assert parallel.batch_size == 10
    with caplog.at_level(logging.DEBUG, logger="netsplit"):
        losses = [parallel.train_batch(*batch) for batch in batches_of(kind)]
    captured = [line for line in caplog.messages if " for batches of " in line]
    model, wanted, parts = plain_steps(kind, batches_of(kind), 3)
    assert losses == pytest.approx(wanted, rel=TOLERANCE)
    assert_close(parallel.state_dict(), model.state_dict(), TOLERANCE)
    if kind.loss is not None:
        metrics = torch.utils._pytree.tree_leaves(parallel.metrics)
        assert metrics == pytest.approx(metrics_of(parts), rel=TOLERANCE)
    with caplog.at_level(logging.INFO, logger="netsplit"):
        for n, length in ((1, 4), (3, 4), (10, 4), (11, 4), (25, 4), (2, 6)):
            inputs, _ = kind.give(n, n, length)
            plain = plain_output(kind, model.state_dict(), inputs)
            torch.testing.assert_close(_fields(parallel.predict(inputs)), _fields(plain))
    assert len(captured) >= 3  # other lengths, other rests
    before = len(caplog.messages)
    parallel.train_batch(*kind.give(9, 7, 4))
    parallel.predict(kind.give(9, 1, 4)[0])
    assert len(caplog.messages) == before  # all programs are there


def _fields(value: Any) -> Any:
    if hasattr(value, "logits"):
        return {k: v for k, v in vars(value).items() if v is not None}
    return value


class Means(nn.Module):
    """Outputs of which one belongs to no sample, a number, and a table that only evaluation uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4, dtype=torch.float64))
        self.scale = nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: Tensor) -> Any:
        y = self.layer(x)
        if self.training:
            return y
        self.seen += y.mean(0)
        return {"y": y, "mean": y.mean(0), "n": len(x), "scaled": y * self.scale, "none": None}


def test_what_belongs_to_no_sample_is_computed_on_the_whole_batch(
    pools: Pools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give(seed: int, n: int, length: int) -> tuple[Any, Any]:
        generator = torch.Generator().manual_seed(seed)
        return tuple(torch.randn((n, 4), generator=generator, dtype=torch.float64) for _ in range(2))

    kind = Kind(Means, nn.functional.mse_loss, give, lambda *_: (None, None))
    step, plan = planned(kind, tmp_path, monkeypatch)
    session = Session(_Spec(plan.asked.cluster.devices), tmp_path, _pool=pools(2))  # type: ignore[arg-type]
    parallel, model = session.deploy(step, plan), kind.fresh()
    parallel.train_batch(*give(0, 10, 0))
    parallel.save_checkpoint(tmp_path / "early")
    model.load_state_dict(parallel.state_dict())
    model.eval()
    for n in (10, 2, 10):
        with torch.no_grad():
            wanted = model(give(n, n, 0)[0])
        torch.testing.assert_close(parallel.predict(give(n, n, 0)[0]), wanted)
    assert_close(parallel.state_dict(), model.state_dict(), TOLERANCE)
    parallel.save_checkpoint(tmp_path / "late")
    parallel.load_checkpoint(tmp_path / "early")
    assert not parallel.state_dict()["seen"].any()
    parallel.load_checkpoint(tmp_path / "late")
    assert_close(parallel.state_dict(), model.state_dict(), TOLERANCE)
