"""Costs of every worker from measured iterations, and what is decided by them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.errors import ConfigError
from netsplit.partition import MTopo, Single
from netsplit.planning.decide import verified
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
    return WorkerCosts.of(problem.graph, problem.cluster, problem.costs)


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


@settings(deadline=None, max_examples=20)
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


def test_a_slow_worker_is_slow_for_operators_that_it_has_never_had() -> None:
    plan = plan_of()
    costs = costs_of_plan(plan)
    measured = run(plan, costs, slowed(costs, "cpu:1", 4.0))
    costs.observe(plan.simulated[0], [measured])
    elsewhere = [name for name, device in plan.placement.device_of.items() if device == "cpu:0"]
    assert elsewhere
    for name in elsewhere:
        before, now = (each.devices["cpu:1"].nodes[name] for each in (costs.first, costs.costs))
        assert now.total_s == pytest.approx(4 * before.total_s, rel=1e-3)
        assert costs.costs.devices["cpu:0"].nodes[name].total_s == pytest.approx(before.total_s, rel=1e-3)


def swapped(plan: Plan) -> Plan:
    """Each worker has the other's operators."""
    other = {"cpu:0": "cpu:1", "cpu:1": "cpu:0"}
    moved = {node: other[device] for node, device in plan.placement.device_of.items()}
    return verified(plan.problem, replace(plan.placement, device_of=moved))


@pytest.mark.parametrize("slow_since", ["the second window of the present plan", "the change of plan"])
def test_what_a_worker_had_before_it_became_slow_is_slow_now_too(slow_since: str) -> None:
    plan = plan_of()
    now, costs = swapped(plan), costs_of_plan(plan)
    usual, slow = costs.first, slowed(costs, "cpu:0", 6.0)
    costs.observe(plan.simulated[0], [run(plan, costs, usual)])
    if "window" in slow_since:
        costs.observe(now.simulated[0], [run(now, costs, usual)])
    for _ in range(2):
        costs.observe(now.simulated[0], [run(now, costs, slow)])
        assert costs.slowness("cpu:0") == pytest.approx(6.0, rel=1e-3)
        assert costs.slowness("cpu:1") == pytest.approx(1.0, rel=1e-3)
        for name, real in slow.devices["cpu:0"].nodes.items():
            known = costs.costs.devices["cpu:0"].nodes[name]
            assert known.total_s == pytest.approx(real.total_s, rel=1e-3)
        assert run(plan, costs, costs.costs).iteration_s == pytest.approx(
            run(plan, costs, slow).iteration_s, rel=1e-3
        )


def test_a_few_disturbed_spans_do_not_count() -> None:
    plan = plan_of()
    costs = costs_of_plan(plan)
    usual, disturbed = run(plan, costs, costs.first), run(plan, costs, slowed(costs, "cpu:0", 50.0))
    costs.observe(plan.simulated[0], [usual, disturbed, usual, disturbed, usual])
    assert costs.slowness("cpu:0") == pytest.approx(1.0, rel=1e-6)


def test_what_has_no_cost_is_free_until_it_is_measured() -> None:
    """And then shares the seconds of its segment."""
    plan = plan_of()
    problem = plan.problem
    costs = WorkerCosts.of(problem.graph, problem.cluster, Costs({}, alpha=3))
    assert all(s.total_s == 0.0 for each in costs.costs.devices.values() for s in each.nodes.values())
    real = costs_of_plan(plan)
    measured = run(plan, real, real.first)
    for _ in range(3):  # the first time evenly, on operators without a backward too
        costs.observe(plan.simulated[0], [measured])
    for name, device in plan.placement.device_of.items():
        other = "cpu:1" if device == "cpu:0" else "cpu:0"
        assert costs.costs.devices[device].nodes[name].forward_s > 0
        assert costs.costs.devices[other].nodes[name].total_s == 0.0
    assert run(plan, costs, costs.costs).iteration_s == pytest.approx(measured.iteration_s, rel=1e-3)


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


SHORT = Adapt(every=5, window=3, search_s=0.5)


def adapting(real_factor: float = 1.0, horizon: int = 100_000) -> Workers:
    plan = plan_of()
    adaptation = Adaptation.of(replace(SHORT, horizon=horizon), plan, 0.01)
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
    assert f" by the old plan, and {new}" in str(decision)


