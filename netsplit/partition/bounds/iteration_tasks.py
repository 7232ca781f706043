"""What an iteration of several micro-batches consists of, tasks and bytes, whatever its placement and order.

    forward of v ──► ... ──► loss ──► ... ──► backward of v ──► what can wait: weight gradients, the step

A task's head is the least time before it begins, its tail the least after it has ended: the longest paths of
one micro-batch with everything at its fastest. They hold for every micro-batch, on whichever replica.

Bytes are those that come with a node wherever it is: what a device holds at least, as a sum over its nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from netsplit.graph.arguments import storage_bytes, storage_of
from netsplit.graph.ir import Graph
from netsplit.partition.base import Problem
from netsplit.partition.common.instance import Floats, Instance, Ints
from netsplit.partition.partitioner import atom_needs, read_bytes
from netsplit.profile.costs import DeviceCosts
from netsplit.profile.memory import node_state_bytes
from netsplit.simulate.simulator import Simulator

__all__ = [
    "AnySchedule",
    "IterationTasks",
    "bytes_saved_by",
    "least_bytes",
    "least_bytes_of_atoms",
    "why_no_room",
]


@dataclass(frozen=True)
class AnySchedule:
    """What is known of all iterations that a bound is to hold for; by default little more than their size."""

    microbatches: int = 1
    training: bool = True
    whole: bool = False  # no backward is in two parts
    once: bool = True  # a device steps once, after all of its backwards
    kept: int = 0
    """What it saved in so many micro-batches' forwards, at most all of its own, a device has at one time."""
    alone: frozenset[str] = frozenset()  # nodes that have no replicas
    within: bool = True  # plans are within the capacities

    @classmethod
    def under(cls, simulator: Simulator, within: bool) -> AnySchedule:
        """What a bound may take for granted of every iteration under the simulated schedule."""
        schedule, m = simulator.schedule, simulator.schedule.microbatches
        kept = 1  # forward before the first backward; of a smaller micro-batch less is kept
        if schedule.forwards_first:
            kept = max(m - (simulator.tail is not None), 1)
        return cls(
            microbatches=m,
            training=simulator.training,
            whole=not schedule.delay_weights,
            once=schedule.update_every is None,
            kept=0 if schedule.recompute or simulator.costs.offload.activations else kept,
            within=within,
        )

    @property
    def of_one(self) -> AnySchedule:
        """What a device is sure to see of it: of a replicated stage it may have one micro-batch alone."""
        return replace(self, microbatches=1, kept=min(self.kept, 1))


@dataclass(frozen=True, eq=False)
class IterationTasks:
    """The tasks of n nodes: n forwards, n backwards, n of what can wait, in this order. Seconds throughout.

    Devices are taken by their K kinds (`Instance.kind_of`), as there may be a thousand of one.
    """

    instance: Instance
    work_s: Floats  # [3n, K] of all micro-batches, were they all on a device of the kind
    fastest_s: Floats  # [3n] of one micro-batch, as part of a path
    head_s: Floats  # [3n]
    tail_s: Floats  # [3n]
    node: Ints  # [3n]

    @classmethod
    def of(cls, instance: Instance, schedule: AnySchedule) -> IterationTasks:
        n, m = instance.n, schedule.microbatches
        first = instance.first_of_kind
        forward_s, on = instance.forward_s[:, first], [instance.on[p] for p in first]
        trained = instance.trained[:, None] & schedule.training
        backward_s = instance.backward_s[:, first] * trained
        later_s = np.zeros_like(backward_s) if schedule.whole else _weight_s(instance.names, on) * trained
        if (later_s > backward_s).any():  # beside such a node, others' first parts may take no time
            later_s = backward_s
        step_s = np.outer(instance.trainable_bytes, [each.step_s_per_byte for each in on]) * trained
        adding = [min(each.accumulate_s_per_byte, each.step_s_per_byte) for each in on]
        added_s = (m - 1) * np.outer(_added_bytes(instance), adding) * trained * schedule.once
        soon_s = backward_s - later_s
        work_s = np.concatenate(
            [m * forward_s, m * soon_s, m * later_s + step_s + added_s],
        )
        fastest_s = np.concatenate([forward_s, soon_s, later_s + step_s]).min(axis=1, initial=np.inf)
        overhead_s = min(each.instruction_s for each in on)
        head_s, tail_s = _paths(instance, fastest_s, trained[:, 0], overhead_s)
        return cls(instance, work_s, fastest_s, head_s, tail_s, np.tile(np.arange(n), 3))

    @property
    def path_s(self) -> float:
        """The longest path of a micro-batch, with the step at its end."""
        return float((self.head_s + self.fastest_s + self.tail_s).max(initial=0.0))


