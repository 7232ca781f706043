"""`unity`: what is cut along which dimension over which devices, and what is computed twice.

    graph ──► candidates (substitutions) ──► best_mapping of each ──► the best, and the captured graph
          ──► lowered and simulated beside data parallelism, columns and rows, one device ──► annealed

Source: Unger et al., "Unity: Accelerating DNN Training Through Joint Optimization of Algebraic
Transformations and Parallelization", OSDI 2022, section 5.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import inf, sqrt
from typing import Literal

from netsplit import rewrite
from netsplit.errors import ConfigError, InfeasibleError, RewriteError, TimeLimitError
from netsplit.graph.ir import Graph
from netsplit.graph.quotient import topological_priority
from netsplit.partition.base import Problem
from netsplit.partition.methods.annealed import LISTED, annealed
from netsplit.partition.methods.os_dpos import OsDpos
from netsplit.partition.methods.unity import experts
from netsplit.partition.methods.unity.choices import (
    DIMENSIONS,
    Dimension,
    FewViews,
    Machines,
    TaskKind,
    devices_of,
    tasks_of_mapping,
)
from netsplit.partition.methods.unity.costed import Costed, Devices, Known
from netsplit.partition.methods.unity.mapping import Mapped, best_mapping
from netsplit.partition.methods.unity.substitutions import Substituted, Tasks, best_graph, rules_of
from netsplit.partition.partitioner import Choice, Partitioner, fill_in_order, infeasible, missing_bytes
from netsplit.placement.placement import TOLD, Placement, SolverReport
from netsplit.profile.costs import Costs
from netsplit.rewrite.records import Rewrite

__all__ = ["Unity"]

log = logging.getLogger(__name__)

Search = Literal["joint", "paper", "sequential"]
Before = Callable[[Costed], Mapping[str, int]]

RAISES, BETWEEN = 8, 4  # prices of bytes
SMALL = 800  # operators times devices, for which `os_dpos` and annealing are quick
MUCH = 1.2  # times what was estimated of parts, from which the programme is run again with what was measured
LESS = 0.99  # times the seconds before, below which other devices are worth it
STARTS, ANNEALED_S, NEAREST = 4, 2.0, 5  # of annealing, and plans where none fits; moves are counted


@dataclass(frozen=True, eq=False)
class _Judged:
    """A plan, and what the simulator foresees of it."""

    origin: str
    placement: Placement
    seconds: float
    missing: int
    over: Mapping[str, int]  # device -> bytes over its capacity
    mapped: Mapped | None = None
    searched: Substituted | None = None

    @property
    def rank(self) -> tuple[bool, float]:
        return self.missing > 0, float(self.missing or self.seconds)


@dataclass(frozen=True)
class Unity(Partitioner):
    """Tasks and machine views of all operators together, by a dynamic programme over the graph.

    An operator may be cut along its samples, columns, what it sums over, or heads, and be computed several
    times. The programme adds up seconds of computing, moving between two layouts, and sums of copies'
    gradients, for each graph that rules of the algebra make. Where the simulated peaks do not fit, bytes get
    a price, which rises until they do. What is simulated to take least of its answer, of data parallelism, of
    columns and rows, and of one device is answered (`notes["answered"]`).

    Args:
        dimensions: along which operators may be cut.
        split: branches may be on devices of their own.
        cache: tables of alike parts of the graph are computed once.
        algebra: operators may be replaced by others.
        rules: "builtin", "generated", or a file of FlexFlow's, which is proven first.
        search: "joint"; "paper": tasks are changed one by one, as algebra is, and views are mapped;
            or "sequential": the graph that is fastest on one device, and then its mapping.
        alpha: of candidates, how many times the best they may cost to be looked at.
        budget: how many candidates get a cost.
        piece: about how many operators are searched at once.
    """

    name = "unity"
    optimises = "one step's time by a cost model: operators in turn, transfers in between"

    dimensions: Sequence[Dimension] = DIMENSIONS
    split: bool = True
    cache: bool = True
    algebra: bool = True
    rules: str = "builtin"
    search: Search = "joint"
    alpha: float = 1.05
    budget: int = 300
    piece: int = 20

    def __post_init__(self) -> None:
        known = not isinstance(self.dimensions, str) and set(self.dimensions) <= set(DIMENSIONS)
        self.require("dimensions", known, f"a list of {', '.join(DIMENSIONS)}")
        self.require("alpha", isinstance(self.alpha, int | float) and self.alpha >= 1, "1 or more")
        self.require_choice("search", Search)
        for name in ("budget", "piece"):
            value = getattr(self, name)
            self.require(name, type(value) is int and value >= 1, "a whole number of 1 or more")

    def cuts_operators(self, problem: Problem) -> bool:
        return True

    def choose(self, problem: Problem) -> Choice:
        began = time.perf_counter()
        if problem.graph.rewrites:
            raise RewriteError("the graph has already been rewritten: give unity the captured graph.")
        search = UnitySearch(self, problem)
        judged = [*search.programmes()]
        searched_s = time.perf_counter() - began
        judged += search.others()
        if all(each.missing for each in judged):
            judged += search.filled()
        estimated_s = min(judged, key=lambda each: each.rank).seconds
        judged = search.measured(judged)
        if min(judged, key=lambda each: each.rank).seconds > MUCH * estimated_s:
            anew = UnitySearch(self, search.problem, search.refused)
            judged = search.measured([*judged, *anew.programmes()])
        judged = search.measured([*judged, *search.annealed(judged)])
        best = min(judged, key=lambda each: each.rank)
        if best.missing:
            raise self._refusal(problem, best)
        expanded, left, ended_by = search.searched.expanded, search.searched.left, search.searched.ended_by
        why = "none left" if ended_by == "empty" else f"{left} left when the budget was used up"
        graphs = f"{expanded} graph{'s' * (expanded > 1)} searched in {searched_s:.2f} s, {why}"
        mapped = judged[0].mapped
        assert mapped is not None
        notes = {
            TOLD: f"answered by {best.origin}; {graphs}",
            "answered": best.origin,
            "programme_s": mapped.seconds,
            "substitutions": [list(each) for each in (best.searched.steps if best.searched else ())],
            "search_seconds": searched_s,
            "ended_by": ended_by,
            "expanded": expanded,
            "left": left,
            "by_neighbours": list(mapped.fixed),
            "foreseen_s": {each.origin: each.seconds for each in judged if each.seconds < inf},
        }
        rank = {name: float(i) for name, i in best.placement.priority.items()}
        rewrites = best.placement.rewrites
        seconds = best.seconds if best.seconds < inf else None
        return Choice(best.placement.device_of, rank, objective_s=seconds, notes=notes, rewrites=rewrites)

    def _refusal(self, problem: Problem, nearest: _Judged) -> InfeasibleError:
        """The refusal, with the plan that lacks least of all that were judged."""
        refusal = infeasible(problem, self.name)
        refusal.nearest = nearest.placement
        if left_out := [each for each in DIMENSIONS if each not in self.dimensions]:
            refusal.remedy = f", or cuts along {', '.join(left_out)}, which unity's dimensions leave out"
        return refusal

    def quick(
        self,
        problem: Problem,
        until: Callable[[], float],
        ends: Callable[[], float] = lambda: inf,
        than_s: Callable[[], float] = lambda: inf,
    ) -> Iterator[tuple[str, Placement]]:
        """What the programme finds with few views, and what it is called: what experts fix first, as that is
        soon found.

        Args:
            until: no more is begun when it is that late, on ``time.perf_counter``.
            ends: what was begun is left then.
            than_s: bytes get no higher price where what lacks some takes longer already.
        """
        if problem.graph.rewrites:
            return
        methods = [replace(self, algebra=False), self] if self.algebra else [self]
        searches = [UnitySearch(own, problem, until=until, ends=ends, than_s=than_s) for own in methods]
        machines, known = searches[0].plain
        for search in searches:
            search.plain = FewViews(**vars(machines)), known
        with suppress(TimeLimitError):
            for each in chain(searches[0].by_experts(), *(search.programmes() for search in searches)):
                yield each.origin, each.placement
                if time.perf_counter() > until():
                    return


@dataclass(eq=False)
class UnitySearch:
    """The search of one method on one problem; `until`, `ends` and `than_s` are those of `Unity.quick`."""

    method: Unity
    problem: Problem
    refused: set[tuple[str, int]] = field(default_factory=set)
    stages: Mapping[str, Devices] = field(default_factory=dict)
    until: Callable[[], float] = lambda: inf
    ends: Callable[[], float] = lambda: inf
    than_s: Callable[[], float] = lambda: inf

    def __post_init__(self) -> None:
        self.plain = Machines.of(self.problem), Known()
        self.searched: Substituted
        self.mapped: Mapped
        self._unpriced()

    def _unpriced(self) -> None:
        """Bytes cost nothing, and pieces are as large as devices are fast."""
        self.machines, self.known = self.plain
        self.spread_s, self.price = 0.0, (0.0,) * len(self.machines.cluster.devices)

    def programmes(self) -> Iterator[_Judged]:
        """For the graph best by the search asked for, for that best on one device, and the captured one."""
        method, graph, known = self.method, self.problem.graph, set[str]()
        rules = rules_of(method.rules) if method.algebra else ()
        limits = method.alpha, method.budget, method.piece
        joint, paper = method.search == "joint", method.search == "paper"
        cost = self._alone_s if method.search == "sequential" else self._mapped_s
        self.searched = best_graph(graph, rules, cost, *limits, self._kinds if paper else None)
        tried = [("the programme", self.searched)]
        if not paper:
            tried.append(("the programme without algebra", Substituted(graph)))
        if joint and rules:
            tried.append(("algebra for one device", best_graph(graph, rules, self._alone_s, *limits)))
        for origin, searched in tried:
            key = rewrite.fingerprint(searched.best)
            if key in known:
                continue
            known.add(key)
            try:
                yield replace(self.programme(searched.best, origin, searched.tasks), searched=searched)
                if searched is self.searched and joint and rules and self.spread_s:
                    dear = best_graph(graph, rules, self._mapped_s, *limits)  # at the price of bytes now
                    tried.append(("the programme with algebra for less memory", dear))
            except RewriteError as refusal:
                if searched.best is graph:
                    raise
                log.debug("unity: skipped %s: %s", origin, refusal)

    def _mapped_s(self, graph: Graph, tasks: Tasks) -> float:
        costed = self._costed(graph, tasks if self.method.search == "paper" else None)
        return best_mapping(costed, cache=self.method.cache, split=self.method.split).seconds

    def _kinds(self, graph: Graph) -> dict[str, dict[TaskKind, None]]:
        """All tasks on all devices of operators that can be cut."""
        costed, every = self._costed(graph, None), tuple(range(len(self.machines.cluster.devices)))
        named = [(v, each.name) for v, each in enumerate(costed.vertices) if each.nodes]
        return {v: dict.fromkeys(each.kind for each in costed.options(i, every).choices) for i, v in named}

    def _alone_s(self, graph: Graph, tasks: Tasks) -> float:
        """Seconds on one of the devices, the fastest."""
        costs = self._costs(graph)
        return min(sum(costs.total_s(v, kind) for v in graph.nodes) for kind in costs.devices)

    def _costs(self, graph: Graph) -> Costs:
        return rewrite.rewritten_costs(self.problem.costs, self.problem.graph, graph)

    def programme(self, graph: Graph, origin: str, tasks: Tasks | None = None) -> _Judged:
        """The best that the programme finds, with a price of bytes under which its peaks fit: four times as
        much each time, and then between the best one's and the one before."""
        self._unpriced()
        best: _Judged | None = None
        low = high = before = 0.0
        for turn in range(RAISES + BETWEEN):
            try:
                now = self._lowered(graph, origin, tasks)
            except TimeLimitError:
                if best is None:
                    raise
                return best
            rising = turn < RAISES - 1
            if best is None or now.rank < best.rank:
                low, high, best = before if turn < RAISES else low, self.spread_s, now
            elif turn >= RAISES:
                low = self.spread_s
            late = now.seconds > self.than_s() or time.perf_counter() > self.until()
            if late or not (now.missing and (rising or high)):
                break
            self.known = Known(self.known.numbers, movement=self.known.movement)
            before, more = self.spread_s, 4 * self.spread_s or self.mapped.seconds / 2
            self.spread_s = more if rising else sqrt(max(low, high / 16) * high)
            devices = self.machines.cluster.devices
            room = tuple(float(each.capacity_bytes) for each in devices)
            if turn == RAISES // 2 and len({*room, *self.machines.speed}) > 2:
                # pieces as large as devices have room, and not as they are fast
                self.machines, self.spread_s = replace(self.machines, speed=room), self.mapped.seconds / 2
            elif turn > 1:  # bytes on what is over its capacity are dearer than on others
                over = (now.over.get(each.name, 0) > 0 for each in devices)
                self.price = tuple(o * self.spread_s / (4 * n) for o, n in zip(over, room, strict=True))
        assert best is not None
        return best

    def _lowered(
        self, graph: Graph, origin: str, tasks: Tasks | None = None, before: Before = lambda _: {}
    ) -> _Judged:
        """The best mapping without what cannot be lowered; `before`: numbers of choices made before it."""
        captured, cache, split = self.problem.graph, self.method.cache, self.method.split
        while True:
            costed = self._costed(graph, tasks)
            self.mapped = mapped = best_mapping(costed, before(costed), cache=cache, split=split)
            rewrites = (*graph.rewrites, *tasks_of_mapping(graph, mapped.choices, self.machines))
            try:
                made = rewrite.applied(captured, rewrites, scaled="samples") if rewrites else captured
            except RewriteError as refusal:
                name = refusal.operator
                choice = mapped.choices.get(name)
                if choice is None or not choice.axes:
                    raise
                log.debug("unity: choice for '%s' refused: %s", name, refusal)
                self.refused.add((name, len(choice.axes)))
                continue
            device_of = devices_of(made, mapped.choices, self.machines)
            return self._judged(origin, made, device_of, mapped)

    def _costed(self, graph: Graph, tasks: Tasks | None) -> Costed:
        problem = self.problem
        turns = 1 if problem.simulator is None else problem.simulator.turns.microbatches
        return Costed(
            graph, self._costs(graph), self.machines, tuple(self.method.dimensions), turns, self.spread_s,
            self.price, refused=frozenset(self.refused), tasks=tasks, known=self.known, stages=self.stages,
            ends=self.ends,
        )  # fmt: skip

    def others(self) -> Iterator[_Judged]:
        """Data parallelism, columns and rows, each device alone, and `os_dpos` on small graphs."""
        problem, graph = self.problem, self.problem.graph
        if problem.simulator is None:
            return
        classes = self.machines.classes
        for device in (
            name for p, name in enumerate(problem.cluster.names) if p == classes.index(classes[p])
        ):
            yield self._judged(f"one device ({device})", graph, dict.fromkeys(graph.nodes, device), None)
        yield from self.by_experts()
        asked_all = set(self.method.dimensions) == set(DIMENSIONS)  # `os_dpos` cuts along any
        if asked_all and len(graph) * len(problem.cluster.devices) <= SMALL:
            with suppress(InfeasibleError):
                placement = OsDpos().partition(replace(problem, known=None, improved=None, meter=None))
                yield self._simulated(OsDpos.name, placement, None)

    def by_experts(self) -> Iterator[_Judged]:
        """Data parallelism, and columns and rows, over all devices, over the first host, and in stages that
        are hosts; the programme decides what is left open."""
        graph, hosts = self.problem.graph, self.machines.hosts
        self._unpriced()
        if cut := experts.widest_cut(graph, len(hosts)):
            with suppress(RewriteError):
                yield self._lowered(graph, "columns and rows of the widest", cut)
        first = tuple(p for p, host in enumerate(hosts) if host == hosts[0])
        where = {"": {}, ", one host": dict.fromkeys(graph.nodes, first) if len(first) < len(hosts) else {}}
        where[", stages"] = experts.stages_of_hosts(self.problem, hosts)
        for said, self.stages in where.items():
            if said and not self.stages:
                continue
            for origin, wanted in experts.wanted_by_experts(graph):
                with suppress(RewriteError):
                    before = partial(experts.chosen_before, wanted=wanted)
                    yield self._lowered(graph, origin + said, before=before)
        with suppress(RewriteError):
            if self.stages:
                yield self.programme(graph, "the programme, stages")
        self.stages = {}

    def filled(self) -> Iterator[_Judged]:
        """Whole operators in topological order, each device filled before the next."""
        room = [each.capacity_bytes for each in self.problem.cluster.devices]
        if (device_of := fill_in_order(self.problem, room)) is not None:
            yield self._judged("devices filled in order", self.problem.graph, device_of, None)

    def measured(self, judged: list[_Judged]) -> list[_Judged]:
        """The plans by what devices measure of parts (`Problem.meter`), until the best's are measured."""
        done = {self.problem.graph.rewrites}
        while self.problem.meter is not None:
            rewrites = min(judged, key=lambda each: each.rank).placement.rewrites
            if rewrites in done:
                break
            done.add(rewrites)
            known = self.problem.with_measured_parts(rewrites)
            if known is not self.problem:
                self.problem = known
                now = [self._simulated(each.origin, each.placement, each.mapped) for each in judged]
                judged = [replace(n, searched=each.searched) for n, each in zip(now, judged, strict=True)]
        return judged

    def annealed(self, judged: Sequence[_Judged]) -> Iterator[_Judged]:
        """Other devices for the best, and the best of whole operators, of small problems; where nothing fits,
        for the nearest, until some does."""
        problem = self.problem
        ranked = sorted(judged, key=lambda each: each.rank)
        lacks = ranked[0].missing > 0
        small = len(problem.graph) * len(problem.cluster.devices) <= SMALL
        if problem.simulator is None or not (small or lacks):
            return
        whole = next((each for each in ranked if not each.placement.rewrites), None)
        begun = ranked[:NEAREST] if lacks else filter(None, dict.fromkeys((ranked[0], whole)))
        own = replace(problem, known=None, improved=None, meter=None)
        for each in begun:
            start, ends = each.placement, time.perf_counter() + ANNEALED_S
            again = annealed(own.rewritten(start.rewrites), start, STARTS, ends, LISTED)
            if again is not None:
                said = f"{each.origin}, devices annealed" if start.rewrites else "whole operators"
                now = replace(self._simulated(said, again, each.mapped), searched=each.searched)
                if now.missing < each.missing or now.seconds < LESS * each.seconds:
                    yield now
                if lacks and not now.missing:
                    return

    def _judged(self, origin: str, graph: Graph, device_of: dict[str, str], mapped: Mapped | None) -> _Judged:
        rewrites: tuple[Rewrite, ...] = graph.rewrites
        order = topological_priority(graph, graph.position)
        placement = Placement(Unity.name, device_of, order, SolverReport("heuristic", 0.0), rewrites=rewrites)
        return self._simulated(origin, placement, mapped)

    def _simulated(self, origin: str, placement: Placement, mapped: Mapped | None) -> _Judged:
        problem, simulator = self.problem, self.problem.simulator
        own = problem.rewritten(placement.rewrites)
        if simulator is None:
            used, devices = own.memory_model.by_device(placement.device_of), problem.cluster.devices
            over = {each.name: used.get(each.name, 0) - each.capacity_bytes for each in devices}
            return _Judged(origin, placement, inf, max(0, *over.values()), over, mapped)
        try:
            predicted = simulator(placement)
        except ConfigError as refusal:
            log.debug("unity: skipped %s: %s", origin, refusal)
            return _Judged(origin, placement, inf, 2**62, {}, mapped)
        peaks, devices = predicted.peak_bytes, simulator.cluster.devices
        over = {each.name: peaks.get(each.name, 0) - each.capacity_bytes for each in devices}
        missing = missing_bytes(own, placement, predicted, simulator.cluster)
        return _Judged(origin, placement, predicted.iteration_s, missing, over, mapped)
