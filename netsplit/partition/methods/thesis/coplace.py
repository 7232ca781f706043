"""Co-placement: merge the nodes at both ends of the edges with the most bytes.

Source: NetSplit thesis, section 5.2.3, Algorithm 3.
"""

from __future__ import annotations

from typing import Literal

from netsplit.graph.quotient import DisjointSets, atoms_of
from netsplit.partition.base import Problem
from netsplit.partition.methods.thesis.thesis_times import message_bytes
from netsplit.profile.memory import Load

__all__ = ["GroupBytes", "coplace"]

GroupBytes = Literal["union", "added"]


def coplace(
    problem: Problem, least_groups: int, group_bytes: GroupBytes = "union"
) -> tuple[tuple[str, ...], ...]:
    """Group the nodes; nodes of one group are to share a device.

    Edges are tried by bytes, most first, ties by topological position. Two groups merge unless they
    need more bytes together than the smallest device has. Sets of `graph.colocated` start merged,
    whatever they need. Merging ends at `least_groups` groups: the thesis's text makes that the
    floor, while its line 11, read literally, would merge once more. More groups remain where no
    edge is left or memory forbids.

    Args:
        problem: graph, costs and capacities.
        least_groups: the floor, 1 or more.
        group_bytes: what a group needs (line 17), of the bytes that `problem.memory` counts. "union" is the
            thesis's own accounting (section 4.3, Algorithm 1): a variable counts once, however many of the
            group's nodes touch it.
            "added" is not the thesis's: bytes are added where groups merge, a variable between two of
            them counts at both ends, and groups end well before (5-18) fills a device.

    Returns:
        The groups by topological position of their first node.
    """
    graph, memory = problem.graph, problem.memory_model
    atoms = atoms_of(graph)
    atom_of = {name: i for i, atom in enumerate(atoms) for name in atom}
    loads = [memory.load(atom) for atom in atoms]
    limit = min(device.capacity_bytes for device in problem.cluster.devices)
    sets = DisjointSets(len(atoms))

    nbytes = message_bytes(graph)
    for u, v in sorted(nbytes, key=lambda e: (-nbytes[e], graph.position[e[0]], graph.position[e[1]])):
        if sets.count <= least_groups:
            break
        a, b = sets.find(atom_of[u]), sets.find(atom_of[v])
        if a == b:
            continue
        added = loads[a].nbytes + loads[b].nbytes
        need = added if group_bytes == "added" else memory.union_bytes(loads[a], loads[b])
        if need <= limit:
            few, many = sorted((loads[a].variables, loads[b].variables), key=len)
            many |= few  # into the larger, so that each is moved but few times
            loads[sets.merge(a, b)] = Load(need, many)
    in_order = graph.position.__getitem__
    return tuple(
        tuple(sorted((name for i in members for name in atoms[i]), key=in_order)) for members in sets.sets()
    )
