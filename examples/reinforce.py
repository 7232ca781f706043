"""A partitioner of one's own: a policy that learns to place by trying, from the seconds placements take.

    cd examples
    netsplit compare 'hydra.searchpath=[conf]' partitioner=[auto,reinforce] model=vgg19_small

Source: Mirhoseini et al., Device Placement Optimization with Reinforcement Learning, ICML 2017: groups of
operators are placed one after another by a policy; a placement's reward is minus the square root of its
seconds; the policy's parameters follow REINFORCE (Williams, 1992) with a moving average as baseline. Theirs
is a recurrent network with attention, trained for hours on placements that run on the devices; here the
policy is linear in what it sees, and its placements are simulated.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from netsplit.graph.quotient import topological_priority
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Floats, Instance, Ints
from netsplit.partition.engines.kernels import CompiledStep
from netsplit.partition.methods.exact.netsplit_exact import serial_seconds
from netsplit.partition.methods.pesto.tasks import coarsen
from netsplit.partition.objectives import Period
from netsplit.partition.partitioner import Choice, Partitioner, fill_in_order, infeasible
from netsplit.placement.placement import Placement, SolverReport
from netsplit.simulate.simulator import ONE_BATCH, Turns

__all__ = ["PlacementPolicy", "Reinforce", "SampledPlaces"]

BATCH = 20  # placements a step of the policy
GROUPS_A_DEVICE = 4  # at least, where memory is short: a group has no more bytes than that leaves
RATE = 0.1  # of Adam
KEPT = 0.9  # of the baseline, from one step to the next
ENTROPY = 0.1  # what a nat of a decision is worth at first, in typical deviations of the reward; in the end 0

Seconds = Callable[[Ints], tuple[float, Ints | None]]
"""[n] device of each node -> seconds, and the order of the nodes that has them where there is one."""


@dataclass(frozen=True)
class Reinforce(Partitioner):
    """The best placement that a policy samples while it learns from the seconds of those before.

    It counts what it samples, so that the same seed gives the same answer unless the clock ends it first (the
    notes then say ``stopped: time``). Where none of its samples fits, it answers with the fill of the devices
    in topological order (``source`` in the notes).
    """

    time_limit_s: float = 30.0
    evaluations: int = 10_000  # placements sampled; those sampled before are not simulated again
    groups: int = 40  # that are placed one after another; memory may leave more

    name = "reinforce"
    optimises = "the objective asked for"

    def __post_init__(self) -> None:
        self.require_time_limit()
        for parameter in ("evaluations", "groups"):
            value = getattr(self, parameter)
            whole = isinstance(value, int) and not isinstance(value, bool)
            self.require(parameter, whole and value >= 1, "1 or more, a whole number")

    def choose(self, problem: Problem) -> Choice:
        instance = Instance.of(problem)
        trial = _Trial(instance, _SecondsOf(instance).by_objective)
        deadline = time.perf_counter() + (problem.time_limit_s or self.time_limit_s)
        groups = _groups(instance, self.groups)
        notes = {"groups": len(groups), **self._learn(trial, groups, deadline)}
        if trial.best is None:
            device_of = fill_in_order(problem, instance.capacity.tolist())
            if device_of is None:
                raise infeasible(problem, self.name)
            trial.try_one(instance.encode(device_of), "an in-order fill")
            assert trial.best is not None
        value_s, where, order, source = trial.best
        key = None if order is None else {instance.names[int(v)]: float(i) for i, v in enumerate(order)}
        notes |= {"source": source, "simulated": len(trial.known), "fitting": trial.fitting}
        return Choice(instance.decode(where), key, objective_s=value_s, notes=notes)

    def _learn(self, trial: _Trial, groups: list[Ints], deadline: float) -> dict[str, object]:
        """Sample and learn until the budget or the time is spent; what the report says of it."""
        policy = PlacementPolicy(trial.instance, groups)
        draw = np.random.default_rng(trial.instance.problem.seed % 2**63)
        group_of = _group_of(trial.instance, groups)
        baseline, spread, sampled = 0.0, 0.0, 0
        while sampled < self.evaluations:
            if time.perf_counter() >= deadline:
                return {"sampled": sampled, "stopped": "time"}
            samples = policy.sample(min(BATCH, self.evaluations - sampled), draw)
            rewards = np.array([trial.reward(each[group_of]) for each in samples.places])
            if not sampled:
                baseline = float(rewards.mean())
            gains = rewards - baseline
            spread = max(KEPT * spread, float(np.sqrt((gains**2).mean())), 1e-12)
            policy.learn(samples, gains / spread, ENTROPY * (1 - sampled / self.evaluations))
            baseline += (1 - KEPT) * float(gains.mean())
            sampled += len(rewards)
        return {"sampled": sampled}


@dataclass(frozen=True, eq=False)
class SampledPlaces:
    """Placements of K samples, and what a policy of G groups, D devices and F features saw of each."""

    places: Ints  # [K, G]
    chances: Floats  # [K, G, D]
    seen: Floats  # [K, G, D, F]


class PlacementPolicy:
    """Groups go one after another; the chance of a device is the softmax of a number that each device has.

    That number is the group's own for the device, which is learnt, plus what it sees of the device, by
    weights that are learnt and all groups share: the group's seconds there; the part of the group's bytes
    that it exchanges with groups placed there; seconds and bytes placed there so far. A device without
    room for the group has no chance, unless all are so.

    Args:
        groups: [G] -> nodes, in the order in which they are placed.
    """

    FEATURES = 4

    def __init__(self, instance: Instance, groups: list[Ints]) -> None:
        total = instance.forward_s + instance.backward_s
        seconds = np.array([total[members].sum(axis=0) for members in groups])
        self.devices = len(instance.devices)
        self.slow = _over(seconds, seconds.max(axis=1, keepdims=True))  # [G, D]
        self.work = _over(seconds * self.devices, seconds.sum(axis=0))  # [G, D] 1: an even part of all
        self.room = _SampleBytes(instance, groups)
        self.near = _exchanged(instance, groups)  # [G, G] part of the row's bytes
        self.own = np.zeros((len(groups), self.devices))
        self.weights = np.zeros(self.FEATURES)
        self._moments = [(np.zeros_like(each), np.zeros_like(each)) for each in (self.own, self.weights)]
        self._steps = 0

    def sample(self, count: int, draw: np.random.Generator) -> SampledPlaces:
        """Draw placements, as many as `count`."""
        groups = len(self.own)
        places = np.zeros((count, groups), np.int64)
        chances = np.zeros((count, groups, self.devices))
        seen = np.zeros((count, groups, self.devices, self.FEATURES))
        chosen = np.zeros((count, groups, self.devices))
        load, rows = np.zeros((count, self.devices)), np.arange(count)
        used, present = self.room.empty(count)
        for g in range(groups):
            more = self.room.more(g, present)
            full = used + more > self.room.capacity
            full[full.all(axis=1)] = False
            seen[:, g, :, 0] = self.slow[g]
            seen[:, g, :, 1] = np.einsum("kgd,g->kd", chosen[:, :g], self.near[g, :g])
            seen[:, g, :, 2], seen[:, g, :, 3] = load, used / np.maximum(self.room.capacity, 1)
            chances[:, g] = _softmax(np.where(full, -np.inf, self.own[g] + seen[:, g] @ self.weights))
            edges = chances[:, g].cumsum(axis=1)
            places[:, g] = (draw.random(count)[:, None] * edges[:, -1:] >= edges[:, :-1]).sum(axis=1)
            chosen[rows, g, places[:, g]] = 1.0
            load += chosen[:, g] * self.work[g]
            used[rows, places[:, g]] += more[rows, places[:, g]]
            present[rows[:, None], places[:, g, None], self.room.touched[g]] = True
        return SampledPlaces(places, chances, seen)

    def gradient(self, samples: SampledPlaces, gains: Floats, entropy: float) -> tuple[Floats, Floats]:
        """The gradient of mean gain times log chance, plus `entropy` times entropy, as [G, D] and [F].

        Args:
            gains: [K] what each sample's reward is above the baseline.
        """
        p = samples.chances
        taken = np.arange(self.devices) == samples.places[:, :, None]
        logs = np.log(np.maximum(p, 1e-300))
        spread = -p * (logs - (p * logs).sum(axis=2, keepdims=True))
        ascent = gains[:, None, None] * (taken - p) + entropy * spread
        return ascent.mean(axis=0), np.einsum("kgd,kgdf->f", ascent, samples.seen) / len(gains)

    def learn(self, samples: SampledPlaces, gains: Floats, entropy: float) -> None:
        """A step of Adam (Kingma and Ba, 2015) along the gradient."""
        self._steps += 1
        for values, slope, (mean, square) in zip(
            (self.own, self.weights), self.gradient(samples, gains, entropy), self._moments, strict=True
        ):
            mean += 0.1 * (slope - mean)
            square += 0.001 * (slope**2 - square)
            rate = RATE / (1 - 0.9**self._steps)
            values += rate * mean / (np.sqrt(square / (1 - 0.999**self._steps)) + 1e-8)


class _SampleBytes:
    """Bytes of K samples as `Instance.used_bytes` counts them, while one group after another is placed."""

    def __init__(self, instance: Instance, groups: list[Ints]) -> None:
        self.capacity, self.held_bytes = instance.capacity, instance.held_bytes
        self.state = [int(instance.state_bytes[members].sum()) for members in groups]
        group_of = _group_of(instance, groups)
        touched: list[set[int]] = [set() for _ in groups]
        for h in range(len(instance.holders)):
            for g in group_of[instance.holders[h]]:
                touched[g].add(h)
        self.touched = [np.array(sorted(each), np.int64) for each in touched]  # [G] -> held variables

    def empty(self, count: int) -> tuple[Ints, NDArray[np.bool_]]:
        """[K, D] bytes, and [K, D, h] whether a held variable is there: of samples without a group."""
        shape = count, len(self.capacity)
        return np.zeros(shape, np.int64), np.zeros((*shape, len(self.held_bytes)), bool)

    def more(self, g: int, present: NDArray[np.bool_]) -> Ints:
        """[K, D] bytes that a group needs beside what is there."""
        own = self.touched[g]
        return np.asarray(self.state[g] + (~present[:, :, own]) @ self.held_bytes[own])


class _Trial:
    """Rewards of placements, and the best of those that fit."""

    def __init__(self, instance: Instance, seconds: Seconds) -> None:
        self.instance, self.seconds = instance, seconds
        simulator = instance.problem.simulator
        microbatches = 1 if simulator is None else simulator.turns.microbatches
        self.serial_s = max(microbatches * serial_seconds(instance), 1e-300)
        self.bytes = max(instance.problem.memory_model.total_bytes, 1)
        self.known: dict[bytes, float] = {}
        self.fitting = 0  # samples
        self.best: tuple[float, Ints, Ints | None, str] | None = None

    def reward(self, where: Ints) -> float:
        """Minus the root of the part of the serial seconds; what does not fit is below all that does."""
        over = int(np.maximum(self.instance.used_bytes(where) - self.instance.capacity, 0).sum())
        if over:
            return -1.0 - over / self.bytes
        self.fitting += 1
        return -float(np.sqrt(min(1.0, self.try_one(where, "a sample") / self.serial_s)))

    def try_one(self, where: Ints, source: str) -> float:
        """Seconds of a placement that fits."""
        key = where.tobytes()
        if key not in self.known:
            value_s, order = self.seconds(where)
            self.known[key] = value_s
            if self.best is None or value_s < self.best[0]:
                self.best = (value_s, where, order, source)
                improved = self.instance.problem.improved
                if improved is not None:
                    improved(value_s, source)
        return self.known[key]


@dataclass(frozen=True)
class _SecondsOf:
    """`Seconds` of each objective: by compiled steps where these are the simulator's to the last bit."""

    instance: Instance

    @property
    def by_objective(self) -> Seconds:
        problem = self.instance.problem
        score, simulator = problem.objective.scorer(problem), problem.simulator
        if isinstance(problem.objective, Period):
            assert score is not None, "a period needs no `simulator`"
            return lambda where: (score(self._placement(where)), None)
        if not problem.objective.scheduled or simulator is None:
            return self._compiled(ONE_BATCH)
        compiled = self._compiled(simulator.turns)
        return compiled if simulator.turns.exact else lambda where: self._simulated(where, compiled(where)[1])

    def _compiled(self, turns: Turns) -> Seconds:
        step = CompiledStep(self.instance, turns)
        step.evaluate(np.zeros(self.instance.n, np.int64))  # it may have to be compiled first
        return step.evaluate

    def _simulated(self, where: Ints, order: Ints | None) -> tuple[float, Ints | None]:
        simulator = self.instance.problem.simulator
        assert simulator is not None
        return simulator(self._placement(where, order)).iteration_s, order

    def _placement(self, where: Ints, order: Ints | None = None) -> Placement:
        graph, names = self.instance.problem.graph, self.instance.names
        rank = graph.position if order is None else {names[int(v)]: i for i, v in enumerate(order)}
        priority = topological_priority(graph, {name: float(i) for name, i in rank.items()})
        return Placement(
            Reinforce.name, self.instance.decode(where), priority, SolverReport("heuristic", 0.0)
        )


