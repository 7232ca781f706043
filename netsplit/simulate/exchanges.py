"""How variables that several devices read may travel; `Simulator.scored` takes the shortest way.

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
from math import prod

from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import Graph, Variable
from netsplit.graph.operators import unchanging
from netsplit.placement.exchange import Exchange, ExchangeName
from netsplit.placement.placement import Placement
from netsplit.program.instructions import sizes_of
from netsplit.program.transfers import readers_elsewhere
from netsplit.reshard.network import Network, network_of
from netsplit.reshard.plan import best_chunks

__all__ = ["broadcast_over", "exchange_line", "exchanges_to_try"]

_BETTER = 1 - 1e-9
_MOST_CHUNKS = 16  # with any more the second host that receives it has it at most 6 % of a hop sooner


def exchanges_to_try(
    graph: Graph, cluster: Cluster, asked: ExchangeName, placement: Placement
) -> list[tuple[Exchange, ...]]:
    """Exchanges of all variables that a schedule would have handed on: whole, and in chunks.

    With auto only of what passes a NIC several times else. None where the placement has some already.
    """
    if asked == "send_receive" or placement.exchanges or (asked == "auto" and not cluster.nics):
        return []
    possible = [
        each
        for each in _broadcasts(graph, cluster, placement)
        if asked == "broadcast" or _gains(each, cluster)
    ]
    whole = tuple(replace(each, chunks=1) for each in possible)
    return list(dict.fromkeys((whole, tuple(possible)))) if possible else []


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


def exchange_line(placement: Placement) -> str:
    """In words: how many variables."""
    count = len(placement.exchanges)
    what = "1 variable is" if count == 1 else f"{count} variables are"
    return f"{what} forwarded from device to device"


def _broadcasts(graph: Graph, cluster: Cluster, placement: Placement) -> list[Exchange]:
    """Exchanges of all variables that several devices read elsewhere, where no detour is a shortcut. What is
    made of weights and goes once to each replica has no one before it to be handed on by."""
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
    """Hops from the home up to each hop."""
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


def _gains(exchange: Exchange, cluster: Cluster) -> bool:
    """Whether a NIC passes less of it than if its home sent it to each."""
    home = exchange.hops[0][0]
    return sum(bool(cluster.way(home, q)) for _, q in exchange.hops) > 1
