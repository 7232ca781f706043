"""PipeDream's time of a pipeline's slowest stage, of any placement: its formula as an objective.

Source: PipeDream (Narayanan et al., SOSP 2019, section 3.1) and its released optimiser
(`optimizer_graph_hierarchical.py`). The paper, for m replicas of layers i..j at network level k with
bandwidth B: ``max(compute, 2 (m - 1) W / B) / m``, and ``2 a / B`` between two stages. The released code:

- ``(compute + 4 (m - 1) W / (B m)) / m``, a sum; W / (units of the level below) for a pipeline's first stage;
- ``2 a / (B m)`` for what a stage reads, by its own replicas, and likewise for what it sends; not counted
  for what the first stage of a pipeline sends, whose successor counts it.

`a` is the sum over the augmented antichain (`Layers.boundary_bytes`). Both know one speed, of the slowest
kind of device, and one bandwidth per level; of links only the slowest bandwidth is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from netsplit.errors import ConfigError
from netsplit.partition.base import Answer, Loads, Problem, Solvers
from netsplit.partition.common.instance import Floats, Instance
from netsplit.partition.common.layers import Layers
from netsplit.partition.objectives import Period
from netsplit.placement.placement import Placement, Stage

__all__ = ["Cost", "Formula", "StageTime", "levels_of", "stage_time_s"]

Cost = Literal["released", "paper"]


@dataclass(frozen=True)
class Formula:
    """Costs at each level of the network, innermost first. Arrays broadcast; seconds and bytes."""

    levels: tuple[tuple[int, float], ...]  # (units, bytes per second) of each level
    cost: Cost = "released"
    count_transfers: bool = True

    @property
    def devices(self) -> int:
        return math.prod(units for units, _ in self.levels)

    def stage(self, level: int, inner: Floats, weights: Floats, m: int, first: bool) -> Floats:
        """A stage on m units, of which one needs `inner` seconds."""
        bandwidth = self.levels[level][1]
        if self.cost == "paper":
            return np.maximum(inner, 2 * (m - 1) * weights / bandwidth) / m
        below = self.levels[level - 1][0] if first and level else 1
        return (inner + 4 * (m - 1) * weights / (bandwidth * m) / below) / m

    def transfer(self, level: int, read: Floats, sent: float, m: int) -> Floats:
        """What a stage on m units reads and sends, whichever takes longer."""
        if not self.count_transfers:
            return np.zeros_like(read)
        bandwidth = self.levels[level][1]
        if self.cost == "paper":
            return 2 * read / bandwidth
        return 2 * np.maximum(read, sent) / (bandwidth * m)


def levels_of(problem: Problem) -> tuple[tuple[int, float], ...]:
    """The network as (units, bandwidth) per level: the cluster's own levels, else one over its links."""
    cluster = problem.cluster
    if cluster.levels and math.prod(units for units, _ in cluster.levels) == len(cluster.devices):
        return cluster.levels
    ports = [device.port for device in cluster.devices if device.port is not None]
    links = [*cluster.links.values(), *ports]
    return ((len(cluster.devices), min((link.bandwidth for link in links), default=math.inf)),)


@dataclass(frozen=True)
class StageTime(Period):
    """PipeDream's period: stages with replicas, synchronisation of weights, transfers beside compute."""

    bound_key = "stage_time"

    def loads(self, problem: Problem, placement: Placement) -> Loads:
        busy, receive, send = _by_device(problem, placement)
        totals = Instance.of(problem).totals(placement.all_stages)
        slowest = np.maximum(busy, np.maximum(receive, send))
        return Loads(slowest, totals.forward_s, totals.backward_s, send, receive, True, placement.stages)

    def solved_by(self, solvers: Solvers[Answer]) -> Answer:
        return solvers.stage_time(self.contiguous)


def stage_time_s(
    problem: Problem, placement: Placement, cost: Cost = "released", count_transfers: bool = True
) -> float:
    """Seconds of the slowest stage or transfer, by PipeDream's formula.

    With `stages`, which must be in pipeline order, this is what the planner's programme says of them: at
    each level of the network, stages on the same units are one stage of that level. Without, each device
    runs alone what it holds, and for every two devices ``2 a / B`` competes, where `a` is the bytes of the
    variables made on the one and read on the other, and B the bandwidth of the level that joins them.

    Raises:
        ConfigError: replicas take uneven turns, which the formula does not have.
    """
    return float(_by_device(problem, placement, cost, count_transfers).max(initial=0.0))


