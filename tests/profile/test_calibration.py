"""Costs measured on real workers, kept and found again."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from netsplit.cluster.local import LocalDevice, local_cluster
from netsplit.profile.costs import Costs
from netsplit.program import GPipe
from netsplit.session import Session


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.inward(x)))


def studied(session: Session, lr: float = 0.1) -> Costs:
    torch.manual_seed(0)
    batch = (torch.randn(8, 8), torch.randint(0, 4, (8,)))
    optimizer = partial(torch.optim.SGD, lr=lr)
    return session.study(Net(), nn.CrossEntropyLoss(), batch, GPipe(2), optimizer).costs


def test_two_workers_measure_messages_and_the_second_study_finds_the_costs_of_the_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = local_cluster("two", [LocalDevice("cpu:0"), LocalDevice("cpu:1")])
    with Session(spec, tmp_path / "run", profile_cache=tmp_path / "kept") as session:
        with caplog.at_level(logging.INFO, logger="netsplit"):
            first = studied(session)
        assert "measuring" in caplog.text
        assert 1e-6 < first.instruction_s["cpu"] < 0.1
        assert first.message_s.get("cpu", 0.0) < 1.0  # left out where nothing could be seen of it
        assert "rehearsed with" in caplog.text
        assert all(factor > 1 for factor in first.contention.values())
        assert any(each.weight_s > 0 for each in first.seconds["cpu"].values())

        caplog.clear()
        with caplog.at_level(logging.INFO, logger="netsplit"):
            again = studied(session)
        assert again == first
        assert "measuring" not in caplog.text
        assert "as measured" in caplog.text
        assert len(list((tmp_path / "kept").iterdir())) == 1


@pytest.mark.slow
def test_a_change_of_optimizer_or_a_wish_measures_anew(tmp_path: Path) -> None:
    spec = local_cluster("one", [LocalDevice("cpu:0")])
    with Session(spec, tmp_path / "run", profile_cache=tmp_path / "kept") as session:
        first = studied(session)
        session.refresh = True
        assert studied(session).seconds != first.seconds
        assert len(list((tmp_path / "kept").iterdir())) == 1
        session.refresh = False
        studied(session, lr=0.2)
        assert len(list((tmp_path / "kept").iterdir())) == 2


@pytest.mark.slow
def test_a_single_worker_has_no_messages(tmp_path: Path) -> None:
    spec = local_cluster("one", [LocalDevice("cpu:0")])
    with Session(spec, tmp_path / "run") as session:
        costs = studied(session)
    assert costs.message_s == costs.contention == costs.copy_s_per_byte == {}
    assert costs.instruction_s["cpu"] > 0
