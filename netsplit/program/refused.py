"""What no program can be made of: replicas, turns, copies of weights and exchanges that do not go together.

Each raises ConfigError in a sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from netsplit.cluster.cluster import Cluster
from netsplit.errors import ConfigError
from netsplit.graph.ir import Graph
from netsplit.placement.exchange import Exchange
from netsplit.program.schedules import Schedule

__all__ = ["check_handed_on", "checked_copies", "checked_replicas", "checked_turns"]


def checked_replicas(
    replicas: Mapping[str, tuple[str, ...]], device_of: Mapping[str, str], cluster: Cluster
) -> dict[str, tuple[str, ...]]:
    """First replica -> all of them, of groups of several."""
    replicated = {first: tuple(each) for first, each in replicas.items() if len(each) > 1}
    known = {device.name for device in cluster.devices}
    used = Counter(name for each in replicated.values() for name in each)
    homes = set(device_of.values())
    for first, each in replicated.items():
        if each[0] != first:
            raise ConfigError(f"replicas of '{first}' begin with '{each[0]}': name '{first}' first.")
        for name in each:
            if name not in known:
                raise ConfigError(f"replica '{name}' of '{first}' is not a device of the cluster.")
            if used[name] > 1 or (name != first and name in homes):
                raise ConfigError(f"device '{name}' is a replica of '{first}' and has operators of its own.")
    return replicated


def checked_copies(
    graph: Graph,
    device_of: Mapping[str, str],
    names: Sequence[str],
    schedule: Schedule,
    groups: Mapping[str, tuple[str, ...]],
) -> tuple[tuple[str, ...], ...]:
    """The sets of devices that hold copies of the same parameters, of which they sum the gradients: all
    replicas of their stages."""
    homes: dict[str, set[str]] = {}
    for node in graph:
        for k in node.initializers:
            if graph.initializers[k].requires_grad:
                homes.setdefault(k, set()).add(device_of[node.name])
    several = {k: each for k, each in homes.items() if len(each) > 1}
    holders = {k: {q for p in each for q in groups.get(p, (p,))} for k, each in several.items()}
    copied = {k: tuple(name for name in names if name in each) for k, each in holders.items()}
    for k, devices in copied.items():
        if schedule.update_every is not None:
            raise ConfigError(
                f"the devices {', '.join(devices)} have copies of '{k}', and under {schedule.name} every "
                "device steps on its own, before their gradients are summed: leave the copies out, or choose "
                "a synchronous schedule."
            )
    return tuple(dict.fromkeys(copied.values()))


def check_handed_on(
    exchanges: Sequence[Exchange], unchanging: Collection[str], groups: Mapping[str, tuple[str, ...]]
) -> None:
    """What lasts goes to each replica with the first of its own micro-batches: there is no one before it."""
    for exchange in exchanges:
        ends = {name for hop in exchange.hops for name in hop}
        if exchange.variable in unchanging and not ends.isdisjoint(groups):
            between = min(ends & groups.keys())
            raise ConfigError(
                f"an exchange is of '{exchange.variable}', made of weights, and '{between}' is a stage with "
                "replicas: let its home send it to each (schedule.exchange=send_receive)."
            )


def checked_turns(
    groups: Mapping[str, tuple[str, ...]], turns: Mapping[str, tuple[str, ...]], schedule: Schedule
) -> dict[str, tuple[str, ...]]:
    """Turns of every group of replicas."""
    in_turn = {}
    for first, each in groups.items():
        own = in_turn[first] = tuple(turns.get(first) or each)
        if strange := sorted({*own} ^ {*each}):
            raise ConfigError(
                f"the turns of '{first}' and its replicas differ by '{strange[0]}': every replica has at "
                "least one turn, and nobody else has."
            )
        rounds = [{*own[start : start + len(each)]} for start in range(0, len(own), len(each))]
        if schedule.update_every is not None and any(len(names) < len(each) for names in rounds):
            raise ConfigError(
                f"the replicas of '{first}' take uneven turns, and under {schedule.name} they step together "
                f"after {schedule.update_every} micro-batches of each: let them take the micro-batches one "
                "after the other, or choose another schedule."
            )
    return in_turn
