"""Costs fitted to what two programs took: those that the simulator was given come back."""

from __future__ import annotations

from functools import partial
from typing import cast

import pytest
import torch

from netsplit.cluster.catalogue import CPU_THREAD, accelerator
from netsplit.cluster.cluster import Cluster
from netsplit.graph import capture, initial_values
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program.instructions import Program
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.session.calibration import Calibration
from netsplit.session.trial_run import MOST_MESSAGE_S, TrialRun, fit_trial
from netsplit.simulate import simulate
from tests.builders import cpus
from tests.messages import tells
from tests.nets import CASES

CASE = CASES["cells"]
GRAPH = capture(CASE.fresh(), CASE.loss, CASE.batch(2))
SECONDS = {node.name: NodeSeconds(1e-3 * (1 + n % 3), 2e-3) for n, node in enumerate(GRAPH)}
BARE = Costs({"cpu": DeviceCosts(SECONDS)}, 2)
TRUE = BARE.with_device("cpu", contention=1.25, message_s=3e-4)


class Played(TrialRun):
    """What a program takes is what the simulator says with certain costs, times a factor for the round."""

    cluster: Cluster
    costs: Costs
    factors: tuple[float, ...]
    runs: int

    def played_by(self, costs: Costs, cluster: Cluster) -> Played:
        vars(self).update(costs=costs, cluster=cluster, factors=(1.0,), runs=0)
        return self

    def disturbed(self, *factors: float) -> Played:
        vars(self).update(factors=factors)
        return self

    def seconds(self, program: Program, pool: WorkerPool) -> float:
        factor = self.factors[self.runs // 3 % len(self.factors)]
        vars(self).update(runs=self.runs + 1)
        return factor * simulate(program, self.cluster, self.costs).iteration_s


def trial(costs: Costs, cluster: Cluster | None = None) -> Played:
    values = initial_values(CASE.fresh(), GRAPH)
    sgd, cluster = partial(torch.optim.SGD, lr=0.1), cluster or cpus(2)
    names = tuple(device.name for device in cluster.devices)
    return Played(Calibration(GRAPH, (), values, sgd), "cpu", names).played_by(costs, cluster)


@pytest.mark.parametrize(("contention", "message_s"), [(1.0, 0.0), (1.25, 3e-4)])
def test_the_costs_that_were_played_by_are_found(contention: float, message_s: float) -> None:
    played = BARE.with_device("cpu", contention=contention, message_s=message_s)
    costs = fit_trial(trial(played), BARE, cpus(2), cast(WorkerPool, None))
    assert costs.contention == pytest.approx(contention, abs=0.02)
    assert costs.message_s == pytest.approx(message_s, abs=5e-5)
    assert costs.steady


def test_where_rounds_keep_differing_the_fastest_counts_and_a_warning_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fit = fit_trial(trial(TRUE).disturbed(1.5, 1.6, 1.0), BARE, cpus(2), cast(WorkerPool, None))
    assert not fit.steady
    assert fit.spread == pytest.approx(0.5)
    assert fit.contention == pytest.approx(1.25, abs=0.02)
    assert fit.message_s == pytest.approx(3e-4, abs=5e-5)
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert tells(record.message, "cpu:0 and cpu:1", "uncertain", "50 %")
    assert "quiet machine" in record.message


@pytest.mark.parametrize(("contention", "message_s"), [(3.5, 0.0), (1.0, 2e-2)])
def test_instead_of_a_cost_beyond_reason_the_usual_one_stands_and_is_not_kept(
    contention: float, message_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Two devices that share everything take twice as long together; a busy machine has them take more."""
    played = BARE.with_device("cpu", contention=contention, message_s=message_s)
    fit = fit_trial(trial(played), BARE, cpus(2), cast(WorkerPool, None))
    usual = accelerator(CPU_THREAD).overheads
    assert usual is not None
    assert not fit.steady
    assert fit.spread == 0.0
    if contention > 2:
        assert fit.contention == usual.contention
    else:
        assert fit.message_s == usual.message_s
    assert fit.contention < 2
    assert fit.message_s < MOST_MESSAGE_S
    assert "no plausible cost explains the trial run" in caplog.text
