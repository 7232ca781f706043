"""What binds: the device, link or chain that makes the objective as large as it is, and tight memory limits.

Whether a memory limit is tight is found by trying: moves of a few nodes to another device are scored with
the problem's own objective, and those that would improve it but do not fit (`needed_bytes`) are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain as chained
from itertools import islice, zip_longest
from time import monotonic
from typing import Literal

import numpy as np

from netsplit.partition.base import Loads, Placement
from netsplit.partition.common.instance import Instance, Ints
from netsplit.planning.explanation.notation import listed, node_run, percent, seconds
from netsplit.planning.explanation.path import PathSpan, totals
from netsplit.planning.explanation.uses import CutEdge
from netsplit.planning.needed_bytes import needed_bytes
from netsplit.planning.verify import verify
from netsplit.tables import nbytes

__all__ = [
    "Binding",
    "Move",
    "load_binding",
    "longest_chain",
    "memory_sentence",
    "path_binding",
    "stages_binding",
    "try_moves",
]

_CHAIN = 0.9  # of the iteration: from here on the chain of nodes itself is what binds
_WORTH = 1e-6  # of the objective: a gain that is more than rounding


@dataclass(frozen=True)
class Move:
    """Some nodes on another device: what it would gain, and the bytes that are missing there for it."""

    nodes: tuple[str, ...]
    source: str
    target: str
    gain_s: float
    missing_bytes: int  # 0: it fits


@dataclass(frozen=True)
class Binding:
    """The answer to "why is it not faster?"; seconds of the objective."""

    what: Literal["device", "link", "chain", "nothing"]
    name: str  # of the device, of the link, or the chain's first and last node
    seconds: float  # of the objective that it accounts for
    sentence: str
    blocked: tuple[Move, ...] = ()  # would gain, and memory forbids them: per device least missing, most gain
    open: tuple[Move, ...] = ()  # would gain and fit: the placement can be improved
    tried: int = 0  # moves scored

    @property
    def tight(self) -> tuple[str, ...]:
        """Devices whose memory limit keeps the objective up."""
        return tuple(dict.fromkeys(move.target for move in self.blocked))


def longest_chain(instance: Instance) -> tuple[float, tuple[str, ...]]:
    """Forward and backward seconds along one path, each node on its fastest device, no transfers.

    No placement has a shorter latency; of a task graph whose backward computations are nodes too.
    """
    own = (instance.forward_s + instance.backward_s).min(axis=1)
    ends, best = np.zeros(instance.n), np.full(instance.n, -1)
    for v in range(instance.n):
        before = instance.predecessors[v]
        if len(before):
            best[v] = before[int(np.argmax(ends[before]))]
            ends[v] = ends[best[v]]
        ends[v] += own[v]
    if not instance.n:
        return 0.0, ()
    v, path = int(np.argmax(ends)), []
    longest = float(ends[v])
    while v >= 0:
        path.append(instance.names[v])
        v = int(best[v])
    return longest, tuple(reversed(path))


def path_binding(instance: Instance, path: Sequence[PathSpan], iteration_s: float) -> Binding:
    """What the critical path is made of, in one sentence."""
    by_place = [(where, s) for where, s in totals(path).items() if s > 0]
    if not by_place:
        return Binding("nothing", "", 0.0, "Nothing binds: the iteration takes no time.")
    chain_s, chain = longest_chain(instance)
    if chain_s >= _CHAIN * iteration_s:
        return Binding(
            "chain",
            f"{chain[0]} .. {chain[-1]}",
            chain_s,
            f"The chain {node_run(chain)} binds: each node on its fastest device and without transfers,"
            f" it takes {seconds(chain_s)}, {percent(chain_s, iteration_s)} of the iteration.",
        )
    name, spent = by_place[0]
    others = [
        f"{where} another {percent(s, iteration_s)}" for where, s in by_place[1:3] if s > 0.1 * iteration_s
    ]
    rest = "; " + ", ".join(others) if others else ""
    if " -> " in name:
        sent = [span for span in path if span.where == name]
        most = max(sent, key=lambda span: span.seconds)
        sentence = (
            f"The link {name} binds: its transfers are {percent(spent, iteration_s)} of the critical path,"
            f" most of all {most.name} with {seconds(most.seconds)}{rest}."
        )
        return Binding("link", name, spent, sentence)
    kinds = {
        kind: sum(s.seconds for s in path if s.where == name and s.what in parts)
        for kind, parts in (("forward", ("forward", "recompute")), ("backward", ("backward", "weight")))
    }
    sentence = (
        f"The time of {name} binds: it is {percent(spent, iteration_s)} of the critical path"
        f" (forward {seconds(kinds['forward'])}, backward {seconds(kinds['backward'])}){rest}."
    )
    return Binding("device", name, spent, sentence)


def load_binding(loads: Loads, devices: Sequence[str]) -> Binding:
    """The device with the largest load, and what the load is made of."""
    p = int(np.argmax(loads.seconds))
    name, load, transfer = devices[p], float(loads.seconds[p]), float(loads.transfer_s[p])
    if load <= 0:
        return Binding("nothing", "", 0.0, "Nothing binds: no device has a load.")
    if loads.beside and transfer < load:
        return Binding("device", name, load, f"The computing of {name} binds, {seconds(load)}.")
    if loads.beside:
        way = "from" if loads.send_s[p] >= transfer else "to"
        return Binding("device", name, load, f"The transfers {way} {name} bind, {seconds(load)}.")
    made_of = ", ".join(
        f"{part} {seconds(float(each[p]))} ({percent(float(each[p]), load)})"
        for part, each in sorted(loads.parts.items(), key=lambda item: -item[1][p])
        if each[p] > 0
    )
    after = ""
    if len(devices) > 1:
        q = max((q for q in range(len(devices)) if q != p), key=lambda q: loads.seconds[q])
        after = f"; the next is {devices[q]} at {percent(float(loads.seconds[q]), load)} of it"
    return Binding("device", name, load, f"The load of {name} binds, {seconds(load)}: {made_of}{after}.")


def stages_binding(loads: Loads, devices: Sequence[str]) -> Binding:
    """The stage whose replicas compute longest, each its part; the rest of the period is communication."""
    compute_s = dict(zip(devices, loads.forward_s + loads.backward_s, strict=True))
    replica_s = [float(compute_s[stage.devices[0]]) for stage in loads.stages]
    k = max(range(len(replica_s)), key=replica_s.__getitem__)
    spent, names = replica_s[k], ", ".join(loads.stages[k].devices)
    sentence = (
        f"Stage {k} on {names} computes most: {seconds(spent)} a micro-batch and replica,"
        f" {percent(spent, loads.period_s)} of the period; transfers and synchronisation of weights make the"
        " rest."
    )
    return Binding("device", names, spent, sentence)


def try_moves(
    instance: Instance,
    placement: Placement,
    score: Callable[[Placement], float],
    edges: Sequence[CutEdge],
    hot: Sequence[str],
    limit: int = 80,
    time_limit_s: float = 3.0,
) -> tuple[tuple[Move, ...], tuple[Move, ...], int]:
    """Score moves of a few nodes: those that memory blocks, those that would fit, and how many were scored.

    Args:
        score: seconds of the objective of a placement.
        edges: cut edges, the costliest first: the nodes at their ends move over them.
        hot: nodes that hold the objective up: they move anywhere, the slowest first.
        limit: moves scored at most.
        time_limit_s: no further move is scored after it.
    """
    deadline = monotonic() + time_limit_s
    where = instance.encode(placement.device_of)
    problem, base = instance.problem, score(placement)
    anything_goes = not problem.objective.contiguous
    blocked: list[Move] = []
    free: list[Move] = []
    tried = 0
    for nodes, q in islice(_candidates(instance, placement, where, edges, hot), limit):
        if monotonic() > deadline:
            break
        tried += 1
        trial = where.copy()
        trial[nodes] = q
        candidate = replace(placement, device_of=instance.decode(trial), stages=())
        gain = base - score(candidate)
        if gain <= _WORTH * base or not (anything_goes or verify(problem, candidate, False).ok):
            continue
        missing = int(needed_bytes(instance, candidate)[q] - instance.capacity[q])
        names = tuple(instance.names[v] for v in nodes)
        move = Move(names, instance.devices[int(where[nodes[0]])], instance.devices[q], gain, max(0, missing))
        (blocked if missing > 0 else free).append(move)
    # What gains no more than a move that fits is not kept back by memory, but by the search.
    reached = max((move.gain_s for move in free), default=0.0)
    blocked = [move for move in blocked if move.gain_s > reached * (1 + _WORTH)]
    return _outstanding(blocked), tuple(sorted(free, key=lambda m: -m.gain_s)[:3]), tried


def memory_sentence(binding: Binding, objective_s: float) -> str:
    """What the moves that were tried say about memory, in one sentence."""
    if not binding.tried:
        return ""
    if binding.blocked:
        cheapest = min(binding.blocked, key=lambda m: (m.missing_bytes, -m.gain_s))
        names, verb = listed(binding.tight), "binds" if len(binding.tight) == 1 else "bind"
        return (
            f"The memory of {names} {verb}: with {nbytes(cheapest.missing_bytes)} more on {cheapest.target},"
            f" {node_run(cheapest.nodes)} could move there from {cheapest.source} and"
            f" save {seconds(cheapest.gain_s)} ({percent(cheapest.gain_s, objective_s)})."
        )
    return f"Of {binding.tried} moves tried, memory forbids none that would help more than those that fit."


def _outstanding(blocked: list[Move]) -> tuple[Move, ...]:
    """Per device the move that lacks the fewest bytes and the one that gains most."""
    moves: dict[Move, None] = {}
    for target in dict.fromkeys(move.target for move in blocked):
        mine = [move for move in blocked if move.target == target]
        moves[min(mine, key=lambda m: (m.missing_bytes, -m.gain_s))] = None
        moves[max(mine, key=lambda m: (m.gain_s, -m.missing_bytes))] = None
    return tuple(sorted(moves, key=lambda m: m.missing_bytes))


def _candidates(
    instance: Instance, placement: Placement, where: Ints, edges: Sequence[CutEdge], hot: Sequence[str]
) -> Iterator[tuple[Ints, int]]:
    """(nodes, device), each once: in turn over a cut edge and of a slow node."""
    seen: set[tuple[int, bytes]] = set()
    over = _over_edges(instance, placement, where, edges)
    alone = _anywhere(instance, where, hot)
    for nodes, q in (c for c in chained.from_iterable(zip_longest(over, alone)) if c is not None):
        atoms = np.unique(instance.atom_of[nodes])
        closed = np.sort(np.concatenate([instance.atoms[int(a)] for a in atoms]))
        key = (q, closed.tobytes())
        if key not in seen and not (where[closed] == q).any():
            seen.add(key)
            yield closed, q


def _over_edges(
    instance: Instance, placement: Placement, where: Ints, edges: Sequence[CutEdge]
) -> Iterator[tuple[Ints, int]]:
    """The last nodes up to a cut edge follow it, or the first ones from it on come back: 1, 4, 16, ..."""
    index = {name: v for v, name in enumerate(instance.names)}
    place = {name: p for p, name in enumerate(instance.devices)}
    order = sorted(range(instance.n), key=lambda v: placement.priority[instance.names[v]])
    lanes = {p: [v for v in order if where[v] == p] for p in set(where.tolist())}
    for edge in edges:
        p, q = place[edge.source], place[edge.target]
        last = lanes[p].index(index[edge.producer]) + 1
        first = min(lanes[q].index(index[v]) for v in edge.readers)
        size = 1
        while size <= instance.n:
            if size <= last:
                yield np.array(lanes[p][last - size : last]), q
            if first + size <= len(lanes[q]):
                yield np.array(lanes[q][first : first + size]), p
            size *= 4


def _anywhere(instance: Instance, where: Ints, hot: Sequence[str]) -> Iterator[tuple[Ints, int]]:
    index = {name: v for v, name in enumerate(instance.names)}
    total = instance.forward_s + instance.backward_s
    slow = sorted({index[name] for name in hot}, key=lambda v: (-total[v, where[v]], v))
    for v in slow:
        for q in range(len(instance.devices)):
            if q != where[v]:
                yield np.array([v]), q
