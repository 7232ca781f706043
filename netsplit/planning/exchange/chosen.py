"""How variables that several devices read travel: chosen by simulating the whole program with each way.

    hosts        A: p            B: q0 q1 q2         C: r0 r1
    to each      p ═► q0, p ═► q1, p ═► q2, p ═► r0, p ═► r1           the NIC of A passes it five times
    broadcast    p ═► q0 ═► r0,  q0 ─► q1, q0 ─► q2, r0 ─► r1          every NIC once; gradients come back so

A broadcast goes from host to host in a chain, and on a host from the first that has it to the others. A
device behind no NIC is a host of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from netsplit.cluster.cluster import Cluster
from netsplit.graph.operators import unchanging
from netsplit.partition.base import Placement, Problem
from netsplit.partition.exchange import Exchange
from netsplit.planning.simulated import Simulated, simulated_by
from netsplit.program.transfers import readers_elsewhere
from netsplit.simulate.simulate import simulate

__all__ = ["broadcast_over", "exchange_line", "nic_bytes", "with_exchanges"]

_ALONE = 8  # groups of variables that are tried one by one
_BETTER = 1 - 1e-9


def with_exchanges(problem: Problem, placement: Placement) -> Placement:
    """The placement with exchanges as its schedule asks for them; itself, where it has some already.

    With auto only what passes NICs is tried, and only what makes the iteration shorter as simulated is taken:
    never at the price of a capacity that is kept without. The number of simulations has a limit.

    Raises:
        TypeError: the problem is not simulated.
    """
    compiler = simulated_by(problem)
    asked = compiler.schedule.exchange
    if asked == "send_receive" or placement.exchanges:
        return placement
    if asked == "auto" and not problem.cluster.nics:
        return placement
    possible = [
        each for each in _broadcasts(problem, placement) if asked == "broadcast" or _gains(each, problem)
    ]
    if asked == "broadcast" or not possible:
        return replace(placement, exchanges=tuple(possible))
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
        return f"{what} handed on from device to device"
    return (
        f"{what} handed on from device to device: {own / 2**20:.1f} instead of {each / 2**20:.1f} MiB of a "
        "micro-batch leave hosts"
    )


def _broadcasts(problem: Problem, placement: Placement) -> list[Exchange]:
    """Of all variables that several devices read elsewhere, where a way over others is no shortcut.

    What is made of weights and goes once to each replica has no one before it to be handed on by.
    """
    graph, cluster = problem.graph, problem.cluster
    lasting = unchanging(graph)
    exchanges = []
    for k, variable in graph.variables.items():
        if variable.producer is None:
            continue
        home, readers = readers_elsewhere(graph, placement.device_of, k)
        if len(readers) < 2 or (k in lasting and not placement.replicas.keys().isdisjoint((home, *readers))):
            continue
        exchange = broadcast_over(cluster, k, home, readers)
        if not _shortcut(cluster, home, exchange, variable.nbytes):
            exchanges.append(exchange)
    return exchanges


def _shortcut(cluster: Cluster, home: str, exchange: Exchange, nbytes: int) -> bool:
    """Whether it arrives anywhere sooner than over the link from home: bounds take that for impossible."""
    there_s = {home: 0.0}
    for p, q in exchange.hops:
        there_s[q] = there_s[p] + cluster.transfer_seconds(nbytes, p, q)
        if there_s[q] < cluster.transfer_seconds(nbytes, home, q):
            return True
    return False


def _gains(exchange: Exchange, problem: Problem) -> bool:
    """Whether a NIC passes less of it than if its home sent it to each."""
    home = exchange.hops[0][0]
    return sum(bool(problem.cluster.way(home, q)) for _, q in exchange.hops) > 1


def _chosen(
    problem: Problem, compiler: Simulated, placement: Placement, possible: Sequence[Exchange]
) -> Placement:
    """All of them or none, whichever is shorter, and then the largest groups of the same hops one by one."""
    groups: dict[tuple[tuple[str, str], ...], list[Exchange]] = {}
    for each in possible:
        groups.setdefault(each.hops, []).append(each)
    variables = problem.graph.variables
    largest = sorted(
        groups, key=lambda hops: -len(hops) * sum(variables[each.variable].nbytes for each in groups[hops])
    )
    best, kept = placement, simulate(compiler.whole_microbatches(placement), compiler.cluster, compiler.costs)
    room = {
        each.name: max(each.capacity_bytes, kept.peak_bytes.get(each.name, 0))
        for each in problem.cluster.devices
    }
    best_s, taken = kept.iteration_s, frozenset[tuple[tuple[str, str], ...]]()
    tried = [frozenset(groups)]
    tried += [frozenset((hops,)) for hops in largest[:_ALONE] if len(groups) > 1]
    for number, change in enumerate(tried):
        chosen = change if number == 0 else taken ^ change
        other = replace(placement, exchanges=tuple(each for each in possible if each.hops in chosen))
        timeline = simulate(compiler.whole_microbatches(other), compiler.cluster, compiler.costs)
        fits = all(nbytes <= room[name] for name, nbytes in timeline.peak_bytes.items())
        if fits and timeline.iteration_s < best_s * _BETTER:
            best, best_s, taken = other, timeline.iteration_s, chosen
    return best
