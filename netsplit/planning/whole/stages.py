"""A graph as a line of operators, and its cut into stages for given groups of devices.

The cut whose slowest stage is the fastest is found by the dynamic programme of PipeDream (Narayanan et al.,
SOSP 2019, section 3.1) and Piper (Tarnawski et al., NeurIPS 2021), with the groups and their order given,
unlike devices, and memory by what is in flight:

    f[g][c] = min over b < c of max(f[g - 1][b], period of the run b..c on group g)

A run that does not fit may fit with activations computed again, for that part of another forward.
Index letters: `a` atom, `c` cut (the first is before all atoms, the last after all), `g` group, `q` device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from math import ceil, lcm
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from netsplit.graph.quotient import atoms_of, topological_priority
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Floats, Instance, Ints
from netsplit.placement.placement import Placement, SolverReport, Stage
from netsplit.profile.memory import lifetimes_model, node_state_bytes

__all__ = [
    "Group",
    "LineStages",
    "NodeLine",
    "StageCosts",
    "device_counts",
    "groupings",
    "orders_of_devices",
    "placed",
    "stages_of_line",
    "turns_for",
]

MOST_CUTS = 160
EVERY = 8  # devices, up to which every number of them is tried
BACK = 0.5  # of what a run keeps of a micro-batch, returning at once when recomputed
UNLIKE = 1.05  # times another replica's seconds, from which it takes fewer micro-batches
Runs = Literal["forward_s", "seconds", "state_bytes", "trained_bytes", "saved_bytes"]
Group = tuple[int, ...]
"""Ranks of the devices that replicate a stage."""


@dataclass(frozen=True, eq=False)
class NodeLine:
    """Atoms in topological order with prefix sums at each cut, whose differences are the costs of runs; of
    one micro-batch. Shapes: C cuts, D devices."""

    atoms: tuple[tuple[str, ...], ...]  # [A]
    places: Ints  # [C] atoms before the cut
    forward_s: Floats  # [C, D]
    seconds: Floats  # [C, D] with backward
    state_bytes: Ints  # [C] parameters with gradients and moments
    trained_bytes: Ints  # [C] parameters that the optimiser changes
    saved_bytes: Ints  # [C] kept from forward to backward
    sent_bytes: Ints  # [C] that cross the cut, forward
    returned_bytes: Ints  # [C] gradients that cross it back
    tables: dict[object, Floats] = field(default_factory=dict, repr=False)  # of runs, made once

    @classmethod
    def of(cls, problem: Problem) -> NodeLine:
        """The graph's line, with at most `MOST_CUTS` cuts: of neighbours the one with the fewest bytes."""
        graph, instance = problem.graph, Instance.of(problem)
        atoms = atoms_of(graph)
        count, first = len(atoms), {name: a for a, atom in enumerate(atoms) for name in atom}
        atom_of = np.array([first[name] for name in instance.names], np.int64)

        def until(values: NDArray[Any]) -> NDArray[Any]:
            """[A + 1, ...] sums of all nodes before each place."""
            sums = np.zeros((count + 1, *values.shape[1:]), values.dtype)
            np.add.at(sums, atom_of + 1, values)
            return np.cumsum(sums, axis=0)

        states = node_state_bytes(graph, problem.costs.device_alpha)
        saved = _saved(problem, instance.names)
        sent, returned = _crossing(instance, atom_of, count)
        forward_s, seconds = until(instance.forward_s), until(instance.forward_s + instance.backward_s)
        places = _chosen(seconds.mean(axis=1), sent + returned)
        return cls(
            atoms=atoms,
            places=places,
            forward_s=forward_s[places],
            seconds=seconds[places],
            state_bytes=until(np.array([states[name] for name in instance.names], np.int64))[places],
            trained_bytes=until(instance.trainable_bytes.astype(np.int64))[places],
            saved_bytes=until(saved)[places],
            sent_bytes=sent[places],
            returned_bytes=returned[places],
        )

    def between(self, what: Runs, q: int = 0) -> Floats:
        """[C, C] the sum between two cuts (on device q, where devices differ); cached."""
        if (what, q) not in self.tables:
            until = getattr(self, what)
            until = until if until.ndim == 1 else until[:, q]
            self.tables[what, q] = np.asarray(until[None, :] - until[:, None], float)
        return self.tables[what, q]


