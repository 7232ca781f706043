"""From a layout to a layout: the plan, its predicted seconds and their lower bound; `plan_reshard` makes one.

layouts ──unit_tasks──► slices ──HostTask──► senders and order ──strategy──► hops ──hop_times──► seconds
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, pairwise
from math import prod, sqrt

from netsplit.errors import ReshardError
from netsplit.layout import DeviceName, Layout, UnitTask, unit_tasks
from netsplit.reshard.hops import STRATEGIES, Hop, Strategy, times_sent
from netsplit.reshard.network import Network
from netsplit.reshard.orders import ORDERS, HostSchedule, HostTask
from netsplit.tables import nbytes

__all__ = ["ReshardPlan", "best_chunks", "plan_reshard"]

_AT_BOUND = 1.0 + 1e-9
_NEAR_BOUND = 1.05
_MOST_CHUNKS = 100  # K of the paper's measurements
_FEW = 10  # different S_i of `least_seconds`, whose unions are at most 2 ** 10


@dataclass(frozen=True)
class ReshardPlan:
    """How a tensor gets from one layout to another.

    Args:
        shape: of the whole tensor.
        itemsize: bytes of an element.
        strategy, order: by name, as they were chosen.
        tasks: unit tasks; those without receivers have no hops, but may have keepers.
        senders: of every task, the device that sends it first.
        hops: in the order in which NICs and devices do them; `Hop.task` is an index into `tasks`.
        times: predicted seconds at which each hop starts and ends.
        bound_s: a lower bound for any strategy and order.
    """

    source: Layout
    destination: Layout
    shape: tuple[int, ...]
    itemsize: int
    network: Network = field(repr=False)
    strategy: str
    order: str
    tasks: tuple[UnitTask, ...] = field(repr=False)
    senders: tuple[DeviceName, ...] = field(repr=False)
    hops: tuple[Hop, ...] = field(repr=False)
    times: tuple[tuple[float, float], ...] = field(repr=False)
    bound_s: float

    @cached_property
    def seconds(self) -> float:
        """Predicted, until the last hop has ended."""
        return max((end for _, end in self.times), default=0.0)

    @cached_property
    def nic_bytes(self) -> dict[str, tuple[int, int]]:
        """Host -> bytes that its NIC sends and receives."""
        host_of = self.network.host_of
        totals = {
            host_of[device]: [0, 0]
            for layout in (self.source, self.destination)
            for device in layout.mesh.devices
        }
        for hop in self.hops:
            a, b = host_of[hop.source], host_of[hop.destination]
            if a != b:
                totals[a][0] += (hop.stop - hop.start) * self.itemsize
                totals[b][1] += (hop.stop - hop.start) * self.itemsize
        return {host: (sent, received) for host, (sent, received) in totals.items()}

    def summary(self) -> str:
        """A few lines for people."""
        layouts = (
            f"{self.source.spec} on {self.source.mesh.shape} to {self.destination.spec} on "
            f"{self.destination.mesh.shape}: {list(self.shape)}, {nbytes(prod(self.shape) * self.itemsize)}"
        )
        lines = [
            layouts,
            f"{self.strategy}, {self.order}: {len(self.tasks)} unit tasks, {len(self.hops)} messages",
            f"predicted {self.seconds * 1e3:,.3f} ms, lower bound {self.bound_s * 1e3:,.3f} ms",
        ]
        for host, (sent, received) in self.nic_bytes.items():
            lines.append(f"{host}: sends {nbytes(sent)}, receives {nbytes(received)}")
        return "\n".join(lines)


def plan_reshard(
    source: Layout,
    destination: Layout,
    shape: Sequence[int],
    itemsize: int,
    network: Network,
    strategy: str = "auto",
    order: str = "auto",
    chunks: int | None = None,
    seed: int = 0,
) -> ReshardPlan:
    """Plan a resharding; the meshes may share devices and hosts.

    Args:
        shape: of the whole tensor.
        itemsize: bytes of an element.
        strategy: one of `STRATEGIES`, or auto: the one predicted to be fastest.
        order: one of `ORDERS`, or auto, which may cut unit tasks further, for several senders of one slice.
            The naive order replaces one that is predicted to be slower.
        chunks: K of `broadcast`; None: chosen by messages' latencies, at most 100.
        seed: of the randomised order.

    Raises:
        ReshardError: a layout for another number of dimensions, a device without host, an unknown name.
    """
    if (chunks is not None and chunks < 1) or itemsize < 1:
        raise ReshardError(
            f"a plan of {chunks} chunks and {itemsize} bytes per element: give at least 1 of both."
        )
    for word, name, known in (("strategy", strategy, STRATEGIES), ("order", order, ORDERS)):
        if name not in ("auto", *known):
            raise ReshardError(f"{word} is '{name}': give auto, {', '.join(known)}.")
    tasks = inside_apart(unit_tasks(source, destination, shape), network)
    bound_s = least_seconds(tasks, itemsize, network)
    strategies = list(STRATEGIES) if strategy == "auto" else [strategy]

    def best(tasks: Sequence[UnitTask]) -> ReshardPlan:
        asked = ReshardPlan(
            source, destination, tuple(shape), itemsize, network, "", order, tuple(tasks), (), (), (), bound_s
        )
        shortest: ReshardPlan | None = None
        for plan in _tried(asked, strategies, chunks, seed):
            if shortest is None or plan.seconds < shortest.seconds:
                shortest = plan
            if shortest.seconds <= bound_s * _AT_BOUND:
                break
        assert shortest is not None
        return shortest

    plan = best(tasks)
    if order == "auto" and plan.seconds > bound_s * _NEAR_BOUND:
        plan = min(plan, best(divided(tasks, network)), key=lambda each: each.seconds)
    return plan


def _tried(
    asked: ReshardPlan, strategies: Sequence[str], chunks: int | None, seed: int
) -> Iterator[ReshardPlan]:
    """Plans of the tasks of `asked`: for each strategy in its order, or in all, and in the naive one."""
    auto = asked.order == "auto"
    for strategy in strategies:
        build = STRATEGIES[strategy]
        between = host_tasks(asked.tasks, asked.itemsize, asked.network, strategy)
        for name in ORDERS if auto else dict.fromkeys(["naive", asked.order]):
            schedule = ORDERS[name](list(between.values()), seed)
            tasks, senders = _decide(asked.tasks, list(between), schedule, asked.network, name != "naive")
            hops = _all_hops(tasks, senders, build, chunks, asked.itemsize, asked.network)
            yield replace(
                asked,
                strategy=strategy,
                order=name if auto else asked.order,
                tasks=tuple(tasks),
                senders=tuple(senders),
                hops=tuple(hops),
                times=tuple(hop_times(hops, asked.itemsize, asked.network)),
            )


def host_tasks(
    tasks: Sequence[UnitTask], itemsize: int, network: Network, strategy: str
) -> dict[int, HostTask]:
    """Index -> a task of `inside_apart` that passes NICs, as hosts see it; seconds without latencies."""
    tasks_of = {}
    for index, task in enumerate(tasks):
        havers, groups = by_hosts(task.senders, network), by_hosts(task.receivers, network)
        if not groups or not havers.keys().isdisjoint(groups):
            continue
        nbytes = task.elements * itemsize * times_sent(strategy, len(groups), len(task.receivers))
        slowest = max(network.nic[host] for host in groups)
        seconds = tuple(nbytes * max(network.nic[host], slowest) for host in havers)
        tasks_of[index] = HostTask(tuple(havers), seconds, tuple(groups))
    return tasks_of


def _decide(
    tasks: Sequence[UnitTask], crossing: Sequence[int], schedule: HostSchedule, network: Network, spread: bool
) -> tuple[list[UnitTask], list[DeviceName]]:
    """The tasks in their turns, those inside hosts last, and their senders. `crossing` has the index of each
    task of the schedule; `spread` takes devices with least to send."""
    chosen = {crossing[i]: schedule.chosen[i] for i in schedule.order}
    load: dict[DeviceName, int] = {}
    turns, senders = [], []
    for index in [*chosen, *(i for i in range(len(tasks)) if i not in chosen)]:
        task = tasks[index]
        havers = list(by_hosts(task.senders, network).values())[chosen.get(index, 0)]
        sender = min(havers, key=lambda device: load.get(device, 0)) if spread else havers[0]
        load[sender] = load.get(sender, 0) + task.elements
        turns.append(task)
        senders.append(sender)
    return turns, senders


def _all_hops(
    tasks: Sequence[UnitTask],
    senders: Sequence[DeviceName],
    build: Strategy,
    chunks: int | None,
    itemsize: int,
    network: Network,
) -> list[Hop]:
    hops: list[Hop] = []
    for index, (task, sender) in enumerate(zip(tasks, senders, strict=True)):
        if task.receivers:
            groups = list(by_hosts(task.receivers, network).values())
            chain = [sender, *(device for group in groups for device in group)]
            k = chunks or best_chunks(task.elements * itemsize, chain, network)
            hops += build(index, task.elements, sender, groups, k, len(hops))
    return hops


def best_chunks(nbytes: int, chain: Sequence[DeviceName], network: Network) -> int:
    """K of the least K latency + t + D / K; D is the slice's seconds from the first receiver on."""
    latency_s = network.seconds(0, *chain[:2])
    way_s = sum(network.seconds(nbytes, *pair) - network.seconds(0, *pair) for pair in pairwise(chain[1:]))
    if way_s >= _MOST_CHUNKS**2 * latency_s:
        return _MOST_CHUNKS
    return max(1, round(sqrt(way_s / latency_s)))


