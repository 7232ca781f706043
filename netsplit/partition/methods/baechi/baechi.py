"""`m_topo`, and what Baechi's m-ETF and m-SCT share: integer time, order, memory, the authors' own makespan.

Source: Jeon et al., "Baechi: Fast Device Placement of Machine Learning Graphs", SoCC 2020, with the
authors' code (github beomyeol/baechi: placer/device.py, placer_utils.py, virtual_scheduler.py, m_topo.py).
Time is counted in whole ticks, a microsecond in their code, and every operator takes one at least.

Ties go by the order of the graph's nodes. How their values on PipeDream's graphs are computed:
`benchmarks.settings`.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from netsplit.graph.ir import Graph
from netsplit.graph.quotient import topological_order
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Instance, Ints
from netsplit.partition.engines.insertion.tasks import Room
from netsplit.partition.partitioner import Choice, Partitioner, fill_in_order, infeasible

__all__ = [
    "BaechiMemory",
    "BaechiProblem",
    "Edge",
    "MTopo",
    "StaticMemory",
    "Times",
    "even_level",
    "footprints",
    "memory_for",
    "receive",
    "virtual_makespan_s",
]

Times = Literal["forward", "training"]
BaechiMemory = Literal["static", "kept"]
TopoOrder = Literal["captured", "breadth_first"]

Edge = tuple[int, int, tuple[int, ...]]  # producer, consumer, the variables that pass


@dataclass(frozen=True, eq=False)
class BaechiProblem:
    """A problem as Baechi's simulations see it. Index letters are those of `Instance`."""

    instance: Instance
    tick_s: float
    compute: Ints  # [n, D] ticks, 1 at least
    link_of: Ints  # [D, D] number of the link from p to q; alike links have one
    hops: Ints  # [m, links] ticks; zero on the same device
    rank: Ints  # [n] the authors' topological order, which settles ties

    @classmethod
    def of(cls, problem: Problem, times: Times = "forward", tick_s: float = 1e-6) -> BaechiProblem:
        """Seconds to ticks.

        ``forward`` counts the forward computation and one transfer of a variable, as the authors'
        runs do (``--only_forward``, gradients follow their operators). ``training`` adds the backward
        computation, and the way back of the gradients.
        """
        instance = Instance.of(problem)
        latency, pace = instance.latency_s, instance.seconds_per_byte
        kinds, link_of = np.unique(
            [each.ravel() for each in (latency, pace, latency.T, pace.T)], axis=1, return_inverse=True
        )
        seconds, nbytes = instance.forward_s, instance.nbytes[:, None]
        hops = kinds[0] + nbytes * kinds[1]
        if times == "training":
            seconds = seconds + instance.backward_s
            hops = hops + instance.requires_backward[:, None] * (kinds[2] + nbytes * kinds[3])
        order = breadth_first(problem.graph)
        return cls(
            instance,
            tick_s,
            np.maximum(np.rint(seconds / tick_s), 1).astype(np.int64),
            link_of.reshape(latency.shape),
            np.rint(hops / tick_s).astype(np.int64),
            np.array([order[name] for name in instance.names], np.int64),
        )

    @property
    def n(self) -> int:
        return self.instance.n

    @property
    def devices(self) -> int:
        return len(self.instance.devices)

    def transfer(self, u: int | Ints, p: int) -> Ints:
        """[D] ticks of a variable from p to each device, or [len(u), D] of several."""
        return np.asarray(self.hops[u][..., self.link_of[p]])

    @cached_property
    def inward(self) -> tuple[tuple[Edge, ...], ...]:
        """[n] edges into a node, in the order of its inputs."""
        edges: list[tuple[Edge, ...]] = []
        for v in range(self.n):
            passing: dict[int, list[int]] = {}
            for u in dict.fromkeys(self.instance.reads[v].tolist()):
                passing.setdefault(int(self.instance.producer[u]), []).append(u)
            edges.append(tuple((i, v, tuple(variables)) for i, variables in passing.items()))
        return tuple(edges)

    @cached_property
    def outward(self) -> tuple[tuple[Edge, ...], ...]:
        """[n] edges out of a node, by the consumer's place in the graph."""
        edges_of: list[list[Edge]] = [[] for _ in range(self.n)]
        for edges in self.inward:
            for edge in edges:
                edges_of[edge[0]].append(edge)
        return tuple(tuple(edges) for edges in edges_of)

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """All edges, by producer, then by consumer: the order in which the authors walk them."""
        return tuple(edge for edges in self.outward for edge in edges)