@pytest.mark.parametrize(("first", "second", "named"), [(2.0, 20.0, 1), (0.05, 2.0, 0), (3.0, 1.0, 0)])
def test_the_worker_that_has_changed_most_is_named(first: float, second: float, named: int) -> None:
    adaptation = Adaptation.of(replace(SHORT, gain=0.99), plan_of(), 0.01)  # no plan is that much shorter
    workers = Workers(adaptation, adaptation.costs.first)
    workers.train(30)
    settled, costs = len(adaptation.decisions), adaptation.costs
    workers.real = slowed(replace(costs, first=slowed(costs, "cpu:0", first)), "cpu:1", second)
    workers.train(40)
    assert adaptation.decisions[settled].why.startswith(f"cpu:{named} takes ")


def test_a_slow_worker_without_work_is_forgotten_after_some_time_and_again_after_twice_that() -> None:
    plan = plan_of()
    alone = verified(plan.problem, Single().partition(plan.problem))
    (idle,) = {"cpu:0", "cpu:1"} - set(alone.placement.device_of.values())
    costs = costs_of_plan(plan)
    slow = slowed(costs, idle, 50.0)
    for windows in (30, 60):
        costs.observe(plan.simulated[0], [run(plan, costs, slow)])
        assert costs.slowness(idle) == pytest.approx(50.0, rel=0.01)
        for left in reversed(range(windows)):
            costs.observe(alone.simulated[0], [run(alone, costs, slow)])
            assert costs.forgotten == ({idle} if left == 0 else set())
        assert costs.slowness(idle) == 1.0
        assert costs.costs.devices[idle].nodes == costs.first.devices[idle].nodes


def test_a_worker_that_is_not_known_to_be_slow_is_not_forgotten() -> None:
    plan = plan_of()
    alone = verified(plan.problem, Single().partition(plan.problem))
    costs = costs_of_plan(plan)
    for _ in range(100):
        costs.observe(alone.simulated[0], [run(alone, costs, costs.costs)])
        assert not costs.forgotten


def test_a_change_that_a_false_cost_asked_for_is_taken_back_and_not_asked_for_again() -> None:
    workers = adapting(real_factor=20.0)
    workers.train(40)
    there, costs = workers.plan, workers.adaptation.costs
    looks = len(workers.adaptation.decisions)
    for name in costs.seen:  # as if cpu:1 were the faster by far
        costs.seen[name].clear()
    falsified = slowed(costs, "cpu:1", 0.01)
    costs.costs = falsified.with_device("cpu:0", nodes=costs.costs.devices["cpu:0"].nodes)
    workers.adaptation._looked_s = None  # a look is due
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


def test_looks_in_vain_become_rare_but_a_great_change_is_looked_at_at_once() -> None:
    plan = plan_of()
    adaptation = replace(Adaptation.of(replace(SHORT, gain=0.99), plan, 0.01), methods=(MTopo(),))
    workers = Workers(adaptation, adaptation.costs.first)
    usual, longer = (slowed(adaptation.costs, "cpu:1", factor) for factor in (1.0, 1.5))
    workers.train(2)
    for window in range(60):
        workers.real = longer if window % 2 else usual
        workers.train(SHORT.every)
    looks = len(adaptation.decisions)
    assert 3 < looks < 25  # of 60 windows, each of which differs from the one before
    workers.real = slowed(adaptation.costs, "cpu:1", 9.0)
    workers.train(2 * SHORT.every)
    assert len(adaptation.decisions) == looks + 1


def test_what_would_not_pay_is_left() -> None:
    workers = adapting(real_factor=20.0, horizon=1)
    workers.adaptation.switch_s = 1000.0
    workers.train(40)
    assert not workers.changes
    assert "less than the change takes" in workers.adaptation.decisions[0].why


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"every": 3, "window": 3}, "every"),
        ({"window": 0}, "window"),
        ({"search_s": 0.0}, "search_s"),
        ({"gain": 1.0}, "gain"),
        ({"horizon": 0}, "horizon"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings: dict[str, float], word: str) -> None:
    with pytest.raises(ConfigError, match=f"adapt.{word}"):
        Adapt(**settings)  # type: ignore[arg-type]
