"""Bytes that come with a node wherever it is: what a device holds at least, and why a model has no room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from netsplit.graph.ir import Graph
from netsplit.graph.storage import storage_bytes, storage_of
from netsplit.partition.base import Problem
from netsplit.partition.bounds.iteration_tasks import AnySchedule
from netsplit.partition.common.capacity import atom_needs, read_bytes
from netsplit.partition.common.instance import Floats, Instance
from netsplit.profile.memory import node_state_bytes

__all__ = ["bytes_saved_by", "least_bytes", "least_bytes_of_atoms", "why_no_room"]


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
    own = least_bytes(instance.problem, schedule)
    sums = np.zeros((len(instance.atoms), len(own)))
    np.add.at(sums, instance.atom_of, own.T)
    return sums.T


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
    """Of every trained parameter that the nodes read."""
    read = (graph.initializers[k] for name in names for k in graph.nodes[name].initializers)
    return list({own.held_as: own.nbytes for own in read if own.requires_grad}.values())
