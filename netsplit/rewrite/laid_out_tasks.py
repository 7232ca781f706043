"""The layouts of an operator's tensors, which follow from its tasks.

a product cut by columns, then rows ──► Mesh of two axes ──► x: "S1R", w: "S0R", y: "S1S0"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from netsplit.errors import RewriteError
from netsplit.graph.ir import Graph
from netsplit.layout import DeviceName, Layout, Mesh
from netsplit.rewrite.layouts import layouts_of
from netsplit.rewrite.leaves import LeafPlanner
from netsplit.rewrite.tasks import OperatorTasks
from netsplit.rewrite.ways import Cat, Place, Where

__all__ = ["TaskLayouts", "task_layouts"]


@dataclass(frozen=True)
class TaskLayouts:
    """The layouts of one operator's tensors under its tasks.

    Args:
        reads: of its arguments; without those that its first part alone is given.
        makes: of its outputs, in order.
    """

    mesh: Mesh
    reads: dict[Place, Layout]
    makes: tuple[Layout, ...]


def task_layouts(graph: Graph, tasks: OperatorTasks, devices: Sequence[DeviceName] = ()) -> TaskLayouts:
    """Cut, whole or partial along each axis of the tasks' mesh, of which the copies have the last ones.

    Args:
        devices: of the mesh, in row-major order; numbers, if none are given.

    Raises:
        RewriteError: a part is cut alone, which lies on no mesh; or the operator cannot be cut so.
    """
    if any(cut.part is not None for cut in tasks.cuts):
        raise RewriteError(f"'{tasks.node}' has a part that is cut alone, which lies on no mesh.")
    counts = [len(cut.sizes) for cut in tasks.cuts]
    axis_of = tasks.mesh or tuple(range(len(counts)))
    shape = (*(counts[axis_of.index(axis)] for axis in range(len(counts))), *tasks.copies)
    mesh = Mesh(tuple(devices) or tuple(range(prod(shape))), shape)
    leaf = LeafPlanner(graph, layouts_of(graph)).leaves(tasks)[0]
    ways = [way for way, _ in leaf.levels]

    def layout(rank: int, where: Sequence[Where | None], partial: Sequence[bool] = ()) -> Layout:
        """The layout of a tensor that lies so along each cut; None: it is whole there, or a term of a sum."""
        cut_by: list[str] = [""] * rank
        sizes, blocks = {}, {}
        for axis, cut, own in zip(axis_of, tasks.cuts, where, strict=True):
            if own is not None:
                cut_by[own.dim] += str(axis)
                sizes[axis] = tuple(size * own.times for size in cut.sizes)
                blocks[axis] = own.blocks * cut.blocks
        spec = "".join(f"S{axes}" if axes else "R" for axes in cut_by)
        terms = tuple(axis for axis, term in zip(axis_of, partial, strict=False) if term)
        return Layout(mesh, spec, sizes, blocks, terms)

    once = frozenset[str]().union(*(way.once for way in ways))
    reads = {
        place: layout(len(region), [way.cut.get(place) for way in ways])
        for place, (_, region) in leaf.reads.items()
        if place not in once
    }
    makes = []
    for j, output in enumerate(leaf.makes):
        where = [how.where if isinstance(how := way.joined[j], Cat) else None for way in ways]
        makes.append(layout(len(output.region), where, [own is None for own in where]))
    return TaskLayouts(mesh, reads, tuple(makes))