def hop_times(hops: Sequence[Hop], itemsize: int, network: Network) -> list[tuple[float, float]]:
    """Seconds from the beginning at which each hop starts and ends: one walk over the hops, in their order.

        NIC of A, out     ├ hop 0 ┤├ hop 1 ┤          a hop between hosts holds the sending NIC and the
        NIC of B, in      ├ hop 0 ┤        ├ hop 2 ┤  receiving one; one inside a host, what its two devices
        NIC of C, in               ├ hop 1 ┤          send and receive by
        NIC of C, out                      ├ hop 2 ┤  (hop 2 waits for hop 1, which brings what it sends)

    NICs and devices are held while the bytes pass. A message's latency comes after that, and only messages
    between the same two devices wait for it.
    """
    free: dict[Hashable, float] = {}
    times: list[tuple[float, float]] = []
    for hop in hops:
        a, b = network.host_of[hop.source], network.host_of[hop.destination]
        out, into = (
            ((a, "out"), (b, "in")) if a != b else ((hop.source, a, "out"), (hop.destination, a, "in"))
        )
        pair = hop.source, hop.destination
        start = max(
            *(free.get(each, 0.0) for each in (out, into, ("pair", *pair))), *(times[i][1] for i in hop.after)
        )
        end = start + network.seconds((hop.stop - hop.start) * itemsize, *pair)
        free[out] = free[into] = end - network.seconds(0, *pair)
        free["pair", *pair] = end
        times.append((start, end))
    return times