def _groups(instance: Instance, count: int) -> list[Ints]:
    """[G] -> nodes that share a device: the ends of heavy edges, coarsened as for `pesto_full`."""
    limit = int(instance.capacity.max(initial=0)) // GROUPS_A_DEVICE
    return [np.array(members, np.int64) for members in coarsen(instance, count, limit).classes]


def _group_of(instance: Instance, groups: list[Ints]) -> Ints:
    """[n] group of each node."""
    group_of = np.zeros(instance.n, np.int64)
    for g, members in enumerate(groups):
        group_of[members] = g
    return group_of


def _exchanged(instance: Instance, groups: list[Ints]) -> Floats:
    """[G, G] part of a group's bytes, to and from others, that it exchanges with another."""
    group_of = _group_of(instance, groups)
    nbytes = np.zeros((len(groups), len(groups)))
    for u, source in enumerate(instance.producer):
        a = group_of[source]
        for b in {int(group_of[v]) for v in instance.consumers[u]} - {int(a)}:
            nbytes[a, b] += instance.nbytes[u]
            nbytes[b, a] += instance.nbytes[u]
    return _over(nbytes, nbytes.sum(axis=1, keepdims=True))


def _over(values: NDArray[np.float64], whole: NDArray[np.float64]) -> Floats:
    """Parts of a whole; zero where there is none."""
    return np.asarray(np.divide(values, whole, out=np.zeros_like(values), where=whole > 0))


def _softmax(values: Floats) -> Floats:
    raised = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))