def _saved(problem: Problem, names: Sequence[str]) -> Ints:
    """[nodes] bytes that autograd keeps of each; a storage counts at its first holder."""
    place, saved = {name: v for v, name in enumerate(names)}, np.zeros(len(names), np.int64)
    model, frozen = lifetimes_model(problem.graph, 0, 1), node_state_bytes(problem.graph, 0)
    for name, nbytes in model.state_bytes.items():
        saved[place[name]] += nbytes - frozen[name]
    for k, nbytes in model.variable_bytes.items():
        if nbytes and model.holders[k]:
            saved[place[model.holders[k][0]]] += nbytes
    return saved


def _crossing(instance: Instance, atom_of: Ints, count: int) -> tuple[Ints, Ints]:
    """[A + 1] bytes that cross each place forward, and those whose gradients come back. With tied weights an
    atom may read what a later one makes."""
    sent, returned = np.zeros(count + 2, np.int64), np.zeros(count + 2, np.int64)
    for u, v in enumerate(instance.producer):
        places = atom_of[[v, *instance.consumers[u]]]
        first, last = int(places.min()), int(places.max())
        if last > first:  # open at places first + 1 .. last
            for total, counts in ((sent, True), (returned, bool(instance.requires_backward[u]))):
                total[first + 1] += instance.nbytes[u] * counts
                total[last + 1] -= instance.nbytes[u] * counts
    return np.cumsum(sent)[: count + 1], np.cumsum(returned)[: count + 1]


def _chosen(seconds: Floats, crossing: Ints) -> Ints:
    """Places of cuts: both ends, and in every stretch of equal seconds the one with the fewest bytes."""
    inner = np.arange(1, len(seconds) - 1)
    if len(inner) > MOST_CUTS - 2:
        total = float(seconds[-1]) or 1.0
        stretch = np.minimum((seconds[inner] / total * (MOST_CUTS - 2)).astype(np.int64), MOST_CUTS - 3)
        order = np.lexsort((inner, crossing[inner], stretch))
        keep = np.flatnonzero(np.diff(stretch[order], prepend=-1))
        inner = np.sort(inner[order][keep])
    return np.concatenate([[0], inner, [len(seconds) - 1]]).astype(np.int64)


@dataclass(frozen=True, eq=False)
class LineStages:
    """Stages in order, as (begin, end) cuts, one for each group."""

    runs: tuple[tuple[int, int], ...]
    groups: tuple[Group, ...]

    @property
    def folded(self) -> bool:
        """Whether a device has several stages."""
        return len(set(self.groups)) < len(self.groups)


