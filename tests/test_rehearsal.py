"""Costs fitted to what two programs took: those that the simulator was given come back."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest
import torch

from netsplit.graph import capture, initial_values
from netsplit.profile.costs import Costs, NodeSeconds
from netsplit.program.instructions import Program
from netsplit.rehearsal import Rehearsal, fitted, in_turns
from netsplit.runtime.pool import WorkerPool
from netsplit.simulate import simulate
from tests.nets import CASES, cluster_of

CASE = CASES["cells"]
GRAPH = capture(CASE.fresh(), CASE.loss, CASE.batch(2))
SECONDS = {node.name: NodeSeconds(1e-3 * (1 + n % 3), 2e-3) for n, node in enumerate(GRAPH)}


class Played(Rehearsal):
    """What a program takes is what the simulator says with certain costs."""

    def played_by(self, costs: Costs) -> Played:
        object.__setattr__(self, "costs", costs)
        return self

    def seconds(self, program: Program, pool: WorkerPool) -> float:
        return simulate(program, cluster_of(2), cast(Any, self).costs).iteration_s


def rehearsal(costs: Costs) -> Played:
    values = initial_values(CASE.fresh(), GRAPH)
    sgd = partial(torch.optim.SGD, lr=0.1)
    return Played(GRAPH, (), values, sgd, "cpu", ("cpu:0", "cpu:1")).played_by(costs)


@pytest.mark.parametrize(("contention", "message_s"), [(1.0, 0.0), (1.25, 3e-4), (1.1, 1e-3), (1.0, 2e-4)])
def test_the_costs_that_were_played_by_are_found(contention: float, message_s: float) -> None:
    played = Costs({"cpu": SECONDS}, 2, contention={"cpu": contention}, message_s={"cpu": message_s})
    found = fitted(rehearsal(played), Costs({"cpu": SECONDS}, 2), cluster_of(2), cast(WorkerPool, None))
    assert found[0] == pytest.approx(contention, abs=0.02)
    assert found[1] == pytest.approx(message_s, abs=5e-5)


def test_what_is_faster_than_predicted_costs_nothing_more() -> None:
    faster = {name: NodeSeconds(each.forward_s / 2, each.backward_s / 2) for name, each in SECONDS.items()}
    played = rehearsal(Costs({"cpu": faster}, 2))
    assert fitted(played, Costs({"cpu": SECONDS}, 2), cluster_of(2), cast(WorkerPool, None)) == (1.0, 0.0)


def test_devices_take_pieces_of_equal_seconds_in_turn() -> None:
    device_of = in_turns(GRAPH, SECONDS, ("a", "b"), 6)
    assert all(len({device_of[name] for name in group}) == 1 for group in GRAPH.colocated)
    share = sum(SECONDS[n].total_s for n, d in device_of.items() if d == "a") / sum(
        each.total_s for each in SECONDS.values()
    )
    assert 0.3 < share < 0.7
    changes = sum(a != b for a, b in zip(device_of.values(), list(device_of.values())[1:], strict=False))
    assert changes >= 3
