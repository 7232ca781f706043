"""Workers that hold another model by now train no other's batches."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import netsplit
from netsplit.errors import NetSplitError
from netsplit.partition import MTopo
from netsplit.program.schedules import GPipe

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


@pytest.mark.parametrize("again", ["planned", "deployed"])
def test_a_model_whose_workers_hold_another_is_refused(tmp_path: Path, again: str) -> None:
    batch = torch.randn(8, 6), torch.randint(4, (8,))
    with netsplit.Session(netsplit.cpu_cluster(2), tmp_path) as session:
        planner = session.planner(net(), nn.CrossEntropyLoss(), batch, GPipe(2), SGD)
        plan = planner.plan(MTopo())
        first = session.deploy(planner, plan)
        first.train_batch(*batch)
        if again == "planned":
            session.planner(net(), nn.CrossEntropyLoss(), batch, GPipe(2), SGD)
        else:
            session.deploy(planner, plan).train_batch(*batch)
        for use in (lambda: first.train_batch(*batch), lambda: first.switch(plan), first.state_dict):
            with pytest.raises(NetSplitError, match="no longer hold this model"):
                use()
