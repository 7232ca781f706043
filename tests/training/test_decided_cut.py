"""A training that goes on keeps the micro-batches that were decided for it, or says where it does not."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import netsplit
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.program.schedules import GPipe, Schedule
from netsplit.runtime.checkpoint.shares import Cut, saved_cut
from netsplit.session.comparison import as_saved
from netsplit.training.parallel import ParallelModel
from tests.builders import costs_of
from tests.nets import SGD
from tests.workers import Pools, lent_to_sessions, set_costs

X, Y = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3


@pytest.fixture
def split(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A layer, what comes behind it, and a schedule to a model on two devices."""

    def made(schedule: Schedule | AutoSchedule, *behind: nn.Module) -> ParallelModel:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 8), *behind, nn.Linear(8, 3))
        with lent_to_sessions(pools):
            return netsplit.parallelize(
                model, nn.CrossEntropyLoss(), (X, Y), schedule=schedule, partitioner="round_robin",
                optimizer=SGD, progress=False,
            )  # fmt: skip

    set_costs(monkeypatch, lambda graph: costs_of(graph, 1e-3, 2e-3))
    return made


def test_other_micro_batches_than_a_checkpoint_s_are_said(
    split: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layer = nn.BatchNorm1d(8)
    with split(GPipe(4), layer) as model:
        model.train_batch(X, Y)
        model.save_checkpoint(tmp_path / "c", {"mine": 1})
    assert saved_cut(tmp_path / "c") == Cut(4, 4)
    for count in (4, 2):
        caplog.clear()
        with split(GPipe(count), layer) as model, caplog.at_level(logging.WARNING):
            assert model.load_checkpoint(tmp_path / "c") == {"mine": 1}
            assert model.runtime.draws.batches == 1
        text = caplog.text.replace("\n", " ")
        assert ("4 micro-batches of 4 samples, this training has 2" in text) == (count == 2)


def test_a_decision_takes_the_micro_batches_of_a_checkpoint_s_training(split: Any, tmp_path: Path) -> None:
    with split(GPipe(4), nn.BatchNorm1d(8)) as model:
        model.save_checkpoint(tmp_path / "auto" / "000001-step-1")
    place = tmp_path / "auto" / "000001-step-1"
    assert as_saved(AutoSchedule(), place).microbatches == 4
    assert as_saved(AutoSchedule(microbatches=[1, 4]), place).microbatches == 4
    for others in (2, [1, 2]):
        open_ = AutoSchedule(microbatches=others)
        assert as_saved(open_, place) is open_
    assert as_saved(open_, tmp_path) is open_
    with split(as_saved(AutoSchedule(time_limit_s=0.5), place), nn.BatchNorm1d(8)) as model:
        assert model.plan.schedule.microbatches == 4
