"""FastT's two algorithms read off the page: everything anew each time, by recursion and plain lists."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

from netsplit.errors import RewriteError
from netsplit.graph.ir import Graph
from netsplit.graph.quotient import atoms_of
from netsplit.partition import Problem
from netsplit.rewrite import Rewrite, Split, applied, copies_after, rewritten_costs, split_axes

Task = tuple[str, str]  # "f" or "b", and the node


@dataclass
class Steps:
    """Tasks of one step, in a topological order, and what feeds them: (task, [bytes of each variable])."""

    order: list[Task]
    feeds: dict[Task, list[tuple[Task, list[int]]]]

    @classmethod
    def of(cls, graph: Graph) -> Steps:
        reached = graph.requires_backward
        trained = [v for v, node in graph.nodes.items() if any(k in reached for k in node.outputs if k)]
        order = [("f", v) for v in graph.nodes] + [("b", v) for v in reversed(trained)]
        feeds: dict[Task, list[tuple[Task, list[int]]]] = {t: [] for t in order}
        for v in trained:
            feeds["b", v].append((("f", v), []))
        for v, node in graph.nodes.items():
            for u in graph.predecessors[v]:
                read = [k for k in node.inputs if graph.variables[k].producer == u]
                feeds["f", v].append((("f", u), [graph.variables[k].nbytes for k in read]))
                back = [graph.variables[k].nbytes for k in read if k in reached]
                if back and v in trained:
                    feeds["b", u].append((("b", v), back))
        return cls(order, feeds)


@dataclass
class Timed:
    """What DPOS makes of a problem."""

    problem: Problem
    device_of: dict[str, int]
    finish_s: float

    def seconds(self, task: Task, p: int) -> float:
        return _seconds(self.problem, task, p)


def _seconds(problem: Problem, task: Task, p: int) -> float:
    node = problem.costs.devices[problem.cluster.devices[p].kind].nodes[task[1]]
    return node.forward_s if task[0] == "f" else node.backward_s


def _message_s(problem: Problem, sizes: list[int], p: int, q: int) -> float:
    names = [device.name for device in problem.cluster.devices]
    if p == q:
        return 0.0
    link = problem.cluster.links[names[p], names[q]]
    return len(sizes) * link.latency_s + sum(sizes) * link.seconds_per_byte


def _path(steps: Steps, task_s, edge_s) -> tuple[dict[Task, float], list[str]]:
    """Ranks, and nodes from the task of the largest one to the successor of the largest, and so on."""
    after: dict[Task, list[tuple[Task, list[int]]]] = {t: [] for t in steps.order}
    for t, feeds in steps.feeds.items():
        for u, sizes in feeds:
            after[u].append((t, sizes))

    @cache
    def rank(t: Task) -> float:
        return task_s(t) + max((edge_s(t, s, sizes) + rank(s) for s, sizes in after[t]), default=0.0)

    ranks = {t: rank(t) for t in steps.order}
    nodes: list[str] = []
    options = list(steps.order)
    while options:
        t = min(options, key=lambda t: (-ranks[t], t[1] not in nodes, steps.order.index(t)))
        if t[1] not in nodes:
            nodes.append(t[1])
        options = [s for s, _ in after[t]]
    return ranks, nodes


def _earliest(busy: list[tuple[float, float]], ready: float, seconds: float) -> float:
    starts = sorted([ready, *(end for _, end in busy if end > ready)])
    return next(s for s in starts if all(s >= end or s + seconds <= begin for begin, end in busy))


def dpos(problem: Problem) -> Timed:
    """Algorithm 1, where memory is ample."""
    graph, devices = problem.graph, range(len(problem.cluster.devices))
    steps = Steps.of(graph)
    pairs = [(p, q) for p in devices for q in devices if p != q]
    ranks, path = _path(
        steps,
        lambda t: max(_seconds(problem, t, p) for p in devices),
        lambda _t, _s, sizes: max((_message_s(problem, sizes, p, q) for p, q in pairs), default=0.0),
    )
    trained = {v for kind, v in steps.order if kind == "b"}
    atom = {v: members for members in atoms_of(graph) for v in members}
    device_of: dict[str, int] = {}
    path_device = -1
    busy: list[list[tuple[float, float]]] = [[] for _ in devices]
    finish: dict[Task, float] = {}

    def both_s(v: str, p: int) -> float:
        return _seconds(problem, ("f", v), p) + (_seconds(problem, ("b", v), p) if v in trained else 0.0)

    def ready_s(t: Task, p: int) -> float:
        came = (finish[u] + _message_s(problem, sizes, device_of[u[1]], p) for u, sizes in steps.feeds[t])
        return max(came, default=0.0)

    for t in sorted(steps.order, key=lambda t: -ranks[t]):
        v = t[1]
        if v not in device_of:
            if v in path:
                if path_device < 0:
                    left = [u for u in path if u not in device_of]
                    path_device = min(devices, key=lambda p: sum(both_s(u, p) for u in left))
                chosen = path_device
            else:
                options = []
                for p in devices:
                    own = _seconds(problem, t, p)
                    back = _seconds(problem, ("b", v), p) if v in trained else 0.0
                    ended = _earliest(busy[p], ready_s(t, p), own) + own
                    options.append((ended + back, p != path_device, p))
                chosen = min(options)[2]
            device_of |= dict.fromkeys(atom[v], chosen)
        p = device_of[v]
        own = _seconds(problem, t, p)
        start = _earliest(busy[p], ready_s(t, p), own)
        finish[t] = start + own
        if own > 0:
            busy[p].append((start, finish[t]))
    return Timed(problem, device_of, max(finish.values()) + _sums_s(problem, device_of))


def _sums_s(problem: Problem, device_of: dict[str, int]) -> float:
    """Rings over the devices with copies of the same weights, one after another."""
    graph, names = problem.graph, [device.name for device in problem.cluster.devices]
    weights = {init.held_as: init.nbytes for init in graph.initializers.values() if init.requires_grad}
    there = {
        k: sorted({
            device_of[v] for v, node in graph.nodes.items()
            if any(graph.initializers[own].held_as == k for own in node.initializers)
        })
        for k in weights
    }  # fmt: skip
    total = 0.0
    for group in {tuple(devices) for devices in there.values() if len(devices) > 1}:
        nbytes = sum(weights[k] for k in weights if tuple(there[k]) == group)
        links = [
            problem.cluster.links[names[p], names[q]]
            for p, q in zip(group, group[1:] + group[:1], strict=True)
        ]
        piece_s = max(link.latency_s + link.seconds_per_byte * nbytes / len(group) for link in links)
        total += 2 * (len(group) - 1) * piece_s
    return total


def os_dpos_start(problem: Problem, begin: tuple[Rewrite, ...]) -> Timed:
    """DPOS of the graph with `begin` done."""
    return dpos(_cut(problem, begin))


def os_dpos(problem: Problem, begin: tuple[Rewrite, ...] = ()) -> tuple[tuple[Rewrite, ...], Timed]:
    """Algorithm 2, from the graph with `begin` done already."""
    done, best = begin, dpos(_cut(problem, begin))
    while True:
        split, tried = _best_split(problem, done, best)
        if tried is None or tried.finish_s >= best.finish_s * (1 - 1e-9):
            return done, best
        done, best = (*done, *split), tried


def _best_split(problem: Problem, done: tuple[Rewrite, ...], best: Timed):
    graph = best.problem.graph
    for v in _longest_first(best):
        axes = split_axes(graph, v)
        counts = range(2, len(problem.cluster.devices) + 1)
        options = [
            Split(v, axis, tuple(len(range(i, size, n)) for i in range(n)))
            for axis, size in axes.items()
            for n in counts
            if n <= size
        ]
        if options:
            tried = []
            for split in options:
                with suppress(RewriteError):
                    tried.append(((split,), dpos(_cut(problem, (*done, split)))))
                    copied = (split, *copies_after(graph, (split,)))
                    if len(copied) > 1:
                        tried.append((copied, dpos(_cut(problem, (*done, *copied)))))
            return min(tried, key=lambda each: each[1].finish_s, default=(None, None))
    return None, None


def _longest_first(best: Timed) -> list[str]:
    problem, where = best.problem, best.device_of
    steps = Steps.of(problem.graph)
    _, path = _path(
        steps,
        lambda t: _seconds(problem, t, where[t[1]]),
        lambda t, s, sizes: _message_s(problem, sizes, where[t[1]], where[s[1]]),
    )
    trained = {v for kind, v in steps.order if kind == "b"}

    def seconds(v: str) -> float:
        back = _seconds(problem, ("b", v), where[v]) if v in trained else 0.0
        return _seconds(problem, ("f", v), where[v]) + back

    return sorted(path, key=seconds, reverse=True)


def _cut(problem: Problem, splits: tuple[Rewrite, ...]) -> Problem:
    graph = applied(problem.graph, splits)
    return replace(problem, graph=graph, costs=rewritten_costs(problem.costs, problem.graph, graph))
