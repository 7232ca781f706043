"""Costs fitted to what two programs took: those that the simulator was given come back."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import cast

import pytest
import torch

from netsplit.cluster.cluster import Cluster
from netsplit.experiment.trial_run import MOST_MESSAGE_S, Fit, TrialRun, checked_trial, fit_trial, in_turns
from netsplit.graph import capture, initial_values
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program.instructions import Program
from netsplit.runtime.workers.pool import WorkerPool
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
    return Played(GRAPH, (), values, sgd, "cpu", names).played_by(costs, cluster)


def on_processors(processors: float | None, devices: int = 4) -> Cluster:
    cluster = cpus(devices)
    return replace(cluster, devices=tuple(replace(d, processors=processors) for d in cluster.devices))


@pytest.mark.parametrize(("contention", "message_s"), [(1.0, 0.0), (1.25, 3e-4), (1.1, 1e-3), (1.0, 2e-4)])
def test_the_costs_that_were_played_by_are_found(contention: float, message_s: float) -> None:
    played = BARE.with_device("cpu", contention=contention, message_s=message_s)
    costs = fit_trial(trial(played), BARE, cpus(2), cast(WorkerPool, None))
    assert costs.contention == pytest.approx(contention, abs=0.02)
    assert costs.message_s == pytest.approx(message_s, abs=5e-5)
    assert costs.steady


@pytest.mark.parametrize("processors", [1.0, 1.5, 2.0, 3.0, 4.0])
def test_what_devices_wait_for_a_processor_is_not_taken_for_contention(processors: float) -> None:
    """Two of four devices do not slow one another more for what four do on too few processors."""
    cluster = on_processors(processors)
    fit = fit_trial(trial(TRUE, cluster), BARE, cluster, cast(WorkerPool, None))
    assert fit.contention == pytest.approx(1.25, abs=0.02)
    assert fit.message_s == pytest.approx(3e-4, abs=5e-5)
    assert fit.steady


def test_on_one_processor_contention_is_twice_at_most() -> None:
    """Four devices that take turns share no cache at once; a busy machine has them take more."""
    cluster = on_processors(1.0)
    fit = fit_trial(
        trial(BARE.with_device("cpu", contention=2.5), cluster), BARE, cluster, cast(WorkerPool, None)
    )
    assert (fit.contention, fit.steady) == (1.0, False)


def test_what_is_faster_than_predicted_costs_nothing_more() -> None:
    faster = {name: NodeSeconds(each.forward_s / 2, each.backward_s / 2) for name, each in SECONDS.items()}
    played = trial(BARE.with_device("cpu", nodes=faster))
    assert fit_trial(played, BARE, cpus(2), cast(WorkerPool, None)) == Fit(1.0, 0.0)


def test_devices_take_pieces_of_equal_seconds_in_turn() -> None:
    device_of = in_turns(GRAPH, SECONDS, ("a", "b"), 6)
    assert all(len({device_of[name] for name in group}) == 1 for group in GRAPH.colocated)
    fraction = sum(SECONDS[n].total_s for n, d in device_of.items() if d == "a") / sum(
        each.total_s for each in SECONDS.values()
    )
    assert 0.3 < fraction < 0.7
    changes = sum(a != b for a, b in zip(device_of.values(), list(device_of.values())[1:], strict=False))
    assert changes >= 3


def test_one_disturbed_round_of_three_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    played = trial(TRUE).disturbed(1.0, 1.6, 1.0)
    fit = fit_trial(played, BARE, cpus(2), cast(WorkerPool, None))
    assert fit.steady
    warnings = [each for each in caplog.records if each.levelname == "WARNING"]
    assert (played.runs, fit.spread, warnings) == (9, 0.0, [])
    assert fit.contention == pytest.approx(1.25, abs=0.02)
    assert fit.message_s == pytest.approx(3e-4, abs=5e-5)


def test_rounds_that_differ_are_followed_by_others_until_most_agree() -> None:
    played = trial(TRUE).disturbed(1.0, 1.6, 1.5, 1.0, 1.01)
    fit = fit_trial(played, BARE, cpus(2), cast(WorkerPool, None))
    assert fit.steady
    assert played.runs == 15
    assert fit.spread == pytest.approx(0.01)


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


@pytest.mark.parametrize(
    ("contention", "message_s", "kept"), [(3.5, 0.0, (1.0, None)), (1.0, 2e-2, (None, 0.0))]
)
def test_a_cost_beyond_reason_is_left_at_rest_and_not_to_be_kept(
    contention: float, message_s: float, kept: tuple[float | None, float | None],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Two devices that share everything take twice as long together; a busy machine has them take more."""
    played = BARE.with_device("cpu", contention=contention, message_s=message_s)
    fit = fit_trial(trial(played), BARE, cpus(2), cast(WorkerPool, None))
    assert not fit.steady
    assert fit.spread == 0.0
    assert all(want in (None, got) for got, want in zip((fit.contention, fit.message_s), kept, strict=True))
    assert fit.contention < 2
    assert fit.message_s < MOST_MESSAGE_S
    assert "no sensible cost explains it" in caplog.text


@pytest.mark.parametrize("kept", [1.0, 3.0, 1 / 3])
@pytest.mark.parametrize("busy", [1.0, 2.0])
def test_costs_that_were_kept_are_told_beside_what_a_trial_run_takes(kept: float, busy: float) -> None:
    """Of two runs the nearer counts, where the machine was busy in the first."""
    played = trial(TRUE)
    seconds = iter([busy, 1.0])
    vars(played).update(
        seconds=lambda program, pool: next(seconds) * simulate(program, cpus(2), TRUE).iteration_s
    )
    nodes = {v: NodeSeconds(kept * s.forward_s, kept * s.backward_s) for v, s in SECONDS.items()}
    costs = Costs({"cpu": replace(TRUE.devices["cpu"], nodes=nodes)}, 2)
    said_s, took_s = checked_trial(played, costs, cpus(2), cast(WorkerPool, None))
    nearer = busy if kept == 3.0 else 1.0
    assert took_s / said_s == pytest.approx(nearer / kept, rel=0.1)
