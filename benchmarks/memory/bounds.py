"""Lower bounds on the bytes that the fullest of so many devices needs for one training step.

Both look at a device before its first backward. It then holds parameters and moments (gradients come later),
its part of the batch, and what its operators saved in all forwards so far:

    any plan                   of one micro-batch (of all under gpipe): the loss has seen the first
    each device one segment    under 1f1b and zb_h1 of h, its height: devices from it to the loss, itself
                               included, on a path

**Why h.** Let every device compute one segment. Of one with a backward the schedule's limit is at least h, of
all before it more, and zb_h1's second limit is the greatest of all. So until backwards come, a device begins
forward i one forward after forward i - 1. The first backward is h - 1 forwards and h - 1 backwards behind the
first forward, so h forwards are begun before it (or all there are). A device with two segments may begin
fewer: it may be busy with the second when the first could go on. Of such plans only the first line is known.

**Heights.** Take one path of operators to the loss. A device's part of it is in one piece, so the j-th device
from the end has a height of at least j; what saves off the path is on the loss's device, or at a height of 2
or more. Bytes are spread over the devices without regard to operators and edges: a linear programme.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from scipy.optimize import linprog

from netsplit.graph.ir import Graph
from netsplit.partition.bounds.iteration_tasks import bytes_saved_by
from netsplit.profile.memory import node_state_bytes
from netsplit.program.schedules import Schedule

__all__ = ["bound_of_any", "bound_of_pipelines"]


def bound_of_any(graph: Graph, schedule: Schedule, alpha: int, devices: int) -> int:
    """Bytes of the fullest device under any placement on so many devices."""
    saved = sum(bytes_saved_by(graph).values())
    forwards = schedule.microbatches if schedule.forwards_first else 1
    before = _held_bytes(graph, schedule, alpha) + forwards * saved
    return -(-max(sum(node_state_bytes(graph, alpha).values()), before) // devices)


def bound_of_pipelines(graph: Graph, schedule: Schedule, alpha: int, devices: int) -> int:
    """Bytes of the fullest device where every device computes one segment; under 1f1b and zb_h1."""
    weights = bytes_saved_by(graph)
    path = _heaviest_path(graph, weights)
    on_path = sum(weights[savers] for savers in weights if savers <= path)
    sizes = (on_path, sum(weights.values()) - on_path, _held_bytes(graph, schedule, alpha))
    heights = np.arange(1, devices + 1)
    counts = np.stack([heights, np.minimum(heights, 2), np.ones(devices)])
    counts[:2] = np.minimum(counts[:2], schedule.microbatches)
    # Of every kind of bytes the part on each device, and the bytes of the fullest.
    parts = 3 * devices
    rows = np.zeros((devices, parts + 1))
    for kind in range(3):
        rows[:, kind * devices : (kind + 1) * devices] = np.diag(sizes[kind] * counts[kind])
    rows[:, -1] = -1.0
    whole = np.zeros((3, parts + 1))
    for kind in range(3):
        whole[kind, kind * devices : (kind + 1) * devices] = 1.0
    least = linprog(np.eye(parts + 1)[-1], rows, np.zeros(devices), whole, np.ones(3))
    return max(bound_of_any(graph, schedule, alpha, devices), int(least.fun))


def _held_bytes(graph: Graph, schedule: Schedule, alpha: int) -> int:
    """The batch, parameters and moments."""
    fed = sum(graph.variables[k].nbytes for k in graph.input_variables if graph.variables[k].consumers)
    return schedule.microbatches * fed + sum(node_state_bytes(graph, alpha - 1).values())


def _heaviest_path(graph: Graph, weights: dict[frozenset[str], int]) -> Collection[str]:
    """Nodes of a path to the loss along which about the most is saved."""
    own = dict.fromkeys(graph.nodes, 0.0)
    for names, nbytes in weights.items():
        for name in names:
            own[name] += nbytes / len(names)
    best: dict[str, tuple[float, str | None]] = {}
    for node in graph:
        before = graph.predecessors[node.name]
        chosen = max(before, key=lambda u: best[u][0], default=None)
        best[node.name] = own[node.name] + (best[chosen][0] if chosen else 0.0), chosen
    loss = graph.variables[graph.output_variables[0]].producer
    path: set[str] = set()
    while loss is not None:
        path.add(loss)
        loss = best[loss][1]
    return path
