"""Workers that hold another model by now train no other's batches."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from netsplit.errors import NetSplitError
from netsplit.partition import MTopo
from netsplit.program.schedules import GPipe
from netsplit.training.options import Training
from tests.workers import Pools, lent_session

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


@pytest.mark.usefixtures("unmeasured")
def test_a_model_whose_workers_hold_another_is_refused(pools: Pools, tmp_path: Path) -> None:
    batch = torch.randn(8, 6), torch.randint(4, (8,))
    with lent_session(pools, tmp_path) as session:
        step = session.step(net(), nn.CrossEntropyLoss(), batch, Training(SGD))
        plan = session.plan(step, GPipe(2), MTopo())
        first = session.deploy(step, plan)
        first.train_batch(*batch)
        session.deploy(step, plan).train_batch(*batch)
        for use in (lambda: first.train_batch(*batch), lambda: first.switch(plan), first.state_dict):
            with pytest.raises(NetSplitError, match="another model has replaced this one"):
                use()