def inside_apart(tasks: Sequence[UnitTask], network: Network) -> list[UnitTask]:
    """The same, with receivers on hosts that have the slice as tasks of their own, last, one a host: nothing
    passes a NIC for a host that has it."""
    across, inside = [], []
    for task in tasks:
        havers = by_hosts(task.senders, network)
        groups = by_hosts(task.receivers, network)
        own = {host: group for host, group in groups.items() if host in havers}
        others = tuple(device for device in task.receivers if network.host(device) not in own)
        if others or task.keepers:
            across.append(replace(task, receivers=others))
        inside += [UnitTask(task.region, havers[host], group) for host, group in own.items()]
    return across + inside


def divided(tasks: Sequence[UnitTask], network: Network) -> list[UnitTask]:
    """The same, with slices that n hosts have cut into n, along their longest dimension."""
    pieces = []
    for task in tasks:
        lengths = [stop - start for start, stop in task.region]
        length = max(lengths, default=1)
        parts = min(len(by_hosts(task.senders, network)), length)
        if parts == 1:
            pieces.append(task)
            continue
        d = lengths.index(length)
        first = task.region[d][0]
        for i in range(parts):
            ends = first + length * i // parts, first + length * (i + 1) // parts
            pieces.append(replace(task, region=(*task.region[:d], ends, *task.region[d + 1 :])))
    return pieces


def by_hosts(devices: Sequence[DeviceName], network: Network) -> dict[str, tuple[DeviceName, ...]]:
    """Devices of each host, in their order."""
    groups: dict[str, tuple[DeviceName, ...]] = {}
    for device in devices:
        host = network.host(device)
        groups[host] = (*groups.get(host, ()), device)
    return groups


def least_seconds(tasks: Sequence[UnitTask], itemsize: int, network: Network) -> float:
    """A lower bound of any resharding; `tasks` are those of `inside_apart` or of `unit_tasks`.

    Of the unit tasks whose slices no receiving host has (S_i: hosts that have slice i, n_i: its bytes):

        into a host         sum of n_i it needs              x its NIC's seconds per byte
        out of hosts H      sum of n_i with S_i within H     / their NICs' bytes per second together
        into a device       bytes it needs and has not       / bytes per second of its NIC and inside its host

    The second holds for every H. All unions of some S_i are tried while these are few; then the S_i, and
    unions of those that are chained by common hosts.
    """
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
