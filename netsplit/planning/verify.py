"""The verifier of placements, slow and plain.

It shares no code with the methods or with `Instance`, and reads only the graph, the costs and the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from netsplit.errors import NetSplitError
from netsplit.partition.base import Problem
from netsplit.placement.placement import Placement, Stage

__all__ = ["Verdict", "used_bytes", "verify"]


@dataclass(frozen=True)
class Verdict:
    """What is wrong with a placement, a sentence each; empty: nothing."""

    subject: str  # "the placement of 'heft'"
    violations: tuple[str, ...]

    def require(self) -> None:
        """Raise unless the answer holds.

        Raises:
            NetSplitError: lists every violation.
        """
        if self.violations:
            raise NetSplitError(f"{self.subject} is wrong: {' '.join(self.violations)}")


def verify(problem: Problem, placement: Placement, capacity: bool = True) -> Verdict:
    """Check a placement against its problem.

    Args:
        problem: what was asked; contiguity is checked if it asks for that.
        capacity: check that (5-18) is within every device's capacity.
    """
    violations = list(_each_node_once(problem, placement))
    if not violations:
        checks = [_together, _total_order, _stages, _recomputed, _exchanges]
        checks += [_memory] * capacity + [_contiguous] * problem.objective.contiguous
        violations = [sentence for check in checks for sentence in check(problem, placement)]
    return Verdict(f"the placement of '{placement.method}'", tuple(violations))


def _each_node_once(problem: Problem, placement: Placement) -> Iterator[str]:
    devices = {device.name for device in problem.cluster.devices}
    for what, table in (("device", placement.device_of), ("priority", placement.priority)):
        for name in problem.graph.nodes:
            if name not in table:
                yield f"Node '{name}' has no {what}."
        for name in table:
            if name not in problem.graph.nodes:
                yield f"'{name}' has a {what}, but the graph has no such node."
    for name, device in placement.device_of.items():
        if device not in devices:
            yield f"Node '{name}' is on '{device}', which is not a device of the cluster."


def _together(problem: Problem, placement: Placement) -> Iterator[str]:
    where = placement.device_of
    for kind, groups in (("colocated set", problem.graph.colocated), ("unit", problem.graph.units)):
        for group in groups:
            for name in group[1:]:
                if where[name] != where[group[0]]:
                    yield (
                        f"Nodes '{group[0]}' and '{name}' of one {kind} are on '{where[group[0]]}'"
                        f" and '{where[name]}'."
                    )


def _total_order(problem: Problem, placement: Placement) -> Iterator[str]:
    graph, rank = problem.graph, placement.priority
    at: dict[int, str] = {}
    for name, r in rank.items():
        if r in at:
            yield f"Nodes '{at[r]}' and '{name}' have the same priority {r}."
        at[r] = name
        if not 0 <= r < len(graph.nodes):
            yield f"Node '{name}' has priority {r}, outside 0 to {len(graph.nodes) - 1}."
    for node in graph.nodes.values():
        for k in node.inputs:
            u = graph.variables[k].producer
            if u is not None and rank[u] >= rank[node.name]:
                yield f"Node '{node.name}' comes before '{u}', whose variable '{k}' it reads."
    captured = {name: i for i, name in enumerate(graph.nodes)}
    for unit in graph.units:
        ordered = sorted(unit, key=captured.__getitem__)
        if [rank[name] for name in ordered] != [rank[ordered[0]] + i for i in range(len(ordered))]:
            yield f"The unit of node '{ordered[0]}' is interrupted or out of order."


def used_bytes(problem: Problem, held: Mapping[str, Set[str]]) -> dict[str, int]:
    """Bytes of every device with the nodes that it holds, by (5-18). A tensor of parameters counts `alpha`
    times (once, if not trained) where its first user or another copy is; a variable `in_flight + 1` times (or
    as the costs state) where its producer or a reader is."""
    graph, costs = problem.graph, problem.costs
    copies = problem.in_flight + 1 if costs.variable_copies is None else costs.variable_copies
    on: dict[str, list[str]] = {}
    for device, nodes in held.items():
        for name in nodes:
            on.setdefault(name, []).append(device)
    total = dict.fromkeys(held, 0)
    counted: set[str] = set()
    held_there: set[tuple[str, str]] = set()
    for name, node in graph.nodes.items():
        for k in (k for k in node.initializers if k not in counted):
            own = graph.initializers[k]
            for device in on.get(name, ()):
                if (own.held_as, device) not in held_there:
                    total[device] += (costs.alpha if own.requires_grad else 1) * own.nbytes
                    held_there.add((own.held_as, device))
            counted.add(k)
    for variable in graph.variables.values():
        touching = (variable.producer, *variable.consumers)
        for device in {device for name in touching for device in on.get(name or "", ())}:
            total[device] += copies * variable.nbytes
    return total


def _memory(problem: Problem, placement: Placement) -> Iterator[str]:
    held: dict[str, set[str]] = {}  # device -> its nodes, as their one device or as a replica
    for stage in (*placement.stages, *(Stage((v,), (q,)) for v, q in placement.device_of.items())):
        for q in stage.devices:
            held.setdefault(q, set()).update(stage.nodes)
    total = used_bytes(problem, held)
    for device in problem.cluster.devices:
        used = total.get(device.name, 0)
        if used > device.capacity_bytes:
            yield (
                f"Device '{device.name}' holds {used} bytes of {device.capacity_bytes}:"
                f" {used - device.capacity_bytes} too many."
            )


def _contiguous(problem: Problem, placement: Placement) -> Iterator[str]:
    """Forward nodes pass the devices in one order, and so do backward nodes: the chain of ideals of Tarnawski
    et al.'s dynamic programme. No path leaves a device's nodes and returns, and no devices wait in a circle,
    even if each one's nodes are convex."""
    names = set(problem.graph.nodes)
    backward = problem.backward_nodes & names
    for half, nodes in (("forward", names - backward), ("backward", backward)):
        for device in problem.cluster.devices:
            own = {name for name in nodes if placement.device_of[name] == device.name}
            yield from _returns(problem, own, f"{half} nodes of '{device.name}'")
        yield from _circle(problem, placement, nodes, half)


