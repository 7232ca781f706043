"""What every device does and holds, and what every cut edge costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from netsplit.partition.base import Loads, MemoryRule
from netsplit.partition.common.capacity import needed_bytes
from netsplit.partition.common.instance import Instance, Ints
from netsplit.placement.placement import Placement
from netsplit.planning.explanation.notation import is_path

if TYPE_CHECKING:  # explaining a plan of a file loads neither room
    from netsplit.simulate.timeline import Timeline

__all__ = ["CutEdge", "DeviceUse", "Holding", "cut_edges", "device_uses"]


@dataclass(frozen=True)
class Holding:
    """Bytes by the linear count (`Problem.memory_model`), and whose they are."""

    name: str  # a module or node that owns states, or a variable
    nbytes: int
    source: str = ""  # of a copy: the device that made it


@dataclass(frozen=True)
class DeviceUse:
    """One device under a placement. Seconds are of one iteration (`max_load`: of one period).

    What fits is said by `used_bytes` (`needed_bytes`). `state_bytes + variable_bytes + copy_bytes` are the
    linear count of `Problem.memory_model`: the same where `memory` is static, near the peak where it is
    lifetimes. The three tuples hold the largest of each, largest first.
    """

    device: str
    kind: str
    nodes: int
    forward_s: float
    backward_s: float
    step_s: float
    wait_s: float
    send_s: float  # that a link out of it is occupied; `max_load`: that its own sends occupy it
    receive_s: float
    state_bytes: int  # parameters, gradients and optimiser states; lifetimes: and what operators save beside
    variable_bytes: int  # variables made here, and inputs of the graph
    copy_bytes: int  # of variables made elsewhere
    used_bytes: int
    memory: MemoryRule  # by which `used_bytes` are
    capacity_bytes: int
    owners: tuple[Holding, ...]
    variables: tuple[Holding, ...]
    copies: tuple[Holding, ...]

    @property
    def busy_s(self) -> float:
        return self.forward_s + self.backward_s + self.step_s

    @property
    def transfer_s(self) -> float:
        return self.send_s + self.receive_s

    @property
    def filled(self) -> float:
        """The fraction of its capacity that is used."""
        return self.used_bytes / self.capacity_bytes if self.capacity_bytes else float("inf")


@dataclass(frozen=True)
class CutEdge:
    """A variable that one device makes and another reads: moved once, however many nodes read it there.

    Seconds of one micro-batch without waiting for the link. Under `max_load` they are what both ends
    pay; the sender pays once for a variable, at the first of its readers.
    """

    variable: str
    producer: str
    readers: tuple[str, ...]
    source: str
    target: str
    nbytes: int
    value_s: float
    gradient_s: float  # 0 where no gradient comes back

    @property
    def seconds(self) -> float:
        return self.value_s + self.gradient_s


def cut_edges(instance: Instance, where: Ints) -> tuple[CutEdge, ...]:
    """Every cut edge, the costliest first."""
    both_pay = instance.problem.objective.both_ends_pay
    edges = []
    for u, variable in enumerate(instance.variables):
        p = int(where[instance.producer[u]])
        readers: dict[int, list[str]] = {}
        for v in instance.consumers[u]:
            readers.setdefault(int(where[v]), []).append(instance.names[v])
        targets = sorted(q for q in readers if q != p)
        for q in targets:
            back = bool(instance.requires_backward[u])
            if both_pay:
                hop = instance.hop_s[u] / (1 + back)
                value = float(hop[q] + (hop[p] if q == targets[0] else 0.0))
                gradient = value * back
            else:
                value = float(instance.transfer_s[u, p, q])
                gradient = float(instance.transfer_s[u, q, p]) * back
            edges.append(
                CutEdge(
                    variable=variable,
                    producer=instance.names[instance.producer[u]],
                    readers=tuple(readers[q]),
                    source=instance.devices[p],
                    target=instance.devices[q],
                    nbytes=int(instance.nbytes[u]),
                    value_s=value,
                    gradient_s=gradient,
                )
            )
    return tuple(sorted(edges, key=lambda e: (-e.seconds, -e.nbytes, e.variable, e.target)))


def device_uses(
    instance: Instance, placement: Placement, seconds: Timeline | Loads, top: int = 3
) -> tuple[DeviceUse, ...]:
    """What each device does and holds, in rank order; a replica holds all of its stage."""
    spent = _load_seconds(instance, seconds) if isinstance(seconds, Loads) else _timeline_seconds(seconds)
    devices_of = {name: stage.devices for stage in placement.all_stages for name in stage.nodes}
    counts = Counter(device for devices in devices_of.values() for device in devices)
    owners, variables, copies = _holdings(instance, devices_of)
    used = needed_bytes(instance, placement, None if isinstance(seconds, Loads) else seconds)
    uses = []
    for p, device in enumerate(instance.problem.cluster.devices):
        mine = spent.get(device.name, {})
        owned, computed, got = (kinds[device.name] for kinds in (owners, variables, copies))
        uses.append(
            DeviceUse(
                device=device.name,
                kind=device.kind,
                nodes=counts[device.name],
                forward_s=mine.get("forward", 0.0),
                backward_s=mine.get("backward", 0.0),
                step_s=mine.get("step", 0.0),
                wait_s=mine.get("wait", 0.0),
                send_s=mine.get("send", 0.0),
                receive_s=mine.get("receive", 0.0),
                state_bytes=sum(h.nbytes for h in owned),
                variable_bytes=sum(h.nbytes for h in computed),
                copy_bytes=sum(h.nbytes for h in got),
                used_bytes=int(used[p]),
                memory=instance.problem.memory,
                capacity_bytes=device.capacity_bytes,
                owners=_largest(owned, top),
                variables=_largest(computed, top),
                copies=_largest(got, top),
            )
        )
    return tuple(uses)


def _timeline_seconds(timeline: Timeline) -> dict[str, dict[str, float]]:
    seconds: dict[str, dict[str, float]] = {}
    for event in timeline.events:
        if event.kind == "recv":
            continue
        ends = [(event.device, event.kind)] + ([(event.peer, "receive")] if event.kind == "send" else [])
        for device, kind in ends:
            mine = seconds.setdefault(device, {})
            mine[kind] = mine.get(kind, 0.0) + event.end_s - event.start_s
    return seconds


def _load_seconds(instance: Instance, loads: Loads) -> dict[str, dict[str, float]]:
    spent = {
        "forward": loads.forward_s,
        "backward": loads.backward_s,
        "send": loads.send_s,
        "receive": loads.receive_s,
        "wait": loads.period_s - loads.seconds,
    }
    return {
        device: {kind: float(each[p]) for kind, each in spent.items()}
        for p, device in enumerate(instance.devices)
    }


def _holdings(
    instance: Instance, devices_of: Mapping[str, tuple[str, ...]]
) -> tuple[dict[str, list[Holding]], ...]:
    """Per device: states by owner (module, else node), variables made there or fed, copies."""
    graph = instance.problem.graph
    states: dict[str, Counter[str]] = {d: Counter() for d in instance.devices}

    def owner_of(name: str) -> str:
        module = graph.nodes[name].module
        return module if is_path(module) else f"{name} {module}".rstrip()

    for v, name in enumerate(instance.names):
        for device in devices_of[name]:
            states[device][owner_of(name)] += int(instance.state_bytes[v])
    for h in range(len(graph.variables), len(instance.holders)):  # weights in copies
        readers = [instance.names[v] for v in instance.holders[h]]
        for device in dict.fromkeys(device for name in readers for device in devices_of[name]):
            first = next(name for name in readers if device in devices_of[name])
            states[device][owner_of(first)] += int(instance.held_bytes[h])
    variables: dict[str, list[Holding]] = {d: [] for d in instance.devices}
    copies: dict[str, list[Holding]] = {d: [] for d in instance.devices}
    for h, (k, variable) in enumerate(graph.variables.items()):
        nbytes = int(instance.held_bytes[h])
        homes = () if variable.producer is None else devices_of[variable.producer]
        for device in {device for v in instance.holders[h] for device in devices_of[instance.names[v]]}:
            if not homes or device in homes:
                variables[device].append(Holding(k, nbytes))
            else:
                copies[device].append(Holding(k, nbytes, homes[0]))
    owners = {d: [Holding(k, n) for k, n in counts.items()] for d, counts in states.items()}
    return owners, variables, copies


def _largest(holdings: list[Holding], top: int) -> tuple[Holding, ...]:
    held = [h for h in holdings if h.nbytes]
    return tuple(sorted(held, key=lambda h: (-h.nbytes, h.name))[:top])
