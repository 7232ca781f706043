"""Co-placement: merge the nodes at both ends of the edges with the most bytes.

Source: NetSplit thesis, section 5.2.3, Algorithm 3.
"""

from __future__ import annotations

from netsplit.graph.quotient import DisjointSets, atoms_of
from netsplit.partition.base import Problem
from netsplit.partition.common.capacity import MemoryModel
from netsplit.partition.methods.thesis.thesis_times import edge_bytes

__all__ = ["coplace"]


def coplace(problem: Problem, least_groups: int) -> tuple[tuple[str, ...], ...]:
    """Group the nodes; nodes of one group are to share a device.

    Edges are tried by bytes, most first, ties by topological position. Two groups merge unless they
    need more bytes together than the smallest device has. Sets of `graph.colocated` start merged,
    whatever they need. Merging ends at `least_groups` groups: the thesis's text makes that the
    floor, while its line 11, read literally, would merge once more. More groups remain where no
    edge is left or memory forbids.

    The thesis does not say how a group's memory is counted. Here bytes are added where groups merge, so
    that a variable between two of them counts at both ends: a group ends well before (5-18) fills a
    device, and what stands between its nodes still finds room beside them. Counted by (5-18), a group
    would fill the device to the last byte, and every operator left in its midst would have to go
    elsewhere and back.

    Returns:
        The groups by topological position of their first node.
    """
    graph, memory = problem.graph, MemoryModel(problem)
    atoms = atoms_of(graph)
    atom_of = {name: i for i, atom in enumerate(atoms) for name in atom}
    loads = [memory.load(atom).nbytes for atom in atoms]
    limit = min(device.capacity_bytes for device in problem.cluster.devices)
    sets = DisjointSets(len(atoms))

    nbytes = edge_bytes(graph)
    for u, v in sorted(nbytes, key=lambda e: (-nbytes[e], graph.position[e[0]], graph.position[e[1]])):
        if sets.count <= least_groups:
            break
        a, b = sets.find(atom_of[u]), sets.find(atom_of[v])
        if a != b and loads[a] + loads[b] <= limit:
            loads[sets.merge(a, b)] = loads[a] + loads[b]
    in_order = graph.position.__getitem__
    return tuple(
        tuple(sorted((name for i in members for name in atoms[i]), key=in_order)) for members in sets.sets()
    )