@dataclass(frozen=True, eq=False)
class StageCosts:
    """Costs for the dynamic programme, [C, C] from begin (row) to end (column) of a run."""

    problem: Problem
    line: NodeLine
    microbatches: int
    recompute: bool  # where a run would not fit
    shard: bool = False  # replicas keep slices of their states where whole ones do not fit

    def period_s(self, groups: Sequence[Group], g: int) -> Floats:
        """Seconds per micro-batch of every run as stage g, the longer of computing and transfers; inf if the
        run does not fit."""
        group = groups[g]
        work = self._spread("seconds", group) + self._summed_s(group, self.line.between("trained_bytes"))
        moved = self._moved_s(groups, g)
        again = self._again(groups, g)
        fits = np.isfinite(again)
        computed = work + np.where(fits, again, 0.0) * self._spread("forward_s", group)
        return np.asarray(np.where(fits, np.maximum(computed, moved[:, None]), np.inf))

    def promised_s(self, cut: LineStages) -> float:
        """Estimated iteration: a micro-batch's way, others at the slowest stage or link, the largest sum."""
        line, m = self.line, self.microbatches
        way_s, sums_s, slowest_s = 0.0, 0.0, 0.0  # the slowest transfers, of one micro-batch
        others_s = dict.fromkeys(cut.groups, 0.0)  # of all micro-batches but one
        for g, ((begin, end), group) in enumerate(zip(cut.runs, cut.groups, strict=True)):
            again = min(float(self._again(cut.groups, g)[begin, end]), 1.0)  # inf: it cannot fit
            both_s, forward_s = (each[end] - each[begin] for each in (line.seconds, line.forward_s))
            own_s = [float(both_s[q] + again * forward_s[q]) for q in group]
            turns = Counter(turns_for(own_s, m))
            moved_s = float(self._moved_s(cut.groups, g)[begin])
            way_s, slowest_s = way_s + min(own_s) + moved_s * len(group), max(slowest_s, moved_s)
            others_s[group] += max(own_s[k] * count for k, count in turns.items()) - min(own_s)
            trained = line.trained_bytes[end] - line.trained_bytes[begin]
            sums_s = max(sums_s, float(self._summed_s(group, trained)) * m)
        return way_s + max(*others_s.values(), (m - 1) * slowest_s) + sums_s

    def _spread(self, what: Runs, group: Group) -> Floats:
        """Seconds per micro-batch if the group's devices take turns by speed."""
        devices = self.problem.cluster.devices
        first = {devices[q].kind: q for q in reversed(group)}
        count = Counter(devices[q].kind for q in group)
        key = what, tuple(sorted(count.items()))
        if key not in self.line.tables:
            each_s = [
                np.maximum(self.line.between(what, q), 1e-15) / count[kind] for kind, q in first.items()
            ]
            together = 1.0 / sum(1.0 / seconds for seconds in each_s)
            # The last round of micro-batches may not fill all replicas.
            m, r = self.microbatches, len(group)
            self.line.tables[key] = np.asarray(together) * (ceil(m / r) * r / m if len(first) == 1 else 1.0)
        return self.line.tables[key]

    def _summed_s(self, group: Group, trained: Floats | np.int64) -> Floats:
        """A micro-batch's part of the sum of these bytes of gradients over a ring."""
        r = len(group)
        latency_s, per_byte = self._link(group, group)
        return np.asarray(2 * (r - 1) * (latency_s + trained / r * per_byte) / self.microbatches)

    def _moved_s(self, groups: Sequence[Group], g: int) -> Floats:
        """[C] seconds of transfers at a run's begin, both ways, divided among the replicas."""
        line = self.line
        if g == 0 or groups[g - 1] == groups[g]:
            return np.zeros(len(line.places))
        latency_s, per_byte = self._link(groups[g - 1], groups[g])
        each = 2 * latency_s + (line.sent_bytes + line.returned_bytes) * per_byte
        ways = min(len(groups[g - 1]), len(groups[g]))
        there, home = self._nic_s_per_byte(groups[g - 1], groups[g])
        at_nics = np.maximum(line.sent_bytes * there, line.returned_bytes * home)
        return np.asarray(np.maximum(each / ways, at_nics))

    def _nic_s_per_byte(self, sources: Group, targets: Group) -> tuple[float, float]:
        """Seconds that a byte per micro-batch holds the busiest NIC, there and back."""
        devices, cluster = self.problem.cluster.devices, self.problem.cluster
        rounds = lcm(len(sources), len(targets)) if cluster.nics else 0
        held: tuple[Counter[tuple[str, str]], ...] = (Counter(), Counter())
        for i in range(rounds):
            ends = devices[sources[i % len(sources)]].name, devices[targets[i % len(targets)]].name
            for seconds, way in zip(held, (cluster.way(*ends), cluster.way(*ends[::-1])), strict=True):
                for nic, pace in way:
                    seconds[nic] += pace / rounds  # type: ignore[assignment]
        there, home = (float(max(seconds.values(), default=0.0)) for seconds in held)
        return there, home

    def _link(self, sources: Group, targets: Group) -> tuple[float, float]:
        """Latency and seconds per byte of the slowest link between two groups."""
        devices, links = self.problem.cluster.devices, self.problem.cluster.links
        ways = [links[devices[p].name, devices[q].name] for p in sources for q in targets if p != q]
        latency_s = max((way.latency_s for way in ways), default=0.0)
        return latency_s, max((way.seconds_per_byte for way in ways), default=0.0)

    def _again(self, groups: Sequence[Group], g: int) -> Floats:
        """[C, C] the fraction of its forward that a run recomputes to fit under 1F1B; inf if it cannot fit.
        Assumes even bytes per second, and half of a micro-batch's bytes back at once."""
        r = len(groups[g])
        behind = sum(len(group) for group in dict.fromkeys(groups[g:]))
        flight = min(ceil(self.microbatches / r), ceil(behind / r))
        capacity = min(self.problem.cluster.devices[q].capacity_bytes for q in groups[g])
        capacity //= list(groups).count(groups[g])
        line, slices = self.line, r if self.shard else 1
        key = flight, capacity, slices, self.recompute
        if key not in line.tables:
            saved, states = line.between("saved_bytes"), line.between("state_bytes") / slices
            missing = np.maximum(states + flight * saved - capacity, 0.0)
            freed = (
                np.maximum((flight - BACK) * saved - flight * line.sent_bytes[:, None], 0.0) * self.recompute
            )
            fits = (missing <= freed) & np.triu(np.ones(missing.shape, bool), 1)  # begin before end
            line.tables[key] = np.where(fits, missing / np.maximum(freed, 1.0), np.inf)
        return line.tables[key]


