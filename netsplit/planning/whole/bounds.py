"""What no plan is below that a search for a whole plan might still find; and why there is none at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from netsplit.graph.checks.replicated import unreplicable_nodes
from netsplit.graph.ir import Graph
from netsplit.partition.base import Problem
from netsplit.partition.bounds.iteration_bound import LIMIT_S, iteration_bound_s
from netsplit.partition.bounds.iteration_tasks import AnySchedule
from netsplit.partition.bounds.least_bytes import least_bytes_of_atoms, reached_nodes
from netsplit.partition.common.capacity import atom_needs, read_bytes
from netsplit.partition.common.instance import Instance
from netsplit.planning.whole.auto_schedule import AutoSchedule

__all__ = ["of_every_plan_s", "why_none_fits", "without_replicas_s"]


def of_every_plan_s(
    problem_of: Callable[[int], Problem],
    counts: Sequence[int],
    open_: AutoSchedule,
    until: float = float("inf"),
) -> float:
    """Seconds of an iteration with any of these numbers of micro-batches, under any schedule that is open.

    The least of all numbers' bounds: of each the quick one, however late it is, and the best one of those
    that are least, as long as there is time.

    Args:
        until: on ``time.perf_counter``.
    """

    def bound_s(m: int, limit_s: float) -> float:
        problem = problem_of(m)
        return iteration_bound_s(
            problem, _any(problem, m, open_.recompute, open_.replicas and m > 1), limit_s
        )

    bounds = {m: bound_s(m, 0.0) for m in counts}
    refined: set[int] = set()
    while (least := min(bounds, key=lambda m: bounds[m])) not in refined:
        left_s = until - time.perf_counter()
        if left_s <= 0:
            break
        refined.add(least)
        bounds[least] = max(bounds[least], bound_s(least, min(left_s, LIMIT_S)))
    return bounds[least]


def without_replicas_s(problem: Problem, limit_s: float = LIMIT_S) -> float:
    """Of plans whose operators are each on one device, with the problem's own number of micro-batches."""
    m = problem.the_simulator.schedule.microbatches
    return iteration_bound_s(problem, _any(problem, m, recompute=True, replicas=False), limit_s)


def why_none_fits(
    problem_of: Callable[[int], Problem], counts: Sequence[int], open_: AutoSchedule
) -> str | None:
    """What proves that no plan of whole operators is within the capacities with any of these numbers of
    micro-batches, in words; None: nothing does, and there may be one."""
    reasons = [_too_much(problem_of(m), m, open_) for m in counts]
    return None if open_.splits or None in reasons else reasons[-1]


def _too_much(problem: Problem, microbatches: int, open_: AutoSchedule) -> str | None:
    """Of bytes that come with operators wherever they are: of one more than any device has, or of all."""
    instance = Instance.of(problem)
    if not instance.n:
        return None
    replicas = open_.replicas and microbatches > 1
    schedule = _any(problem, microbatches, open_.recompute, replicas)
    most, every = int(instance.capacity.max()), int(instance.capacity.sum())
    rows = least_bytes_of_atoms(instance, schedule.of_one if replicas else schedule)
    reached = reached_nodes(problem.graph) if schedule.training else frozenset[str]()
    trained = [_trained_bytes(problem.graph, reached.intersection(each)) for each in _atom_names(instance)]
    if problem.memory != "static" and schedule.training:
        scratch = set(problem.costs.step_scratch(problem.cluster.devices).values())
        rows[-1] += [min(each.nbytes(sizes) for each in scratch) for sizes in trained]
    present = rows.max(axis=0)
    if replicas and open_.shard != "none":  # of each a slice, but for a parameter and its gradient in use
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


def _any(problem: Problem, microbatches: int, recompute: bool, replicas: bool) -> AnySchedule:
    return AnySchedule(
        microbatches,
        problem.the_simulator.training,
        kept=0 if recompute or problem.costs.offload.activations else 1,
        alone=unreplicable_nodes(problem.graph) if replicas else frozenset(problem.graph.nodes),
    )
