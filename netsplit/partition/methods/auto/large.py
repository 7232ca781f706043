"""`auto` beyond some thousands of nodes, where a move takes milliseconds and methods' tables gigabytes.

fast methods ──► judged by the compiled step ──► best ─────────────────────────────┐
                                                  │                                ▼
intervals ──► the same problem of groups ──► portfolio and annealing ──► best ──► annealed whole ──► scored
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from netsplit.graph.ir import Graph, Node
from netsplit.graph.quotient import (
    DisjointSets,
    strong_components,
    successors,
    topological_order,
    topological_priority,
)
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Floats, Instance, Ints
from netsplit.partition.engines.search import Search
from netsplit.partition.methods.baechi.baechi import MTopo
from netsplit.partition.methods.baechi.etf import MEtf
from netsplit.partition.methods.baselines import Balanced, Layerwise, RoundRobin, Single
from netsplit.partition.methods.list_schedulers import Dpos, Heft
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.placement.placement import Placement, SolverReport
from netsplit.profile.costs import DeviceCosts, NodeSeconds
from netsplit.simulate.simulator import ONE_BATCH

__all__ = ["FAST_METHODS", "LARGE", "CoarseProblem", "intervals", "large_answer", "most_instructions"]

LARGE = 4000  # nodes
GROUPS = 1200
AFTER_S = 9e-5  # an instruction, for compiling, simulating and verifying the plan
MOST_AFTER = 0.6  # of the time, at most, for that and for scoring
FAST, COARSELY, END = 0.85, 0.88, 0.93  # of the rest: when methods, the search of groups, and all have ended
GROUPED = 0.6  # of the time that methods leave, for the search of groups; the rest is for the whole
HEAT = 0.003  # of the last search, which begins where another has ended
FAST_METHODS: tuple[Partitioner, ...] = (
    Single(), Layerwise(), RoundRobin(), Heft(), Balanced(), MTopo(), Dpos(), MEtf(),
)  # fmt: skip
"""In about the order of what they bring for their time, which grows like the graph; no replicas."""

TRIED = 3  # answers of the search of groups, on the whole graph


def intervals(instance: Instance, target: int) -> list[list[int]]:
    """About `target` groups of nodes, at most, in topological order.

    Units stay in one piece: groups that share one, and what lies between these, are one group.
    """
    crossing, work = _crossing_bytes(instance), (instance.forward_s + instance.backward_s).min(axis=1)
    number = np.zeros(instance.n, np.int64)
    number[_narrow(crossing, work, target)] = 1
    return _acyclic(instance, np.cumsum(number))


def _crossing_bytes(instance: Instance) -> Ints:
    """[n] bytes of variables that are made before a node and read at it or later."""
    change = np.zeros(instance.n + 2, np.int64)
    for u, v in enumerate(instance.producer.tolist()):
        readers = instance.consumers[u]
        change[v + 1] += instance.nbytes[u]
        change[int(readers[-1]) + 1] -= instance.nbytes[u]
    return np.cumsum(change)[: instance.n]


def _narrow(crossing: Ints, work: Floats, count: int) -> list[int]:
    """Cuts into about `count` parts of like work, each moved by up to half a part to where least crosses."""
    total = np.cumsum(work)
    if count < 2 or len(work) < 2 or total[-1] <= 0:
        return []
    cuts: list[int] = []
    for i in range(1, min(count, len(work))):
        low, high = np.searchsorted(total, [(i - 0.5) * total[-1] / count, (i + 0.5) * total[-1] / count])
        low, high = max(int(low), 1), min(max(int(high), int(low) + 1), len(work))
        if low < high:
            cuts.append(low + int(crossing[low:high].argmin()))
    return sorted(set(cuts))


def _acyclic(instance: Instance, number: Ints) -> list[list[int]]:
    """The groups, joined where a unit lies in several."""
    count = int(number[-1]) + 1
    units: dict[int, set[int]] = {}
    for v, unit in enumerate(instance.unit_of.tolist()):
        units.setdefault(unit, set()).add(int(number[v]))
    ties = [(min(own), g) for own in units.values() if len(own) > 1 for g in own if g != min(own)]
    groups: list[list[int]] = [[] for _ in range(count)]
    if not ties:
        for v, g in enumerate(number.tolist()):
            groups[g].append(v)
        return groups
    pairs = {
        (int(number[instance.producer[u]]), int(number[v]))
        for u in range(len(instance.producer))
        for v in instance.consumers[u]
    }
    label = strong_components(count, [*pairs, *ties, *((b, a) for a, b in ties)])
    after = successors(max(label) + 1, ((label[a], label[b]) for a, b in pairs))
    rank = {each: i for i, each in enumerate(topological_order(after, int))}
    for v, g in enumerate(number.tolist()):
        groups[rank[label[g]]].append(v)
    return [group for group in groups if group]


@dataclass(frozen=True, eq=False)
class CoarseProblem:
    """`problem` is over groups; a placement of it is one of the whole, and the other way by most work."""

    whole: Instance
    problem: Problem
    group_of: Ints  # [n]

    @classmethod
    def of(cls, whole: Instance, groups: Sequence[Sequence[int]]) -> CoarseProblem:
        """The problem of [G] groups of nodes, in topological order, between which there is no circle."""
        group_of = np.zeros(whole.n, np.int64)
        for g, members in enumerate(groups):
            group_of[list(members)] = g
        problem = whole.problem
        costs = replace(
            problem.costs,
            devices={
                kind: _summed(each, whole.names, groups) for kind, each in problem.costs.devices.items()
            },
        )
        graph = _grouped(problem.graph, groups, group_of)
        return cls(whole, replace(problem, graph=graph, costs=costs, simulator=None, known=None), group_of)

    def refined(self, where: Ints) -> Ints:
        """[n] devices, of [G]."""
        return where[self.group_of]

    def coarsened(self, where: Ints) -> Placement:
        """The placement of groups that [n] devices suggest: an atom goes where most of its seconds are."""
        coarse = Instance.of(self.problem)
        whole, atom_of = self.whole, coarse.atom_of[self.group_of]
        seconds = (whole.forward_s + whole.backward_s)[np.arange(whole.n), where]
        there = np.zeros((len(coarse.atoms), len(whole.devices)))
        np.add.at(there, (atom_of, where), seconds + 1e-12)
        device_of = coarse.decode(there.argmax(axis=1)[coarse.atom_of])
        order = topological_priority(self.problem.graph, self.problem.graph.position)
        report, rewrites = SolverReport("heuristic", 0.0), self.problem.graph.rewrites
        return Placement("coarsened", device_of, order, report, rewrites=rewrites)


def _summed(costs: DeviceCosts, names: Sequence[str], groups: Sequence[Sequence[int]]) -> DeviceCosts:
    nodes = {}
    for g, members in enumerate(groups):
        own = [costs.nodes[names[v]] for v in members]
        nodes[_name(g)] = NodeSeconds(
            sum(each.forward_s for each in own),
            sum(each.backward_s for each in own),
            sum(each.weight_s for each in own),
        )
    return replace(costs, nodes=nodes, transients={})


def _grouped(graph: Graph, groups: Sequence[Sequence[int]], group_of: Ints) -> Graph:
    """What only a group itself reads stays, for its bytes, as a variable that nobody reads."""
    nodes = list(graph)
    name_of = {node.name: _name(int(group_of[v])) for v, node in enumerate(nodes)}
    variables = {}
    for k, each in graph.variables.items():
        home = None if each.producer is None else name_of[each.producer]
        readers = dict.fromkeys(name_of[v] for v in each.consumers)
        readers.pop(home, None)  # type: ignore[arg-type]
        ordered = sorted(readers, key=lambda name: int(name[1:]))
        variables[k] = replace(each, producer=home, consumers=tuple(ordered))
    merged = {}
    for g, members in enumerate(groups):
        own = [nodes[v] for v in members]
        outputs = tuple(k for node in own for k in node.outputs)
        inside = set(outputs)
        merged[_name(g)] = Node(
            _name(g),
            "netsplit.group",
            tuple(dict.fromkeys(k for node in own for k in node.inputs if k not in inside)),
            outputs,
            tuple(dict.fromkeys(k for node in own for k in node.initializers)),
            saved=tuple(dict.fromkeys(k for node in own for k in node.saved)),
            saved_bytes=sum(node.saved_bytes for node in own),
        )
    sets = DisjointSets(len(groups))
    for first, *rest in graph.colocated:
        for name in rest:
            sets.merge(int(group_of[graph.position[first]]), int(group_of[graph.position[name]]))
    joined = tuple(tuple(map(_name, each)) for each in sets.sets() if len(each) > 1)
    return replace(graph, nodes=merged, variables=variables, units=(), colocated=joined)


def _name(g: int) -> str:
    return f"g{g}"


def large_answer(problem: Problem, starts: int, deadline: float, simulated: bool) -> Choice:
    """The best that fast methods and a search of groups find, improved as long as the time allows.

    Searched by the compiled step under the schedule, or the one nearest to it, and by the count of bytes;
    where that is not the score, the best answers are compared by their scores in the end.

    Args:
        deadline: on ``time.perf_counter``.
        simulated: the iteration of `Problem.simulator` is minimised, else a step of one batch.

    Raises:
        InfeasibleError: nothing that fits was found.
    """
    turns = problem.simulator.turns if simulated and problem.simulator is not None else None
    search = Search(problem, starts, deadline, FAST_METHODS, "auto", turns=turns or ONE_BATCH)
    search.compile()
    began, limit_s = search.started, search.deadline - search.started
    search.portfolio(began + FAST * (1 - MOST_AFTER) * limit_s, patience=1.0)
    ends = search.deadline
    if search.best is not None:
        after_s = AFTER_S * most_instructions(search.instance, search.best.where, search.turns.microbatches)
        scoring_s = search.scoring_s()
        limit_s -= min(after_s + scoring_s, MOST_AFTER * limit_s)
        ends -= min(after_s, MOST_AFTER / 2 * (ends - began))
    search.deadline = began + END * limit_s
    now = time.perf_counter()
    _search_groups(search, starts, now + GROUPED * (began + COARSELY * limit_s - now))
    _refine(search)
    search.score(ends)
    return search.choice(search.best)


def most_instructions(instance: Instance, where: Ints, microbatches: int) -> int:
    """Instructions of a program of one-node segments: what computes, and both ends of each transfer."""
    counts = np.diff(instance.consumers.starts)
    writer = np.repeat(np.arange(len(counts)), counts)
    read = np.unique(writer * len(instance.devices) + where[instance.consumers.items])
    u, device = np.divmod(read, len(instance.devices))
    crossing = u[device != where[instance.producer[u]]]
    ends = 2 * (len(crossing) + int(instance.requires_backward[crossing].sum()))
    return microbatches * (2 * instance.n + ends)


def _search_groups(search: Search, starts: int, until: float) -> None:
    """Offers what a search of groups of nodes finds."""
    if time.perf_counter() >= until:
        return
    groups = intervals(search.instance, GROUPS)
    coarse = CoarseProblem.of(search.instance, groups)
    if search.unreplicated is not None:
        known = coarse.coarsened(search.unreplicated.where)
        coarse = replace(coarse, problem=replace(coarse.problem, known=known))
    inner = Search(coarse.problem, starts, until, FAST_METHODS, "auto, of groups", turns=search.turns)
    inner.run(None)
    search.notes["groups"] = {"count": len(groups), "moves": inner.notes["moves"]}
    best = [] if inner.best is None else [inner.best.where]
    wheres = {where.tobytes(): where for where in (*best, *(each.where for each in inner.results))}
    for where in list(wheres.values())[:TRIED]:
        whole = coarse.refined(where)
        if search.instance.fits(whole):
            search.offer(search.scheduled(whole, "a search of groups"))


def _refine(search: Search) -> None:
    """Anneals the best placement of the whole graph until the time is up, if it can try every node."""
    start = search.unreplicated
    left_s = search.deadline - time.perf_counter()
    if start is None or left_s <= search.instance.n * search.move_time_s(start.where):
        return
    clock = threading.Timer(left_s, search.stop)
    clock.daemon = True
    clock.start()
    try:
        moves = int(0.9 * left_s / search.move_s)  # as cold as the time allows
        for one in search.anneal_each([start.where] * 2, moves, HEAT, 2):
            if np.isfinite(one.value_s):
                search.offer(one)
        search.notes["moves"] += 2 * moves
    finally:
        clock.cancel()
        search.stop()
    search.notes["stopped"] = "time"
