"""Bytes that come with a node wherever it is: what a device holds at least, as a sum over its nodes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from netsplit.graph.ir import Graph
from netsplit.graph.storage import storage_bytes, storage_of
from netsplit.partition.base import Problem
from netsplit.partition.bounds.iteration_tasks import AnySchedule
from netsplit.partition.common.instance import Floats, Instance
from netsplit.profile.memory import node_state_bytes

__all__ = ["bytes_saved_by", "least_bytes", "least_bytes_of_atoms", "reached_nodes"]


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
