"""What the controller takes for an iteration is part of what is predicted."""

from __future__ import annotations

import torch
from torch import nn

import netsplit
from netsplit.experiment.records import row_of
from netsplit.program import GPipe
from tests.nets import SGD
from tests.workers import Pools, lent_to_sessions


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