def _circle(problem: Problem, placement: Placement, nodes: Set[str], half: str) -> Iterator[str]:
    """A circle of devices that wait for each other, if any."""
    feeders: dict[str, set[str]] = {}
    for name in nodes:
        for k in problem.graph.nodes[name].inputs:
            u = problem.graph.variables[k].producer
            if u is not None and u in nodes and placement.device_of[u] != placement.device_of[name]:
                feeders.setdefault(placement.device_of[name], set()).add(placement.device_of[u])
    try:
        TopologicalSorter({q: sorted(feeders[q]) for q in sorted(feeders)}).prepare()
    except CycleError as error:
        circle = " -> ".join(f"'{device}'" for device in error.args[1])
        yield f"The {half} nodes are not contiguous: devices wait for one another in a circle, {circle}."


def _returns(problem: Problem, own: set[str], what: str) -> Iterator[str]:
    """The first path out of a set of nodes and back, if any."""
    left_by: dict[str, str] = {}  # node outside -> the node of the set that a path to it leaves from
    for name, node in problem.graph.nodes.items():
        for k in node.inputs:
            u = problem.graph.variables[k].producer
            if u is None:
                continue
            if name not in own:
                if u in own or u in left_by:
                    left_by.setdefault(name, u if u in own else left_by[u])
            elif u in left_by:
                yield (
                    f"The {what} are not contiguous: a path leaves at '{left_by[u]}', passes '{u}'"
                    f" and returns to '{name}'."
                )
                return