def breadth_first(graph: Graph) -> dict[str, int]:
    """Node name to its place in the authors' topological order: first ready, first placed."""
    names = list(graph.nodes)
    after = [[graph.position[v] for v in graph.successors[name]] for name in names]
    return {names[v]: i for i, v in enumerate(topological_order(after))}


def receive(
    edge: Edge,
    p: int,
    q: int,
    end: int,
    tasks: BaechiProblem,
    channel: list[int],
    arrived: list[dict[int, int]],
) -> int:
    """When the variables of an edge, made on p until `end`, are on q; what is missing is sent.

    A device has one channel for all that it sends and receives; what it has received before, `arrived`, is
    not sent again (device.py, send_tensor and recv_tensor).
    """
    ready = 0
    for u in edge[2]:
        if u not in arrived[q]:
            ticks = int(tasks.hops[u, tasks.link_of[p, q]])
            sent = max(end, channel[p])
            channel[p] = sent + ticks
            channel[q] = max(sent, channel[q]) + ticks
            arrived[q][u] = channel[q]
        ready = max(ready, arrived[q][u])
    return ready


def virtual_makespan_s(tasks: BaechiProblem, device_of: Mapping[str, str]) -> float:
    """Seconds of a placement in the authors' VirtualScheduler, which `reference.json` quotes.

    The operator that was ready first runs first, and its outputs are sent as soon as it is done,
    consumer by consumer. Not the time of this project's simulator.
    """
    where = tasks.instance.encode(device_of).tolist()
    free_at, channel = [0] * tasks.devices, [0] * tasks.devices
    arrived: list[dict[int, int]] = [{} for _ in range(tasks.devices)]
    end = [0] * tasks.n
    waits_for = [len(edges) for edges in tasks.inward]
    queue = [(0, int(tasks.rank[v]), v) for v in range(tasks.n) if not waits_for[v]]
    heapq.heapify(queue)
    while queue:
        ready, _, v = heapq.heappop(queue)
        p = where[v]
        free_at[p] = end[v] = max(free_at[p], ready) + int(tasks.compute[v, p])
        for edge in tasks.outward[v]:
            if where[edge[1]] != p:
                receive(edge, p, where[edge[1]], end[v], tasks, channel, arrived)
        for _, w, _ in tasks.outward[v]:
            waits_for[w] -= 1
            if not waits_for[w]:
                q = where[w]
                ends = (
                    end[i] if where[i] == q else max(arrived[q][u] for u in variables)
                    for i, _, variables in tasks.inward[w]
                )
                heapq.heappush(queue, (max(ends), int(tasks.rank[w]), w))
    return max(free_at) * tasks.tick_s


def footprints(problem: Problem) -> dict[str, int]:
    """Static bytes of each node alone: alpha * initializers + copies_alive * its own outputs.

    An input of the graph counts at its first consumer, so every variable counts once in all.
    """
    memory = problem.memory_model
    sizes = dict(memory.state_bytes)
    for k, nbytes in memory.variable_bytes.items():
        for owner in memory.holders[k][:1]:
            sizes[owner] += nbytes
    return sizes


class StaticMemory:
    """Bytes left on every device while operators are placed and run, by (5-18): a colocation set is taken
    whole (see `Room`)."""

    left: Ints  # [D]

    def __init__(self, tasks: BaechiProblem, capacity: Ints) -> None:
        self._room = Room(tasks.instance, capacity)
        self.left = self._room.left
        self._atom_of = tasks.instance.atom_of
        self._placed = np.zeros(len(tasks.instance.atoms), bool)

    def placeable(self, nodes: Ints, placed: NDArray[np.bool_], asked: Ints) -> NDArray[np.bool_]:
        """[len(nodes), len(asked)] whether each fits on each; `placed`: whose colocation set has a device."""
        need = self._room.need[self._atom_of[nodes][:, None], asked]
        return np.asarray(placed[:, None] | (need <= self.left[asked]))

    def run(self, v: int, where: Ints) -> None:
        """Node v runs on ``where[v]``."""
        a = int(self._atom_of[v])
        if not self._placed[a]:
            self._placed[a] = True
            self._room.take(a, int(where[v]))

    def missing(self, v: int, placed: bool) -> Ints:
        """[D] bytes by which v does not fit."""
        return np.asarray(self._room.need[self._atom_of[v]] - self.left)