def _added_bytes(instance: Instance) -> Ints:
    """[n] bytes of the gradients that a node's own device is sure to add up: not of what others may read, and
    add up, in its place."""
    handed = instance.unchanging
    own = [not any(k in handed for k in node.outputs) for node in instance.problem.graph]
    return np.asarray(instance.trainable_bytes * np.array(own, bool))


def _weight_s(names: Sequence[str], on: Sequence[DeviceCosts]) -> Floats:
    """[n, K] the part of backward seconds that can be put off."""
    rows = [[each.nodes[v].weight_s for each in on] for v in names]
    return np.array(rows, float).reshape(len(names), len(on))


def _paths(
    instance: Instance,
    fastest_s: Floats,
    trained: NDArray[np.bool_],
    overhead_s: float,
) -> tuple[Floats, Floats]:
    """[3n] heads and tails. An instruction's overhead comes before a micro-batch's first computation, where
    it turns from forward to backward on one device, and before the step."""
    n = instance.n
    before: list[list[int]] = [[] for _ in range(2 * n)]
    for u, v in enumerate(instance.producer.tolist()):
        for w in instance.consumers[u].tolist():
            before[w].append(v)
            if instance.requires_backward[u] and instance.trained[w]:
                before[n + v].append(n + w)
    for v in np.flatnonzero(instance.trained).tolist():
        if not before[n + v]:
            before[n + v].append(v)
    before += [[n + v] if trained[v] else [] for v in range(n)]
    delay = np.zeros(3 * n)
    for t, earlier in enumerate(before):
        if not earlier or t >= 2 * n or (t >= n and earlier == [t - n]):
            delay[t] = overhead_s
    delay[n:][~np.tile(trained, 2)] = 0.0
    order = [*range(n), *range(2 * n - 1, n - 1, -1), *range(2 * n, 3 * n)]  # topological
    head, tail = np.zeros(3 * n), np.zeros(3 * n)
    for t in order:
        head[t] = delay[t] + max((head[u] + fastest_s[u] for u in before[t]), default=0.0)
    for t in reversed(order):
        for u in before[t]:
            tail[u] = max(tail[u], delay[t] + fastest_s[t] + tail[t])
    return head, tail


def least_bytes(problem: Problem, schedule: AnySchedule) -> Floats:
    """[rows, n]: by every row, the nodes of a device have no more bytes than its capacity.

    A node counts in full on each of its replicas, whose fraction of the micro-batches is at most 1; what
    grows with the micro-batches counts by their number.
    """
    graph, memory = problem.graph, problem.memory_model
    if problem.memory == "static":
        own = dict(memory.state_bytes)
        for k, holders in memory.holders.items():
            if holders:
                own[holders[0]] += memory.variable_bytes[k]
        return _rows(graph, own)
    alpha = problem.costs.device_alpha
    reached = reached_nodes(graph) if schedule.training else frozenset[str]()
    states, fed = node_state_bytes(graph, alpha - 1), _fed_bytes(graph, schedule.microbatches)
    before = {name: states[name] + fed[name] for name in graph.nodes}
    at_step = dict(before)
    for name, nbytes in _gradient_bytes(graph, reached).items():
        at_step[name] += nbytes
    if sum(graph.variables[k].requires_grad for k in graph.output_variables) == 1:  # else of several losses
        for savers, nbytes in bytes_saved_by(graph).items():
            if sure := savers & reached:
                before[min(sure, key=graph.position.__getitem__)] += schedule.kept * nbytes
    return _rows(graph, before, at_step)


def least_bytes_of_atoms(instance: Instance, schedule: AnySchedule) -> Floats:
    """[rows, A] sums of `least_bytes` over the nodes of every atom."""
    return instance.by_atom(least_bytes(instance.problem, schedule).T).T


