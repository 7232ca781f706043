"""Operators in parts that are measured although they are estimated not to gain.

    cuts ──► where what was never measured takes nothing ──► those that may gain ──► the first few measured

An estimate that is too low is found out, since what leads by it is measured; one that is too high hides what
would lead. So FastT takes 0 for a cost that is missing, and learns it from the iterations that follow; here
it is learnt before a plan is chosen.

Source: Yi et al., "Fast Training of Deep Learning Models over Multiple GPUs" (FastT), Middleware 2020, on its
pre-training stage.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from netsplit import rewrite
from netsplit.errors import ConfigError, RewriteError
from netsplit.graph.ir import Graph
from netsplit.partition.base import Problem
from netsplit.partition.common.homes import devices_of_nodes
from netsplit.partition.engines.search import SLIGHT
from netsplit.placement.placement import Placement, SolverReport
from netsplit.placement.priority import topological_priority
from netsplit.profile.costs import Costs, NodeSeconds
from netsplit.profile.operator_keys import operator_key, unmeasured
from netsplit.rewrite.records import Rewrite, Split, proportioned

__all__ = ["Explored", "Explorer", "PromisingCut", "cuts_of_longest"]

log = logging.getLogger(__name__)

MOST = 6  # cuts that are measured
WORTH = 0.05  # of the time, at least, is what they may gain
OPERATORS = 3  # kinds of them, of the busiest device, that are cut along all of their dimensions
WALKS = 20  # over what is measured, about, alone and among its neighbours (`profile.measure.parts`)
CALL_S = 0.5  # that a measurement takes beside them, about


@dataclass(frozen=True)
class Explored:
    """What was measured although it is estimated not to gain; by default nothing."""

    origins: tuple[str, ...] = ()
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return {"cuts": list(self.origins), "seconds": self.seconds}


@dataclass(frozen=True, eq=False)
class PromisingCut:
    """What may be done to a graph, and what it would bring at best."""

    origin: str
    rewrites: tuple[Rewrite, ...]
    placement: Placement  # its parts side by side
    least_s: float  # an iteration, where what was never measured takes nothing
    measuring_s: float  # to be expected


@dataclass(eq=False)
class Explorer:
    """Chooses what is measured, of the cuts that it is told.

    Args:
        problem: of whole operators, with a `simulator`; it has what is known of parts.
        than_s: what is not faster does not gain.
        limit_s: for measuring, by what is to be expected of it: so another session, which has kept some of
            it, takes the same.
        whole: where whole operators are; those that it does not have are on the first device.
    """

    problem: Problem
    than_s: float
    limit_s: float
    whole: Mapping[str, str]
    measured: list[PromisingCut] = field(default_factory=list)
    waiting: list[PromisingCut] = field(default_factory=list)  # most promising first
    began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.began_s = self.problem.metered_s()

    @property
    def explored(self) -> Explored:
        origins = tuple(each.origin for each in self.measured)
        return Explored(origins, self.problem.metered_s() - self.began_s)

    def consider(self, origin: str, rewrites: tuple[Rewrite, ...]) -> None:
        """A cut, which is forgotten where it cannot gain, or needs no exploring: by the estimate it gains."""
        cut = self._weighed(origin, rewrites)
        if cut is not None:
            insort(self.waiting, cut, key=_least_s)

    def measure(self) -> Problem:
        """The first few that may gain by all that is known then; the problem, with what they take."""
        left_s = self.limit_s
        while self.waiting and len(self.measured) < MOST:
            before = self.waiting.pop(0)
            cut = self._weighed(before.origin, before.rewrites)
            if cut is None:
                continue
            if cut.least_s > before.least_s:  # some of it was measured with another
                insort(self.waiting, cut, key=_least_s)
                continue
            if cut.measuring_s > left_s:
                continue
            left_s -= cut.measuring_s
            try:
                self.problem = self.problem.with_measured_parts(cut.rewrites)
            except ConfigError as refusal:
                log.info("%s skipped: %s", cut.origin, refusal)
                continue
            log.debug("%s was measured, although it is estimated not to gain", cut.origin)
            self.measured.append(cut)
        return self.problem

    def _weighed(self, origin: str, rewrites: tuple[Rewrite, ...]) -> PromisingCut | None:
        given = self.problem
        try:
            own = given.rewritten(rewrites)
            simulator = own.simulator
            assert simulator is not None
            device_of = devices_of_nodes(own.graph, own.cluster.names, self.whole)
            order = topological_priority(own.graph, own.graph.position)
            report = SolverReport("feasible", 0.0)
            placement = Placement("auto", device_of, order, report, rewrites=own.graph.rewrites)
            free, measuring_s = _free(given.graph, own)
            if simulator(placement).iteration_s < (1 - SLIGHT) * self.than_s:
                return None
            least_s = simulator.moved_to(simulator.cluster, free)(placement).iteration_s
        except (ConfigError, RewriteError) as refusal:
            log.debug("no %s: %s", origin, refusal)
            return None
        if least_s >= (1 - WORTH) * self.than_s:
            return None
        return PromisingCut(origin, rewrites, placement, least_s, measuring_s)


def _least_s(cut: PromisingCut) -> float:
    return cut.least_s


def _free(before: Graph, own: Problem) -> tuple[Costs, float]:
    """Costs by which what was never measured takes nothing; and the seconds that it takes to measure it."""
    devices, measuring_s = dict(own.costs.devices), 0.0
    for kind in {device.kind for device in own.cluster.devices}:
        each = devices[kind]
        unknown = unmeasured(each, before, own.graph)
        devices[kind] = replace(each, nodes={**each.nodes, **dict.fromkeys(unknown, NodeSeconds(0.0, 0.0))})
        one_of = {key: name for name, key in unknown.items()}
        if one_of:
            measuring_s += CALL_S + WALKS * sum(each.nodes[name].total_s for name in one_of.values())
    return replace(own.costs, devices=devices), measuring_s


def cuts_of_longest(
    problem: Problem, whole: Mapping[str, str], proportions: Sequence[tuple[float, ...]]
) -> Iterator[tuple[str, tuple[Rewrite, ...]]]:
    """The operators that take most of the busiest device's seconds, each along all of its dimensions.

    Of those that are alike one is cut, as what is measured of it is known of all.

    Args:
        whole: where they are; without any all are on the first device.
        proportions: of the parts, of which there are as many as devices.
    """
    graph, costs, kind_of = problem.graph, problem.costs, {d.name: d.kind for d in problem.cluster.devices}
    first = problem.cluster.devices[0].name
    seconds = {v: costs.total_s(v, kind_of[whole.get(v, first)]) for v in graph.nodes}
    loads: Counter[str] = Counter()
    for v in graph.nodes:
        loads[whole.get(v, first)] += seconds[v]  # type: ignore[assignment]
    busiest = max(loads, key=lambda device: loads[device])
    alike: dict[str, list[str]] = {}
    for v, node in graph.nodes.items():
        if whole.get(v, first) == busiest:
            alike.setdefault(operator_key(graph, node), []).append(v)
    count = 0
    for names in sorted(alike.values(), key=lambda names: -sum(seconds[v] for v in names)):
        longest = max(names, key=lambda v: seconds[v])
        axes = rewrite.split_axes(graph, longest)
        for axis, size in axes.items():
            for sizes in dict.fromkeys(proportioned(size, each) for each in proportions):
                if sizes:
                    cut = Split(longest, axis, sizes)
                    yield f"{longest} in parts along {axis}", (*graph.rewrites, cut)
        count += bool(axes)
        if count == OPERATORS:
            return