class AuthorsMemory(StaticMemory):
    """The authors' accounting (m_etf.py, ETFDevice): an operator's own bytes, from when it runs, for good;
    of a colocation set that has no device all bytes, of which nothing is put aside for later members."""

    def __init__(self, tasks: BaechiProblem, capacity: Ints) -> None:
        self.left = capacity.copy()
        self._own = np.array(list(footprints(tasks.instance.problem).values()), np.int64)  # [n]
        self._set_bytes = tasks.instance.by_atom(self._own)[tasks.instance.atom_of]

    def placeable(self, nodes: Ints, placed: NDArray[np.bool_], asked: Ints) -> NDArray[np.bool_]:
        return np.asarray(
            np.where(placed, self._own[nodes], self._set_bytes[nodes])[:, None] <= self.left[asked]
        )

    def run(self, v: int, where: Ints) -> None:
        self.left[where[v]] -= self._own[v]

    def missing(self, v: int, placed: bool) -> Ints:
        return np.asarray((self._own if placed else self._set_bytes)[v] - self.left)


def memory_for(tasks: BaechiProblem, rule: BaechiMemory) -> StaticMemory:
    kind = StaticMemory if rule == "static" else AuthorsMemory
    return kind(tasks, tasks.instance.capacity)


@dataclass(frozen=True)
class MTopo(Partitioner):
    """`m_topo`: place atoms in topological order; go to the next device, for good, when one does not fit.

    Sources: Baechi (github beomyeol/baechi, placer/m_topo.py); NetSplit thesis, section 6.2.1.

    A node fits if (5-18) is within the device's capacity, and the nodes' footprints within Baechi's cap,
    ``floor(level) + largest node`` (below it, for a colocated set). Where that leaves atoms over, only the
    capacity is tested, as in Baechi's variant for devices of unequal memory.

    Baechi's order is `breadth_first`; `captured` is that in which the model runs. The report's objective is
    the seconds of the forward computations in the authors' VirtualScheduler.
    """

    order: TopoOrder = "captured"

    name = "m_topo"
    optimises = "nothing: an even share of the memory"

    def __post_init__(self) -> None:
        self.require_choice("order", TopoOrder)

    def choose(self, problem: Problem) -> Choice:
        capacities = [device.capacity_bytes for device in problem.cluster.devices]
        sizes = footprints(problem)
        cap = even_level(sum(sizes.values()), capacities) + max(sizes.values(), default=0)
        used = [0] * len(capacities)

        def within_cap(p: int, atom: tuple[str, ...]) -> bool:
            grown = used[p] + sum(sizes[name] for name in atom)
            fits = grown <= cap if len(atom) == 1 else grown < cap
            if fits:
                used[p] = grown
            return fits

        graph, ordered = problem.graph, problem
        if self.order == "breadth_first":
            nodes = {name: graph.nodes[name] for name in breadth_first(graph)}
            ordered = replace(problem, graph=replace(graph, nodes=nodes))
        device_of = (
            fill_in_order(ordered, capacities, within_cap)
            or fill_in_order(ordered, capacities)
            or fill_in_order(problem, capacities)
        )
        if device_of is None:
            raise infeasible(problem, self.name)
        return Choice(device_of, objective_s=virtual_makespan_s(BaechiProblem.of(problem), device_of))


def even_level(total: int, capacities: Sequence[int]) -> int:
    """The least level, rounded down, at which ``sum of min(level, capacity)`` reaches `total`.

    With equal capacities that is ``total // devices``. Smaller devices are filled, the others share
    the rest evenly. If all capacities together are too small, the largest of them.
    """
    left = total
    ascending = sorted(capacities)
    for i, capacity in enumerate(ascending):
        level = left // (len(ascending) - i)
        if level <= capacity:
            return level
        left -= capacity
    return ascending[-1]
