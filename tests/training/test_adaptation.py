"""Costs of every worker from measured iterations, and what is decided by them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.partition import Dpos, MTopo
from netsplit.planning.plan import Plan
from netsplit.profile.costs import Costs, NodeSeconds
from netsplit.simulate.simulate import simulate
from netsplit.simulate.timeline import Timeline
from netsplit.training.adapt.adaptation import Adapt, Adaptation
from netsplit.training.adapt.worker_costs import WorkerCosts, segment_medians
from tests.nets import CASES, SGD
from tests.runtime.checkpoint.test_checkpoint import planned


def plan_of(name: str = "chain") -> Plan:
    return planned(CASES[name], SGD, MTopo())[1]


def costs_of_plan(plan: Plan) -> WorkerCosts:
    problem = plan.problem
    return WorkerCosts.from_kinds(problem.graph, problem.cluster, problem.costs)


def slowed(costs: WorkerCosts, name: str, factor: float) -> Costs:
    """What the workers really take: one of them longer in all that it computes."""
    each = costs.first.devices[name]
    nodes = {
        k: NodeSeconds(factor * s.forward_s, factor * s.backward_s, factor * s.weight_s)
        for k, s in each.nodes.items()
    }
    return costs.first.with_device(name, nodes=nodes)


def run(plan: Plan, costs: WorkerCosts, real: Costs) -> Timeline:
    """An iteration as such workers would do it."""
    return simulate(plan.simulated[0], costs.cluster, real, peaks=False)


@settings(deadline=None, max_examples=8)
@given(factors=st.lists(st.floats(0.2, 20.0), min_size=2, max_size=2))
def test_what_was_measured_is_then_predicted(factors: list[float]) -> None:
    plan = plan_of()
    costs = costs_of_plan(plan)
    real = slowed(costs, "cpu:0", factors[0])
    second = replace(costs, first=real)
    real = slowed(second, "cpu:1", factors[1])
    measured = run(plan, costs, real)
    for _ in range(3):
        costs.observe(plan.simulated[0], [measured] * 3)
    again = run(plan, costs, costs.costs)
    assert again.iteration_s == pytest.approx(measured.iteration_s, rel=1e-3)
    assert segment_medians([again]) == pytest.approx(segment_medians([measured]), rel=1e-3)
    for name, factor in zip(("cpu:0", "cpu:1"), factors, strict=True):
        assert costs.slowness(name) == pytest.approx(factor, rel=1e-2)


class Workers:
    """Stands for what is trained: iterations take what simulated workers take under the present plan."""

    def __init__(self, adaptation: Adaptation, real: Costs) -> None:
        self.adaptation, self.real = adaptation, real
        self.plan = adaptation.plan
        self.changes: list[Plan] = []
        self.batches = 0

    def change(self, plan: Plan) -> tuple[float, int]:
        self.changes.append(plan)
        self.plan = plan
        return 0.01, 1000

    def train(self, iterations: int) -> None:
        for _ in range(iterations):
            timeline = run(self.plan, self.adaptation.costs, self.real)
            self.batches += 1
            measured = timeline if self.adaptation.measuring else None
            self.adaptation.iteration(measured, self, self.change, self.batches)


SHORT = Adapt(every=5, window=3)


def adapting(real_factor: float = 1.0, horizon: int = 100_000) -> Workers:
    plan = plan_of()
    adaptation = replace(Adaptation.begin(replace(SHORT, horizon=horizon), plan, 0.01), methods=(Dpos(),))
    return Workers(adaptation, slowed(adaptation.costs, "cpu:1", real_factor))


def test_a_worker_that_becomes_slow_loses_its_work() -> None:
    workers = adapting()
    workers.train(30)
    settled = len(workers.adaptation.decisions)
    workers.train(60)
    assert len(workers.adaptation.decisions) == settled  # nothing has changed: nothing is looked for
    workers.real = slowed(workers.adaptation.costs, "cpu:1", 20.0)
    before = run(workers.plan, workers.adaptation.costs, workers.real).iteration_s
    workers.train(60)
    after = run(workers.plan, workers.adaptation.costs, workers.real).iteration_s
    assert after < 0.7 * before
    decision = workers.adaptation.decisions[settled]
    assert "cpu:1" in decision.why
    assert decision.outcome == "kept"
    assert decision.measured_after_s is not None
    assert decision.measured_after_s < decision.measured_before_s
    assert decision.switch_s == 0.01
    assert decision.change is not None
    assert decision.change.moved > 0
    assert f"changed: {decision.change.lines[0]}" in str(decision)
    assert f"searched for {1e3 * decision.search_s:.0f} ms" in str(decision)
    old, new = (f"{1e3 * s:.4g} ms (" for s in (decision.measured_before_s, decision.measured_after_s))
    assert f"an iteration took {old}" in str(decision)
    assert f" with the old plan and {new}" in str(decision)


def test_a_change_that_a_false_cost_asked_for_is_taken_back_and_not_asked_for_again() -> None:
    workers = adapting(real_factor=20.0)
    workers.train(40)
    there, costs = workers.plan, workers.adaptation.costs
    looks = len(workers.adaptation.decisions)
    for name in costs.measured:  # as if cpu:1 were the faster by far
        costs.measured[name].clear()
    falsified = slowed(costs, "cpu:1", 0.01)
    costs.costs = falsified.with_device("cpu:0", nodes=costs.costs.devices["cpu:0"].nodes)
    workers.adaptation._looked_s = None  # a look is due
    workers.adaptation.methods = (MTopo(),)
    workers.train(40)
    decision = workers.adaptation.decisions[looks]
    assert decision.outcome == "rolled back"
    assert decision.measured_after_s is not None
    assert decision.measured_after_s > decision.measured_before_s
    assert decision.switch_s == 0.02  # the way back counted
    assert workers.changes[-1] is there
    changes = len(workers.changes)
    workers.train(100)
    assert len(workers.changes) == changes