def stages_of_line(costs: StageCosts, groups: Sequence[Group]) -> LineStages | None:
    """The best cut for groups in this order, one stage for each; None: none fits."""
    count = len(costs.line.places)
    least = np.full(count, np.inf)
    least[0] = 0.0
    begins = []
    for g in range(len(groups)):
        trial = np.maximum(least[:, None], costs.period_s(groups, g))
        begins.append(trial.argmin(axis=0))
        least = trial[begins[-1], np.arange(count)]
    if not np.isfinite(least[-1]):
        return None
    runs, end = [], count - 1
    for chosen in reversed(begins):
        begin = int(chosen[end])
        runs.append((begin, end))
        end = begin
    return LineStages(tuple(reversed(runs)), tuple(groups))


def placed(problem: Problem, line: NodeLine, cut: LineStages, microbatches: int) -> Placement:
    """Stages as a placement that runs stage by stage. Slower replicas take fewer micro-batches, or none."""
    names, workers = [device.name for device in problem.cluster.devices], [len(each) for each in cut.groups]
    stages: list[Stage] = []
    for g, ((begin, end), group) in enumerate(zip(cut.runs, cut.groups, strict=True)):
        atoms = line.atoms[int(line.places[begin]) : int(line.places[end])]
        each_s = [float(line.seconds[end, q] - line.seconds[begin, q]) for q in group]
        turns: tuple[int, ...] = ()
        if max(each_s) > UNLIKE * min(each_s) > 0:
            turns = turns_for(each_s, microbatches)
            working = sorted(set(turns))
            group, turns = tuple(group[k] for k in working), tuple(working.index(k) for k in turns)
        nodes = tuple(name for atom in atoms for name in atom)
        warm_up = ceil(sum(workers[g:]) / workers[g]) - 1
        stages.append(Stage(nodes, tuple(names[q] for q in group), warm_up, turns))
    where = {name: stage.devices[0] for stage in stages for name in stage.nodes}
    position = problem.graph.position
    key = {v: float(s * len(position) + position[v]) for s, stage in enumerate(stages) for v in stage.nodes}
    priority = topological_priority(problem.graph, key)
    cuts = tuple(  # a stage that follows another on its device begins with a cut
        min(stage.nodes, key=priority.__getitem__)
        for before, stage in pairwise(stages)
        if before.devices == stage.devices
    )
    replicated = tuple(stages) if any(len(stage.devices) > 1 for stage in stages) else ()
    report = SolverReport("heuristic", 0.0)
    return Placement(_words(cut, stages), where, priority, report, replicated, cuts)


