"""A policy that learns: its gradient, what it counts, and that it gets where trying out gets."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsplit.errors import ConfigError, InfeasibleError
from netsplit.partition import MaxLoad, Problem, Random, Reinforce, SimulatedIteration, StageTime
from netsplit.partition.common.capacity import fill_in_order
from netsplit.partition.common.instance import Instance
from netsplit.partition.methods.reinforce import PlacementPolicy, SampledPlaces
from netsplit.planning.decide import decide
from netsplit.planning.simulated import Simulated
from netsplit.program import GPipe, Schedule, SingleBatch
from netsplit.program.schedules import ZBH1
from tests.partition.builders import large_problem, problems, required_bytes, trained, with_capacities

quiet = settings(deadline=None, suppress_health_check=list(HealthCheck))


def simulated(problem: Problem, schedule: Schedule, objective: Any = None) -> Problem:
    evaluate = Simulated(problem.graph, problem.cluster, problem.costs, schedule)
    return replace(problem, evaluate=evaluate, objective=objective or SimulatedIteration())


def policy_of(problem: Problem) -> PlacementPolicy:
    instance = Instance.of(problem)
    return PlacementPolicy(instance, [instance.atoms[a] for a in range(len(instance.atoms))])


def aim(policy: PlacementPolicy, samples: SampledPlaces, gains: Any, entropy: float) -> float:
    """What the gradient is of, by its definition, with what was seen as it was."""
    total = 0.0
    for k, gain in enumerate(gains):
        for g, place in enumerate(samples.places[k]):
            own = samples.chances[k, g] > 0  # devices with room
            raised = np.exp(policy.own[g] + samples.seen[k, g] @ policy.weights) * own
            chance = raised / raised.sum()
            total += gain * np.log(chance[place]) - entropy * (chance[own] * np.log(chance[own])).sum()
    return total / len(gains)


@quiet
@given(problem=problems(), seed=st.integers(0, 2**32))
def test_the_gradient_is_the_slope_of_gains_and_entropy(problem: Problem, seed: int) -> None:
    draw, policy = np.random.default_rng(seed), policy_of(problem)
    policy.own += draw.normal(size=policy.own.shape)
    policy.weights += draw.normal(size=policy.weights.shape)
    samples, gains = policy.sample(3, draw), draw.normal(size=3)
    slopes = policy.gradient(samples, gains, 0.3)
    for values, slope in zip((policy.own, policy.weights), slopes, strict=True):
        at = tuple(int(draw.integers(size)) for size in values.shape)
        ends = []
        for step in (1e-5, -2e-5):
            values[at] += step
            ends.append(aim(policy, samples, gains, 0.3))
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(slope[at], rel=1e-4, abs=1e-6)


@settings(quiet, max_examples=20)
@given(problem=problems(), seed=st.integers(0, 2**32))
def test_samples_are_drawn_by_their_chances(problem: Problem, seed: int) -> None:
    policy = policy_of(problem)
    policy.own += np.random.default_rng(seed).normal(size=policy.own.shape)
    samples = policy.sample(2000, np.random.default_rng(seed))
    assert samples.chances.sum(axis=2) == pytest.approx(1.0)
    drawn = np.bincount(samples.places[:, 0], minlength=policy.devices) / 2000
    assert drawn == pytest.approx(samples.chances[0, 0], abs=0.06)


def test_what_pays_is_chosen_more_often() -> None:
    policy, draw = policy_of(large_problem(6, devices=3, room=9.0)), np.random.default_rng(1)
    for _ in range(60):
        samples = policy.sample(20, draw)
        gains = (samples.places == 2).mean(axis=1)
        policy.learn(samples, gains - gains.mean(), 0.0)
    assert policy.sample(1, draw).chances[0, :, 2].min() > 0.9


def test_on_a_small_problem_it_finds_the_best() -> None:
    problem = simulated(trained(large_problem(7, devices=2, room=2.5)), GPipe(3))
    instance = Instance.of(problem)
    assert problem.evaluate is not None
    plan = decide(problem, Reinforce(evaluations=3000))
    others = [decide(replace(problem, seed=seed), Random(), room=False) for seed in range(60)]
    fitting = [
        each.objective_s for each in others if instance.fits(instance.encode(each.placement.device_of))
    ]
    assert plan.objective_s <= min(fitting) * (1 + 1e-9)
    assert plan.placement.report.objective == pytest.approx(plan.objective_s)


@pytest.mark.parametrize("schedule", [SingleBatch(), GPipe(3), ZBH1(3)], ids=lambda each: each.name)
@pytest.mark.parametrize(
    "objective", [SimulatedIteration(), MaxLoad(), StageTime()], ids=lambda each: each.name
)
def test_its_own_seconds_are_those_of_the_objective(schedule: Schedule, objective: Any) -> None:
    """Steps that are compiled, and those that are not."""
    problem = simulated(trained(large_problem(12, room=9.0)), schedule, objective)
    plan = decide(problem, Reinforce(evaluations=100, groups=6))
    assert plan.placement.report.objective == pytest.approx(plan.objective_s, rel=1e-9)
    notes = plan.placement.report.notes
    assert notes["sampled"] == 100
    assert 0 < notes["simulated"] <= notes["fitting"] <= 100
    assert notes["groups"] >= 6


def test_better_ones_are_told_as_they_come_and_the_seed_decides() -> None:
    told: list[float] = []
    problem = replace(large_problem(20, room=9.0), improved=lambda s, source: told.append(s), seed=3)
    first, again = (Reinforce(evaluations=300).partition(problem) for _ in range(2))
    half = len(told) // 2
    assert told[:half] == told[half:]
    assert all(a > b for a, b in pairwise(told[:half]))
    assert first.report.objective == told[-1]
    assert (first.device_of, first.priority) == (again.device_of, again.priority)


@quiet
@given(problem=problems(), seed=st.integers(0, 2**32))
def test_a_sample_s_bytes_are_those_of_its_placement(problem: Problem, seed: int) -> None:
    """And a device that they exceed has no chance, unless all are so."""
    policy, instance = policy_of(problem), Instance.of(problem)
    samples = policy.sample(5, np.random.default_rng(seed))
    rows, (used, present) = np.arange(5), policy.room.empty(5)
    for g in range(samples.places.shape[1]):
        more, at = policy.room.more(g, present), samples.places[:, g]
        full = used + more > instance.capacity
        assert (samples.chances[:, g][full & ~full.all(axis=1)[:, None]] == 0).all()
        used[rows, at] += more[rows, at]
        present[rows[:, None], at[:, None], policy.room.touched[g]] = True
    wanted = [instance.used_bytes(each[instance.atom_of]) for each in samples.places]
    assert used.tolist() == np.array(wanted).tolist()


def test_where_no_sample_fits_the_devices_are_filled_in_order() -> None:
    problem = large_problem(40, devices=4, room=9.0)
    need = required_bytes(problem)
    filled = fill_in_order(problem, [need // 3] * 4)
    assert filled is not None
    instance = Instance.of(problem)
    tight = with_capacities(problem, instance.used_bytes(instance.encode(filled)).tolist())
    report = Reinforce(evaluations=20).partition(tight).report
    assert report.notes["fitting"] == 0
    assert report.notes["source"] == "an in-order fill"
    with pytest.raises(InfeasibleError, match=r"reinforce finds no placement.*missing"):
        Reinforce(evaluations=1).partition(with_capacities(problem, [need // 5] * 4))


def test_the_clock_ends_it() -> None:
    problem = replace(large_problem(40, room=9.0), time_limit_s=0.2)
    notes = Reinforce(evaluations=10**9).partition(problem).report.notes
    assert notes["stopped"] == "time"
    assert notes["sampled"] < 10**6


@pytest.mark.parametrize(("key", "value"), [("time_limit_s", 0), ("evaluations", 0), ("groups", 0)])
def test_parameters_that_cannot_be_are_refused(key: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"reinforce\.{key} is 0"):
        Reinforce(**{key: value})


@pytest.mark.parametrize("key", ["evaluations", "groups"])
@pytest.mark.parametrize("value", [1.5, True, "many"])
def test_counts_are_whole_numbers(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"reinforce\.{key} is {value!r}: give 1 or more, a whole number"):
        Reinforce(**{key: value})