def _recomputed(problem: Problem, placement: Placement) -> Iterator[str]:
    for name in sorted(placement.recomputed - problem.graph.nodes.keys()):
        yield f"'{name}' is to be recomputed, but the graph has no such node."
    for unit in problem.graph.units:
        anew = [name for name in unit if name in placement.recomputed]
        if anew and len(anew) < len(unit):
            other = next(name for name in unit if name not in placement.recomputed)
            yield f"Nodes '{anew[0]}' and '{other}' are one unit, but only '{anew[0]}' is recomputed."


def _exchanges(problem: Problem, placement: Placement) -> Iterator[str]:
    """Every hop must go from a device that has the variable to one that still needs it."""
    known: set[str] = set()
    for exchange in placement.exchanges:
        k = exchange.variable
        variable = problem.graph.variables.get(k)
        if variable is None or variable.producer is None or k in known:
            yield f"The exchange of '{k}' has no node that computes it, or is a duplicate."
            continue
        known.add(k)
        having = {placement.device_of[variable.producer]}
        reading = {placement.device_of[name] for name in variable.consumers} - having
        for p, q in exchange.hops:
            if p not in having or q not in reading:
                yield f"'{p}' forwards '{k}' to '{q}', but lacks it, or '{q}' needs no copy."
            having.add(q)
            reading.discard(q)
        for q in sorted(reading):
            yield f"The exchange of '{k}' leaves out '{q}', which reads it."


def _stages(problem: Problem, placement: Placement) -> Iterator[str]:
    if not placement.stages:
        return
    devices = {device.name for device in problem.cluster.devices}
    stage_of: dict[str, int] = {}
    user: dict[str, int] = {}
    for s, stage in enumerate(placement.stages):
        if not stage.devices:
            yield f"Stage {s} has no device."
        if stage.warm_up < 0:
            yield f"Stage {s} has a warm-up of {stage.warm_up}, which is negative."
        yield from _turns(problem, s, stage)
        for device in stage.devices:
            if device not in devices:
                yield f"Stage {s} is on '{device}', which is not a device of the cluster."
            if device in user:
                yield f"Device '{device}' is listed for stage {user[device]} and for stage {s}."
            user[device] = s
        for name in stage.nodes:
            if name in stage_of:
                yield f"Node '{name}' is in stage {stage_of[name]} and in stage {s}."
            stage_of[name] = s
            if name not in placement.device_of:
                yield f"'{name}' is in stage {s}, but the graph has no such node."
            elif stage.devices and placement.device_of[name] != stage.devices[0]:
                yield (
                    f"Node '{name}' is on '{placement.device_of[name]}', but the first device of its stage"
                    f" {s} is '{stage.devices[0]}'."
                )
    yield from _stage_order(problem, stage_of)


def _turns(problem: Problem, s: int, stage: Stage) -> Iterator[str]:
    """Turns must name the stage's devices, each at least once among the known micro-batches."""
    count = len(stage.devices)
    for place in stage.turns:
        if not 0 <= place < count:
            yield f"A turn of stage {s} names device number {place}, but it has only 0 to {count - 1}."
    batch, within = stage.turns, ""
    if problem.objective.scheduled and problem.simulator is not None:
        microbatches = problem.simulator.turns.microbatches
        batch, within = batch[:microbatches], f" among {microbatches} micro-batches"
    for place, device in enumerate(stage.devices if stage.turns else ()):
        if place not in batch:
            yield f"Device '{device}' of stage {s} has no turn{within}."


def _stage_order(problem: Problem, stage_of: Mapping[str, int]) -> Iterator[str]:
    for name, node in problem.graph.nodes.items():
        if name not in stage_of:
            yield f"Node '{name}' is in no stage."
            continue
        if problem.objective.scheduled:
            continue  # a program may run a stage in several pieces
        for k in node.inputs:
            u = problem.graph.variables[k].producer
            if u is None or {u, name} & problem.backward_nodes:
                continue
            if stage_of.get(u, 0) > stage_of[name]:
                yield (
                    f"Node '{name}' of stage {stage_of[name]} reads '{k}' of the later stage {stage_of[u]}."
                )