def turns_for(seconds: Sequence[float], microbatches: int) -> tuple[int, ...]:
    """`Stage.turns` that end the last device as early as possible.

    Every micro-batch goes to the device that finishes it first, which is optimal for equal jobs on uniform
    machines (Q | p_j = 1 | C_max in the notation of Graham et al., 1979). A slow device may get no turn.

    Args:
        seconds: [D] of one micro-batch on each device; above zero.
    """
    counts, turns = [0] * len(seconds), []
    for _ in range(microbatches):
        turns.append(min(range(len(seconds)), key=lambda place: (counts[place] + 1) * seconds[place]))
        counts[turns[-1]] += 1
    return tuple(turns)


def _words(cut: LineStages, stages: Sequence[Stage]) -> str:
    """``4 stages x 2 replicas``; replicas without micro-batches do not count."""
    sizes = [len(stage.devices) for stage in stages]
    if cut.folded:
        back = cut.groups[: len(sizes) // 2] == cut.groups[: len(sizes) // 2 - 1 : -1]
        return f"{len(sizes)} stages {'in a V' if back else 'in two rounds'}"
    if len(sizes) == 1:
        return "one device" if sizes == [1] else f"{sizes[0]} replicas"
    if max(sizes) == 1:
        return f"{len(sizes)} stages"
    if min(sizes) == max(sizes):
        return f"{len(sizes)} stages x {sizes[0]} replicas"
    return f"{len(sizes)} stages of {', '.join(map(str, sizes))} replicas"


def orders_of_devices(problem: Problem, count: int) -> list[tuple[int, ...]]:
    """Orders of the best `count` devices: the cluster's, by speed, and by capacity; of alike ones the first.

    Best are the fastest on the whole graph (then the largest, then the first), or the largest.
    """
    devices, costs = problem.cluster.devices, problem.costs
    kinds = {device.kind for device in devices}
    seconds = {kind: sum(costs.total_s(v, kind) for v in problem.graph.nodes) for kind in kinds}
    ranks = range(len(devices))
    fast = sorted(ranks, key=lambda q: (seconds[devices[q].kind], -devices[q].capacity_bytes, q))[:count]
    roomy = sorted(ranks, key=lambda q: (-devices[q].capacity_bytes, seconds[devices[q].kind], q))[:count]
    orders: dict[object, tuple[int, ...]] = {}
    for order in (sorted(fast), fast, fast[::-1], sorted(roomy), roomy):
        orders.setdefault(_alike(problem, order), tuple(order))
    return list(orders.values())


def _alike(problem: Problem, order: Sequence[int]) -> tuple[object, ...]:
    """Equal for orders whose devices, hosts and links differ only in names; for few devices."""
    if len(order) > 2 * EVERY:
        return tuple(order)
    cluster, hosts = problem.cluster, dict[str | None, int]()
    devices = [cluster.devices[q] for q in order]
    links = [cluster.links[p.name, q.name] for p, q in permutations(devices, 2)]
    return (
        *((each.kind, each.capacity_bytes, hosts.setdefault(each.host, len(hosts))) for each in devices),
        *((link.latency_s, link.seconds_per_byte) for link in links),
    )


def device_counts(devices: int) -> list[int]:
    """Numbers of devices to try: all, one, and those between in descending order (beyond eight some)."""
    between = list(range(devices - 1, 1, -1))
    if devices > EVERY:
        powers = {2**i for i in range(1, devices.bit_length())}
        between = sorted({devices - 1, 3 * devices // 4, *powers} - {devices}, reverse=True)
    return list(dict.fromkeys([devices, 1, *between]))


def groupings(order: Sequence[int], replicas: bool) -> Iterator[tuple[Group, ...]]:
    """Runs of the devices in order as stages: every number of stages; then two stages on each device.

    If the devices do not divide evenly, the first stages, or the last, get one more.
    """
    n = len(order)
    single = tuple((q,) for q in order)
    for p in (p for p in range(1, n + 1) if n <= EVERY or n % p == 0):
        if p < n and not replicas:
            continue
        sizes = [n // p + (g < n % p) for g in range(p)]
        for each in dict.fromkeys((tuple(sizes), tuple(reversed(sizes)))):
            ends = np.cumsum(each)
            yield tuple(tuple(order[end - size : end]) for end, size in zip(ends, each, strict=True))
    if n > 1:  # over the devices and back, and twice over them
        yield (*single, *reversed(single))
        yield (*single, *single)
