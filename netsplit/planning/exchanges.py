"""How variables that several devices read travel: chosen by simulating the whole program with each way.

    hosts        A: p            B: q0 q1 q2         C: r0 r1
    to each      p ═► q0, p ═► q1, p ═► q2, p ═► r0, p ═► r1           the NIC of A passes it five times
    broadcast    p ═► q0 ═► r0,  q0 ─► q1, q0 ─► q2, r0 ─► r1          every NIC once; gradients come back so

A broadcast goes from host to host in a chain, and on a host from the first that has it to the others. A
device behind no NIC is a host of its own. Large ones may go in chunks, which are on their way on all hops at
once: as many as `reshard` takes for such a chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from math import prod
from typing import TypeAlias

from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import Variable
from netsplit.graph.operators import unchanging
from netsplit.partition.base import Problem
from netsplit.placement.exchange import Exchange
from netsplit.placement.placement import Placement
from netsplit.program.instructions import sizes_of
from netsplit.program.transfers import readers_elsewhere
from netsplit.reshard.network import Network, network_of
from netsplit.reshard.plan import best_chunks
from netsplit.simulate.simulate import simulate
from netsplit.simulate.simulator import Simulator
from netsplit.simulate.timeline import Timeline
from netsplit.tables import nbytes

__all__ = ["broadcast_over", "exchange_line", "nic_bytes", "with_exchanges"]

Hops: TypeAlias = tuple[tuple[str, str], ...]

_ALONE = 8  # groups of variables that are tried one by one
_BETTER = 1 - 1e-9
_MOST_CHUNKS = 16  # with any more the second host that receives it has it at most 6 % of a hop sooner


def with_exchanges(problem: Problem, placement: Placement) -> Placement:
    """The placement with exchanges as its schedule asks for them; itself, where it has some already.

    With auto only what passes NICs is tried, and only what makes the iteration shorter as simulated is taken:
    never at the price of a capacity that is kept without. The number of simulations has a limit.

    Raises:
        TypeError: the problem is not simulated.
    """
    compiler = problem.the_simulator
    asked = compiler.schedule.exchange
    if asked == "send_receive" or placement.exchanges:
        return placement
    if asked == "auto" and not problem.cluster.nics:
        return placement
    possible = [
        each for each in _broadcasts(problem, placement) if asked == "broadcast" or _gains(each, problem)
    ]
    if asked == "broadcast":
        return _whole_or_in_chunks(compiler, placement, possible)
    if not possible:
        return placement
    return _chosen(problem, compiler, placement, possible)


def broadcast_over(cluster: Cluster, variable: str, home: str, readers: Sequence[str]) -> Exchange:
    """From host to host in the order of their first readers, and from the first of each host to the rest."""
    host_of = {
        name: nic.host if (nic := cluster.nic(name)) is not None else name for name in (home, *readers)
    }
    first = {host_of[home]: home}
    hops, last = [], home
    for name in readers:
        host = host_of[name]
        if host not in first:
            hops.append((last, name))
            first[host] = last = name
        else:
            hops.append((first[host], name))
    return Exchange(variable, tuple(hops))


def nic_bytes(problem: Problem, placement: Placement) -> tuple[int, int]:
    """Bytes that values pass NICs with in a micro-batch, each counted where it leaves: of what is exchanged,
    as it is, and as if its home sent it to each."""
    cluster, graph, passed = problem.cluster, problem.graph, [0, 0]
    for each in placement.exchanges:
        home, readers = readers_elsewhere(graph, placement.device_of, each.variable)
        for place, hops in enumerate((each.hops, [(home, name) for name in readers])):
            passed[place] += graph.variables[each.variable].nbytes * sum(
                bool(cluster.way(*hop)) for hop in hops
            )
    return passed[0], passed[1]


def exchange_line(problem: Problem, placement: Placement) -> str:
    """In words: how many variables, and how much less leaves hosts."""
    count = len(placement.exchanges)
    own, each = nic_bytes(problem, placement)
    what = "1 variable is" if count == 1 else f"{count} variables are"
    if not each:
        return f"{what} forwarded from device to device"
    return (
        f"{what} forwarded from device to device: per micro-batch {nbytes(own)} leave hosts instead of "
        f"{nbytes(each)}"
    )


def _broadcasts(problem: Problem, placement: Placement) -> list[Exchange]:
    """Of all variables that several devices read elsewhere, where a way over others is no shortcut. What is
    made of weights and goes once to each replica has no one before it to be handed on by."""
    graph, cluster = problem.graph, problem.cluster
    lasting = unchanging(graph)
    network, exchanges = network_of(cluster), []
    for k, variable in graph.variables.items():
        if variable.producer is None:
            continue
        home, readers = readers_elsewhere(graph, placement.device_of, k)
        if len(readers) < 2 or (k in lasting and not placement.replicas.keys().isdisjoint((home, *readers))):
            continue
        whole = broadcast_over(cluster, k, home, readers)
        for exchange in (_in_chunks(whole, variable, cluster, network), whole):
            if not _shortcut(exchange, variable, cluster):
                exchanges.append(exchange)
                break
    return exchanges


def _in_chunks(exchange: Exchange, variable: Variable, cluster: Cluster, network: Network) -> Exchange:
    """In as many as `reshard` has for its longest way; whole, where that is no way worth it."""
    longest = max(_ways(exchange), key=lambda way: _arrival_s(way[1:], (variable.nbytes,), cluster))
    if _arrival_s(longest[1:], (variable.nbytes,), cluster) == 0:
        return exchange
    names = [longest[0][0], *(q for _, q in longest)]
    best = best_chunks(variable.nbytes, names, network)
    return replace(exchange, chunks=max(min(best, prod(variable.shape), _MOST_CHUNKS), 1))


def _ways(exchange: Exchange) -> list[list[tuple[str, str]]]:
    """Of each hop, those from the home up to it."""
    way: dict[str, list[tuple[str, str]]] = {exchange.hops[0][0]: []}
    for p, q in exchange.hops:
        way[q] = [*way[p], (p, q)]
    return [way[q] for _, q in exchange.hops]


def _shortcut(exchange: Exchange, variable: Variable, cluster: Cluster) -> bool:
    """Whether it, or its gradient, arrives sooner anywhere than over the direct link: bounds take that for
    impossible."""
    sizes = sizes_of(variable, exchange.chunks)
    for way in _ways(exchange):
        back = [hop[::-1] for hop in reversed(way)]
        for each in (way, back):
            direct_s = cluster.transfer_seconds(variable.nbytes, each[0][0], each[-1][1])
            if _arrival_s(each, sizes, cluster) < direct_s * _BETTER:
                return True
    return False


def _arrival_s(way: Sequence[tuple[str, str]], sizes: Sequence[int], cluster: Cluster) -> float:
    """Seconds until the last chunk is there, with nothing else on its way."""
    there_s = [0.0] * len(sizes)
    for p, q in way:
        free_s = 0.0
        for chunk, size in enumerate(sizes):
            free_s = max(free_s, there_s[chunk]) + cluster.transfer_seconds(size, p, q)
            there_s[chunk] = free_s
    return there_s[-1]


def _gains(exchange: Exchange, problem: Problem) -> bool:
    """Whether a NIC passes less of it than if its home sent it to each."""
    home = exchange.hops[0][0]
    return sum(bool(problem.cluster.way(home, q)) for _, q in exchange.hops) > 1


def _whole_or_in_chunks(compiler: Simulator, placement: Placement, possible: Sequence[Exchange]) -> Placement:
    """All of them: whole, or in chunks where that is simulated to be shorter."""
    whole = replace(placement, exchanges=tuple(replace(each, chunks=1) for each in possible))
    in_chunks = replace(placement, exchanges=tuple(possible))
    if whole == in_chunks:
        return whole
    return min((whole, in_chunks), key=lambda each: _seconds(compiler, each))


def _seconds(compiler: Simulator, placement: Placement) -> float:
    program = compiler.whole_microbatches(placement)
    return simulate(program, compiler.cluster, compiler.costs, peaks=False).iteration_s


def _chosen(
    problem: Problem, compiler: Simulator, placement: Placement, possible: Sequence[Exchange]
) -> Placement:
    """All of them, whole or in chunks, or none, whichever is shortest; then the largest groups of variables
    with the same hops one by one."""
    groups: dict[Hops, list[Exchange]] = {}
    for each in possible:
        groups.setdefault(each.hops, []).append(each)
    variables = problem.graph.variables
    largest = sorted(
        groups, key=lambda hops: -len(hops) * sum(variables[each.variable].nbytes for each in groups[hops])
    )
    shortest = _Shortest(problem, compiler, placement)
    whole = {hops: [replace(each, chunks=1) for each in own] for hops, own in groups.items()}
    as_whole = shortest.try_with(whole)
    in_chunks = whole != groups and shortest.try_with(groups)
    forms = whole if as_whole and not in_chunks else groups
    for hops in largest[:_ALONE] if len(groups) > 1 else ():
        others = {each: own for each, own in shortest.taken.items() if each != hops}
        shortest.try_with(others if hops in shortest.taken else {**others, hops: forms[hops]})
    return shortest.placement


class _Shortest:
    """The shortest program so far, of those that keep each capacity that is kept without exchanges."""

    def __init__(self, problem: Problem, compiler: Simulator, placement: Placement) -> None:
        self.compiler = compiler
        self.placement = placement
        self.taken: dict[Hops, list[Exchange]] = {}
        timeline = self._timeline(placement)
        self.seconds = timeline.iteration_s
        self.room = {
            each.name: max(each.capacity_bytes, timeline.peak_bytes.get(each.name, 0))
            for each in problem.cluster.devices
        }

    def try_with(self, groups: dict[Hops, list[Exchange]]) -> bool:
        """Take these exchanges, where that is shorter; whether it is."""
        other = replace(self.placement, exchanges=tuple(chain.from_iterable(groups.values())))
        timeline = self._timeline(other)
        fits = all(nbytes <= self.room[name] for name, nbytes in timeline.peak_bytes.items())
        better = fits and timeline.iteration_s < self.seconds * _BETTER
        if better:
            self.placement, self.seconds, self.taken = other, timeline.iteration_s, groups
        return better

    def _timeline(self, placement: Placement) -> Timeline:
        compiler = self.compiler
        return simulate(compiler.whole_microbatches(placement), compiler.cluster, compiler.costs)
