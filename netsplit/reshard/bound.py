"""Lower bounds of any resharding: bytes that must leave hosts, reach hosts, and reach devices.

Of the unit tasks whose slices no receiving host has (S_i: hosts that have slice i, n_i: its bytes):

    into a host         sum of n_i it needs              x its NIC's seconds per byte
    out of hosts H      sum of n_i with S_i within H     / their NICs' bytes per second together
    into a device       bytes it needs and has not       / bytes per second of its NIC and inside its host

The second holds for every H. All unions of some S_i are tried while these are few; then the S_i, and unions
of those that are chained by common hosts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from netsplit.layout import DeviceName, UnitTask
from netsplit.reshard.network import Network

__all__ = ["least_seconds"]

_FEW = 10  # different S_i, whose unions are at most 2 ** 10


def least_seconds(tasks: Sequence[UnitTask], itemsize: int, network: Network) -> float:
    """Seconds; `tasks` are those of `inside_apart` or of `unit_tasks`."""
    host_of = network.host_of
    leaving: dict[frozenset[str], int] = defaultdict(int)
    reaching: dict[str, int] = defaultdict(int)
    missing: dict[DeviceName, int] = defaultdict(int)
    for task in tasks:
        nbytes = task.elements * itemsize
        havers = frozenset(host_of[device] for device in task.senders)
        apart = {host_of[device] for device in task.receivers} - havers
        if apart:
            leaving[havers] += nbytes
        for host in apart:
            reaching[host] += nbytes
        for device in task.receivers:
            missing[device] += nbytes
    return max(
        (
            *(nbytes * network.nic[host] for host, nbytes in reaching.items()),
            *(n * _both(network.nic[host_of[d]], network.inside[host_of[d]]) for d, n in missing.items()),
            *(_leave_s(hosts, leaving, network) for hosts in _unions(leaving)),
        ),
        default=0.0,
    )


def _both(nic: float, inside: float) -> float:
    """Seconds per byte of a device that receives through its NIC and inside its host at once."""
    return nic * inside / (nic + inside) if nic and inside else 0.0


def _leave_s(hosts: frozenset[str], leaving: Mapping[frozenset[str], int], network: Network) -> float:
    if any(network.nic[host] == 0.0 for host in hosts):
        return 0.0
    rate = sum(1.0 / network.nic[host] for host in hosts)
    return sum(nbytes for havers, nbytes in leaving.items() if havers <= hosts) / rate


def _unions(sets: Iterable[frozenset[str]]) -> set[frozenset[str]]:
    each = list(sets)
    if len(each) <= _FEW:
        return {
            frozenset().union(*chosen) for n in range(1, len(each) + 1) for chosen in combinations(each, n)
        }
    chained: list[frozenset[str]] = []
    for one in each:
        joined = one.union(*(other for other in chained if other & one))
        chained = [other for other in chained if not other & one] + [joined]
    return {*each, *chained, frozenset().union(*each)}
