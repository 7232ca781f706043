"""Why a model has no room on any device, whatever is placed where."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from netsplit.graph.ir import Graph
from netsplit.partition.base import Problem
from netsplit.partition.bounds.iteration_tasks import AnySchedule
from netsplit.partition.bounds.least_bytes import least_bytes_of_atoms, reached_nodes
from netsplit.partition.common.capacity import atom_needs, read_bytes
from netsplit.partition.common.instance import Instance

__all__ = ["why_no_room"]


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
    trained = [_trained_bytes(problem.graph, reached.intersection(each)) for each in _atom_names(instance)]
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
        needs = atom_needs([instance.names[v] for v in instance.atoms[largest]])
        needed = read_bytes(int(present[largest]))
        return f"{needs} {needed} on one device, and none has more than {read_bytes(most)}"
    held = int(least_bytes_of_atoms(instance, schedule).sum(axis=1).max())
    if held > every:
        return (
            f"the model needs at least {read_bytes(held)}, and all devices together have {read_bytes(every)}"
        )
    return None


def _atom_names(instance: Instance) -> list[list[str]]:
    return [[instance.names[v] for v in instance.atoms[a]] for a in range(len(instance.atoms))]


def _trained_bytes(graph: Graph, names: Iterable[str]) -> list[int]:
    """Of every trained parameter that the nodes read."""
    read = (graph.initializers[k] for name in names for k in graph.nodes[name].initializers)
    return list({own.held_as: own.nbytes for own in read if own.requires_grad}.values())
