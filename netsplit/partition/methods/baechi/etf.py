"""`m_etf`, earliest task first, and `m_sct`, small communication times, within memory (Baechi).

Source: Jeon et al., "Baechi: Fast Device Placement of Machine Learning Graphs", SoCC 2020, section 3;
the authors' code, github beomyeol/baechi, placer/m_etf.py, m_sct.py and placer_utils.py (ReadyOpManager).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from netsplit.errors import InfeasibleError
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Csr, Floats, Ints, interchangeable_devices
from netsplit.partition.engines.insertion.schedule import PlacingClock
from netsplit.partition.engines.rows import Rows
from netsplit.partition.methods.baechi.baechi import (
    BaechiMemory,
    BaechiProblem,
    StaticMemory,
    Times,
    memory_for,
    receive,
    virtual_makespan_s,
)
from netsplit.partition.partitioner import Choice, Partitioner, read_bytes

__all__ = ["NEVER", "EtfLoop", "MEtf", "MSct", "SctLoop", "assign", "favourite_lp", "favourites"]

NEVER = np.iinfo(np.int64).max


class EtfLoop:
    """The clock of m-ETF: who runs what when, decided at the moment it happens, never revised.

    Each idle device proposes the ready operator that it could start first; of those that could start now the
    first in the authors' topological order is taken, until none is left. Then the clock goes to the next
    moment at which a device can do something.

    The start which decides is an estimate, by the channels as they are now; then edges are sent one after
    another. An operator without any edge that writes what it holds, such as a batch normalisation's counter,
    follows the set it is colocated with. Of alike devices without work the first stands for all.
    """

    def __init__(self, tasks: BaechiProblem, memory: StaticMemory) -> None:
        n, m, devices = tasks.n, len(tasks.instance.variables), tasks.devices
        self.tasks, self.memory = tasks, memory
        self.where = np.full(n, -1, np.int64)  # [n] device
        self.ran = np.zeros(n, bool)
        self.start, self.end = np.zeros(n, np.int64), np.zeros(n, np.int64)  # [n] ticks
        self.last: list[int] = [-1] * devices  # the operator that a device ran last
        self._running: list[int] = [-1] * devices
        self._free_at = np.zeros(devices, np.int64)
        self._channel = [0] * devices
        self._arrived: list[dict[int, int]] = [{} for _ in range(devices)]
        self._arrival = np.full((m, devices), -1, np.int64)  # `arrived` as an array
        self._ready_ticks = np.zeros((n, devices), np.int64)
        self._waits_for = [len(edges) for edges in tasks.inward]
        self._node_at = np.argsort(tasks.rank)
        self.ready: list[int] = []  # ranks, ascending
        self._inflow = _Inflow(tasks)
        self._followers = _followers(tasks)
        following = {v for followers in self._followers.values() for v in followers}
        self._unused = {each[0]: each[1:] for each in interchangeable_devices(tasks.instance)}
        self.asked: list[int] = sorted(self._unused)  # devices, ascending
        self._prepare([v for v in range(n) if not self._waits_for[v] and v not in following])

    def run(self, clock: PlacingClock | None = None) -> bool:
        """Whether every operator could be placed; raises as `PlacingClock.tick`."""
        now = 0
        while True:
            self._finish(now)
            while True:
                idle = [c for c, q in enumerate(self.asked) if self._running[q] < 0]
                proposals = self.proposals(idle, now, self._table(now)) if idle and self.ready else []
                startable = [(row, self.asked[c]) for c, row, ticks in proposals if ticks <= now]
                if not startable:
                    break
                if clock is not None:
                    clock.tick()
                self._commit(*min(startable))
            moments = [ticks for _, _, ticks in proposals if ticks < NEVER]
            moments += [int(self.end[v]) for v in self._running if v >= 0]
            if not moments:
                return bool(self.ran.all())
            now = min(moments)

    def proposals(self, idle: list[int], now: int, table: Ints) -> list[tuple[int, int, int]]:
        """(column, row of `table` that it would run, when it can start) of each idle device.

        Args:
            idle: columns of the table.
            now: the time.
            table: [ready operators by rank, devices asked] earliest starts, or `NEVER`.
        """
        rows = table[:, idle].argmin(axis=0)
        return list(zip(idle, rows.tolist(), table[rows, idle].tolist(), strict=True))

    def row_of(self, v: int) -> int:
        """The row of a node in the table, or -1 where it is not ready."""
        rank = int(self.tasks.rank[v])
        row = bisect_left(self.ready, rank)
        return row if row < len(self.ready) and self.ready[row] == rank else -1

    def why_stuck(self) -> str:
        v = int(self._node_at[self.ready[0]])
        missing = self.memory.missing(v, bool(self.where[v] >= 0))
        q = int(self.where[v]) if self.where[v] >= 0 else int(missing.argmin())
        instance, ran, lacking = self.tasks.instance, int(self.ran.sum()), read_bytes(int(missing[q]))
        return (
            f"it never revises a choice and, after {ran} of {instance.n} nodes, cannot place "
            f"'{instance.names[v]}': {lacking} are missing on device '{instance.devices[q]}'"
        )

    def _finish(self, now: int) -> None:
        for q, v in enumerate(self._running):
            if v < 0 or self.end[v] > now:
                continue
            self._running[q] = -1
            followers = self._followers.pop(int(self.tasks.instance.atom_of[v]), [])
            for _, w, _ in self.tasks.outward[v]:
                self._waits_for[w] -= 1
                if not self._waits_for[w]:
                    followers.append(w)
            self._prepare(followers)

    def _prepare(self, nodes: list[int]) -> None:
        for v in nodes:
            insort(self.ready, int(self.tasks.rank[v]))
            self._inflow.fix(v, self.where, self.end)
        self._estimate(nodes)

    def _estimate(self, nodes: list[int]) -> None:
        if nodes:
            channel, asked = np.array(self._channel), np.array(self.asked)
            self._ready_ticks[np.array(nodes)[:, None], asked] = self._inflow.ticks(
                nodes, asked, channel, self._arrival
            )

    def _table(self, now: int) -> Ints:
        """[ready, devices asked] when each operator could start on each, `NEVER` where it cannot."""
        nodes, asked = self._node_at[self.ready], np.array(self.asked)
        table = np.maximum(self._ready_ticks[nodes[:, None], asked], np.maximum(self._free_at[asked], now))
        place = self.where[nodes]
        placed = place >= 0
        fits = self.memory.placeable(nodes, placed, asked)
        if placed.any():
            fits &= ~placed[:, None] | (place[:, None] == asked)
        table[~fits] = NEVER
        return table

    def _commit(self, row: int, q: int) -> None:
        v = int(self._node_at[self.ready.pop(row)])
        alike = self._unused.pop(q, ())
        ready, sent = 0, bool(alike)
        for edge in self.tasks.inward[v]:
            p, end = int(self.where[edge[0]]), int(self.end[edge[0]])
            if p != q:
                new = [u for u in edge[2] if u not in self._arrived[q]]
                end = receive(edge, p, q, end, self.tasks, self._channel, self._arrived)
                for u in new:
                    self._arrival[u, q] = self._arrived[q][u]
                sent |= bool(new)
            ready = max(ready, end)
        if self.where[v] < 0:
            self.where[self.tasks.instance.atoms[int(self.tasks.instance.atom_of[v])]] = q
        self.start[v] = max(ready, int(self._free_at[q]))
        self.end[v] = self._free_at[q] = self.start[v] + self.tasks.compute[v, q]
        self.ran[v] = True
        self.memory.run(v, self.where)
        self._running[q] = self.last[q] = v
        if alike:
            self._unused[alike[0]] = alike[1:]
            insort(self.asked, alike[0])
        if sent:
            self._estimate(self._node_at[self.ready].tolist())


def _followers(tasks: BaechiProblem) -> dict[int, list[int]]:
    """Colocated set -> its operators that only write what they hold, where the set has others."""
    instance, nodes = tasks.instance, tasks.instance.problem.graph.nodes
    followers: dict[int, list[int]] = {}
    for v, name in enumerate(instance.names):
        a = int(instance.atom_of[v])
        writes = nodes[name].initializers and not tasks.inward[v] and not tasks.outward[v]
        if writes and len(instance.atoms[a]) > 1:
            followers.setdefault(a, []).append(v)
    return {a: each for a, each in followers.items() if len(each) < len(instance.atoms[a])}


class _Inflow:
    """Estimated arrival of what operators read. A row is a variable that a node reads; rows of one edge, and
    edges of one node, are neighbours."""

    def __init__(self, tasks: BaechiProblem) -> None:
        edges = [edge for inward in tasks.inward for edge in inward]
        self._tasks = tasks
        self._edges_of = Csr.of([[0] * len(inward) for inward in tasks.inward])  # only `starts` is used
        self._rows_of = Csr.of([edge[2] for edge in edges])
        self._home = np.zeros(len(edges), np.int64)  # [edges] the producer's device
        self._end = np.zeros(len(edges), np.int64)
        self._cost = np.zeros((len(self._rows_of.items), tasks.devices), np.int64)
        self._producer = np.array([edge[0] for edge in edges], np.int64)

    def fix(self, v: int, where: Ints, end: Ints) -> None:
        """All that v reads has been made."""
        first, last = self._edges_of.starts[v], self._edges_of.starts[v + 1]
        for e in range(first, last):
            i = self._producer[e]
            self._home[e], self._end[e] = where[i], end[i]
            rows = slice(self._rows_of.starts[e], self._rows_of.starts[e + 1])
            self._cost[rows] = self._tasks.transfer(self._rows_of.items[rows], int(where[i]))

    def ticks(self, nodes: list[int], asked: Ints, channel: Ints, arrival: Ints) -> Ints:
        """[len(nodes), len(asked)] when all that a node reads could be on a device."""
        ready = np.zeros((len(nodes), len(asked)), np.int64)
        starts = self._edges_of.starts
        fed = [k for k, v in enumerate(nodes) if starts[v + 1] > starts[v]]
        if not fed:
            return ready
        edges, first_edge = _spans(starts, [nodes[k] for k in fed])
        rows, first_row = _spans(self._rows_of.starts, edges)
        got = arrival[self._rows_of.items[rows][:, None], asked]
        lacking = got < 0
        latest = np.maximum.reduceat(got, first_row)
        cost = np.add.reduceat(np.where(lacking, self._cost[rows[:, None], asked], 0), first_row)
        home, end = self._home[edges], self._end[edges]
        begin = np.maximum(np.maximum(end, channel[home])[:, None], channel[asked])
        ticks = np.where(np.logical_or.reduceat(lacking, first_row), np.maximum(latest, begin + cost), latest)
        ticks = np.where(home[:, None] == asked, end[:, None], ticks)
        ready[fed] = np.maximum.reduceat(ticks, first_edge)
        return ready


def _spans(starts: Ints, rows: list[int] | Ints) -> tuple[Ints, Ints]:
    """The items of several rows of a `Csr`, one after another, and where each row begins there."""
    first, size = starts[rows], starts[np.asarray(rows) + 1] - starts[rows]
    begins = np.concatenate([[0], np.cumsum(size)[:-1]])
    return np.arange(int(size.sum())) + np.repeat(first - begins, size), begins


@dataclass(frozen=True)
class MEtf(Partitioner):
    """Places each operator on the device that can start it first, as the clock runs. No backtracking.

    The report's objective is the makespan in seconds of the authors' VirtualScheduler, of forward
    computations (`times` "forward") or of a whole step ("training").

    `memory` "static" heeds (5-18). "kept" is the authors' test, `capacity` for the bytes that operators make,
    as the reference values were made; with it (5-18) may be exceeded.
    """

    times: Times = "forward"
    memory: BaechiMemory = "static"
    tick_s: float = 1e-6  # the authors count whole microseconds

    name = "m_etf"
    optimises = "start of each operator, one by one"

    def __post_init__(self) -> None:
        self.require_choice("times", Times)
        self.require_choice("memory", BaechiMemory)
        self.require("tick_s", 0 < self.tick_s < float("inf"), "seconds above 0, such as 1e-6")
        object.__setattr__(self, "respects_capacity", self.memory == "static")

    def check(self, problem: Problem) -> None:
        """Nothing: its own error names bytes with which it succeeds."""

    def choose(self, problem: Problem) -> Choice:
        tasks = BaechiProblem.of(problem, self.times, self.tick_s)
        loop = self.loop(tasks)
        if not loop.run(PlacingClock(problem, self.name)):
            total, least = problem.memory_model.total_bytes, int(tasks.instance.capacity.min())
            raise InfeasibleError(
                f"{self.name} finds no placement that fits on cluster '{problem.cluster.name}', as "
                f"{loop.why_stuck()}; {read_bytes(total - least, True)} more on each device is enough (or "
                "use a method that packs, such as auto)."
            )
        device_of = tasks.instance.decode(loop.where)
        start = dict(zip(tasks.instance.names, loop.start.tolist(), strict=True))
        return Choice(device_of, start, objective_s=virtual_makespan_s(tasks, device_of))

    def loop(self, tasks: BaechiProblem) -> EtfLoop:
        return EtfLoop(tasks, memory_for(tasks, self.memory))


def favourites(tasks: BaechiProblem, threshold: float) -> Ints:
    """[n] the favourite child of every node, -1 for none."""
    compute = tasks.compute.mean(axis=1)
    pairs = max(1, tasks.devices * (tasks.devices - 1))
    hop = tasks.hops @ np.bincount(tasks.link_of.ravel()) / pairs
    ends = [(i, j) for i, j, _ in tasks.edges]
    cost = np.array([hop[list(variables)].sum() for _, _, variables in tasks.edges])
    if not ends:
        return np.full(tasks.n, -1, np.int64)
    return assign(tasks.n, ends, favourite_lp(compute, ends, cost)[0] < threshold)


def favourite_lp(compute: Floats, ends: Sequence[tuple[int, int]], cost: Floats) -> tuple[Floats, float]:
    """Minimise the makespan w on as many devices as one likes, at a corner of the optima, as Mosek does.

    Of every node one child at most, and of every child one parent at most, is spared its transfer::

        min w   s_i + p_i + c_ij x_ij <= s_j        every edge i -> j
                sum_j x_ij >= |succ(i)| - 1         every i with successors
                sum_i x_ij >= |pred(j)| - 1         every j with predecessors
                s_i + p_i <= w,  s_i >= 0,  0 <= x_ij <= 1

    Args:
        compute: [n] p, above zero, in any unit.
        ends: [e] producer and consumer of every edge, which together make a DAG.
        cost: [e] c, in the same unit.

    Returns:
        [e] x, 0 for a favourite child; and w.
    """
    import highspy

    unit = max(1.0, float(np.max(compute, initial=0.0)), float(np.max(cost, initial=0.0)))
    n, e, seconds = len(compute), len(ends), (compute / unit).tolist()
    rows = Rows()  # over x, s, w
    for k, (i, j) in enumerate(ends):
        rows.add([(k, float(cost[k]) / unit), (e + i, 1.0), (e + j, -1.0)], -seconds[i])
    for side in (0, 1):
        of_node: list[list[int]] = [[] for _ in range(n)]
        for k, pair in enumerate(ends):
            of_node[pair[side]].append(k)
        for own in of_node:
            rows.add([(k, -1.0) for k in own], 1.0 - len(own))
    for v in range(n):
        rows.add([(e + v, 1.0), (e + n, -1.0)], -seconds[v])
    none = np.zeros(e + n + 1)
    upper = np.where(np.arange(e + n + 1) < e, 1.0, np.inf)
    model = rows.model(none, upper, np.append(none[1:], 1.0), none)
    engine = highspy.Highs()
    engine.setOptionValue("output_flag", False)
    model.pass_to(engine)
    for solver in ("ipm", "simplex"):  # the interior point may fail on badly scaled numbers
        engine.setOptionValue("solver", solver)
        engine.run()
        if engine.getModelStatus() == highspy.HighsModelStatus.kOptimal:
            break
    values = np.array(engine.getSolution().col_value, float)
    return values[:e], float(values[-1]) * unit


def assign(n: int, ends: Sequence[tuple[int, int]], chosen: Iterable[bool]) -> Ints:
    """[n] favourite child of each node from the chosen edges, -1 for none.

    Rounding may choose several edges at a node. They are walked in order and a later one replaces an
    earlier one at its producer, and takes the child away from an earlier parent.
    """
    favourite, parent = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    for (i, j), wanted in zip(ends, chosen, strict=True):
        if not wanted:
            continue
        favourite[i] = j
        if parent[j] >= 0:
            favourite[parent[j]] = -1
        parent[j] = i
    return favourite


class SctLoop(EtfLoop):
    """m-ETF, in which a device may wait for the favourite child of what it ran last.

    It does so if the child is ready and has no device, and no other could start it sooner. Meanwhile it takes
    urgent operators: those that could start now on every device that can take them.
    """

    def __init__(self, tasks: BaechiProblem, memory: StaticMemory, favourite: Ints) -> None:
        self._favourite = favourite  # [n] node, -1 for none
        super().__init__(tasks, memory)

    def proposals(self, idle: list[int], now: int, table: Ints) -> list[tuple[int, int, int]]:
        plain = super().proposals(idle, now, table)
        return [self._patient(c, now, table) or proposal for c, proposal in zip(idle, plain, strict=True)]

    def _patient(self, c: int, now: int, table: Ints) -> tuple[int, int, int] | None:
        """What the device of a column proposes where it waits for a child."""
        row = self._awaited(c, table)
        if row < 0:
            return None
        urgent, ticks = self._urgent(c, table)
        if ticks <= now:
            return c, urgent, ticks
        if table[row, c] <= now:
            return c, row, int(table[row, c])
        return c, row, min(int(table[row, c]), ticks)

    def _awaited(self, c: int, table: Ints) -> int:
        """The row of the child for which the device stays awake, or -1."""
        last = self.last[self.asked[c]]
        child = int(self._favourite[last]) if last >= 0 else -1
        if child < 0 or self.where[child] >= 0:
            return -1
        row = self.row_of(child)
        return row if row >= 0 and table[row].min() == table[row, c] < NEVER else -1

    @staticmethod
    def _urgent(c: int, table: Ints) -> tuple[int, int]:
        """The operator that could first start on all its devices, of those that this can run, and when."""
        latest = np.where(table < NEVER, table, 0).max(axis=1)
        latest[table[:, c] == NEVER] = NEVER
        row = int(latest.argmin())
        return row, int(latest[row])


@dataclass(frozen=True)
class MSct(MEtf):
    """m-ETF with devices that wait for favourite children, which a linear relaxation finds."""

    threshold: float = 0.1  # an edge whose relaxed x is below it leads to a favourite child

    name = "m_sct"
    optimises = "start of each operator, one by one, with its favourite child kept close"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("threshold", 0 <= self.threshold <= 1, "a number from 0 to 1, such as 0.1")

    def loop(self, tasks: BaechiProblem) -> EtfLoop:
        return SctLoop(tasks, memory_for(tasks, self.memory), favourites(tasks, self.threshold))