def _by_device(
    problem: Problem, placement: Placement, cost: Cost = "released", count_transfers: bool = True
) -> Floats:
    """[3, D] seconds that a device computes and synchronises, receives, and sends, all at once."""
    formula = Formula(levels_of(problem), cost, count_transfers)
    layers = Layers.of(problem)
    for s, stage in enumerate(placement.stages):
        if len(set(stage.parts.values())) > 1:
            raise ConfigError(
                f"PipeDream's time of a stage is of replicas that take as many micro-batches each, and those "
                f"of stage {s} take uneven turns: minimise what is simulated."
            )
    if placement.stages:
        return _Score(problem, formula, layers, placement.stages).by_device()
    return _without_stages(problem, placement, formula, layers)


class _Score:
    """The planner's value of given stages."""

    def __init__(self, problem: Problem, formula: Formula, layers: Layers, stages: Sequence[Stage]) -> None:
        self._formula = formula
        index = {name: v for v, name in enumerate(layers.names)}
        own = np.zeros((len(stages), layers.n), bool)
        for s, stage in enumerate(stages):
            own[s, [index[name] for name in stage.nodes if name in index]] = True
        self._seconds, self._weights = own @ layers.seconds, own @ layers.weight_bytes
        self._boundary = layers.boundary_bytes(np.logical_or.accumulate(own, axis=0))
        rank = {device.name: p for p, device in enumerate(problem.cluster.devices)}
        shape = [units for units, _ in reversed(formula.levels)]
        # [levels, replicas] of each stage: the unit at each level, outermost first
        self._ranks = [[rank[p] for p in stage.devices] for stage in stages]
        self._units = [np.array(np.unravel_index(ranks, shape)) for ranks in self._ranks]

    def by_device(self) -> Floats:
        """[3, D] seconds that a device computes and synchronises, receives, and sends."""
        by_stage = self._level(len(self._formula.levels) - 1, list(range(len(self._units))))
        seconds = np.zeros((3, self._formula.devices))
        for s, ranks in enumerate(self._ranks):
            seconds[:, ranks] = np.maximum(seconds[:, ranks], by_stage[:, [s]])
        return seconds

    def _level(self, level: int, stages: Sequence[int]) -> Floats:
        """[3, stages]. The formulas grow with what is within: the slowest's is the slowest of them."""
        if level < 0:
            spent = float(sum(self._seconds[s] for s in stages))
            return np.array([[spent], [0.0], [0.0]]).repeat(len(stages), axis=1)
        axis = len(self._formula.levels) - 1 - level
        groups: list[tuple[frozenset[int], list[int]]] = []
        for s in stages:
            units = frozenset(int(p) for p in self._units[s][axis])
            if not groups or groups[-1][0] != units:
                groups.append((units, []))
            groups[-1][1].append(s)
        parts: list[Floats] = []
        for g, (units, own) in enumerate(groups):
            inner = self._level(level - 1, own)
            weights: Floats = np.array(self._weights[own].sum())
            seconds = self._formula.stage(level, inner, weights, len(units), not g)
            seconds[1:] *= inner[1:] > 0
            if g:
                read = np.array(self._boundary[own[0] - 1])
                sent = float(self._boundary[own[-1]]) if own[-1] + 1 < len(self._units) else 0.0
                none: Floats = np.zeros(())
                crossing = (
                    self._formula.transfer(level, read, 0.0, len(units)),
                    self._formula.transfer(level, none, sent, len(units)),
                )
                seconds[1:] = np.maximum(seconds[1:], np.array(crossing)[:, None])
            parts.append(seconds)
        return np.concatenate(parts, axis=1)


def _without_stages(problem: Problem, placement: Placement, formula: Formula, layers: Layers) -> Floats:
    """[3, D] seconds that a device computes, receives, and sends: of its transfers the longest."""
    instance = Instance.of(problem)
    rank = {device.name: p for p, device in enumerate(problem.cluster.devices)}
    seconds = np.zeros((3, len(rank)))
    for v, name in enumerate(layers.names):
        seconds[0, rank[placement.device_of[name]]] += layers.seconds[v]
    if not formula.count_transfers:
        return seconds
    where, crossing = instance.encode(placement.device_of), np.zeros((len(rank), len(rank)))
    planned = set(layers.names)
    for u, source in enumerate(instance.producer):
        if instance.names[source] in planned:
            p = where[source]
            readers = [int(w) for w in instance.consumers[u] if instance.names[w] in planned]
            for q in {int(where[w]) for w in readers} - {int(p)}:
                crossing[p, q] += instance.nbytes[u]
    for p, q in zip(*np.nonzero(crossing), strict=True):
        spent = 2 * float(crossing[p, q]) / _bandwidth(formula, int(p), int(q))
        seconds[1, q], seconds[2, p] = max(seconds[1, q], spent), max(seconds[2, p], spent)
    return seconds


def _bandwidth(formula: Formula, p: int, q: int) -> float:
    """Bytes per second of the innermost level whose unit above holds both devices."""
    for units, bandwidth in formula.levels:
        p, q = p // units, q // units
        if p == q:
            return bandwidth
    return formula.levels[-1][1]