def bytes_saved_by(graph: Graph) -> dict[frozenset[str], int]:
    """What autograd saves of one micro-batch, by the nodes that save it; one at least has it on its device.

    Without what is fed, and what carries no gradient, which is counted for no longer than it is read. Without
    arguments of the model's own checkpoints, of which some save nothing where they are cut.
    """
    own = storage_bytes(graph)
    savers: dict[str, set[str]] = {}
    for node in graph:
        for k in () if node.checkpoint else node.saved:
            savers.setdefault(storage_of(graph, k), set()).add(node.name)
    fed = set(graph.input_variables)
    fed |= {storage_of(graph, k) for k, variable in graph.variables.items() if not variable.requires_grad}
    weights = {frozenset((node.name,)): node.saved_bytes for node in graph if node.saved_bytes}
    for root, names in savers.items():
        if root not in fed and own[root]:
            key = frozenset(names)
            weights[key] = weights.get(key, 0) + own[root]
    return weights


def _rows(graph: Graph, *counts: Mapping[str, int]) -> Floats:
    return np.array([[own[name] for name in graph.nodes] for own in counts], float)


def _fed_bytes(graph: Graph, microbatches: int) -> dict[str, int]:
    """The batch: every input of the graph at the first node that reads it."""
    fed = dict.fromkeys(graph.nodes, 0)
    for k in graph.input_variables:
        if readers := graph.variables[k].consumers:
            fed[readers[0]] += microbatches * graph.variables[k].nbytes
    return fed


def reached_nodes(graph: Graph) -> frozenset[str]:
    """Nodes that a gradient comes to by operators alone: the loss has seen what all of them made."""
    requiring = {k for k in graph.output_variables if graph.variables[k].requires_grad}
    names = []
    for node in reversed(list(graph)):
        if not requiring.isdisjoint(node.outputs):
            names.append(node.name)
            requiring.update(
                k for k in node.inputs if k not in node.blocked and graph.variables[k].requires_grad
            )
    return frozenset(names)


def _gradient_bytes(graph: Graph, reached: frozenset[str]) -> dict[str, int]:
    """Bytes of parameters' gradients, at the first node that uses each, or its first copy."""
    first: dict[str, str] = {}
    trained: set[str] = set()
    for node in graph:
        for init in (graph.initializers[k] for k in node.initializers):
            if init.requires_grad:
                first.setdefault(init.held_as, node.name)
                if node.name in reached:
                    trained.add(init.held_as)
    nbytes = dict.fromkeys(first.values(), 0)
    for k in trained:
        nbytes[first[k]] += graph.initializers[k].nbytes
    return nbytes


def why_no_room(problem: Problem, schedule: AnySchedule, replicas: bool, slices: bool) -> str | None:
    """What needs more bytes than there are, in words; None where nothing proves that.

    Of bytes that come with operators wherever they are: of one more than any device has, or of all.

    Args:
        replicas: stages may have some; `slices`: which may keep slices of their states.
    """
    instance = Instance.of(problem)
    if not instance.n:
        return None
    most, every = int(instance.capacity.max()), int(instance.capacity.sum())
    rows = least_bytes_of_atoms(instance, schedule.of_one if replicas else schedule)
    reached = reached_nodes(problem.graph) if schedule.training else frozenset[str]()
    atoms = [[instance.names[v] for v in instance.atoms[a]] for a in range(len(instance.atoms))]
    trained = [_trained_bytes(problem.graph, reached.intersection(each)) for each in atoms]
    if problem.memory != "static" and schedule.training:
        scratch = set(problem.costs.step_scratch(problem.cluster.devices).values())
        rows[-1] += [min(each.nbytes(sizes) for each in scratch) for sizes in trained]
    present = rows.max(axis=0)
    if replicas and slices:  # of each a slice, but for a parameter and its gradient in use
        whole = [2 * max(sizes, default=0) for sizes in trained]
        sliced = np.maximum(present / len(problem.cluster.devices), whole)
        present = np.where(sliced <= np.sort(instance.capacity)[-2:][0], 0, present)  # on two at least
    largest = int(present.argmax())
    if present[largest] > most:
        needed = read_bytes(int(present[largest]))
        return (
            f"{atom_needs(atoms[largest])} {needed} on one device, and none has more than {read_bytes(most)}"
        )
    held = int(least_bytes_of_atoms(instance, schedule).sum(axis=1).max())
    if held > every:
        return (
            f"the model needs at least {read_bytes(held)}, and all devices together have {read_bytes(every)}"
        )
    return None


def _trained_bytes(graph: Graph, names: Iterable[str]) -> list[int]:
    """Bytes of every trained parameter that the nodes read."""
    read = (graph.initializers[k] for name in names for k in graph.nodes[name].initializers)
    return list({own.held_as: own.nbytes for own in read if own.requires_grad}.values())
