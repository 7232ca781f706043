"""Start times and makespan of a given placement under the NetSplit thesis's model, (5-11)..(5-16)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from netsplit.graph.ir import Graph
from netsplit.partition.base import Problem

__all__ = ["ThesisTimes", "message_bytes", "thesis_times"]


@dataclass(frozen=True)
class ThesisTimes:
    """The least solution of (5-12)..(5-16) for one placement, in seconds."""

    start_fp: dict[str, float]
    start_bp: dict[str, float]
    makespan: float


def message_bytes(graph: Graph) -> dict[tuple[str, str], int]:
    """(u, v) to the bytes that v reads of u; variables of one pair travel as one message."""
    nbytes: dict[tuple[str, str], int] = {}
    for u, v, k in graph.edges:
        nbytes[u, v] = nbytes.get((u, v), 0) + graph.variables[k].nbytes
    return nbytes


def thesis_times(problem: Problem, device_of: Mapping[str, str]) -> ThesisTimes:
    """Start every node as soon as (5-12) and (5-16) allow; nodes of one device may overlap.

    Activations travel on the link from u's to v's device, gradients of the same size on the
    link back; in the thesis both take `Commu(i, j)`, as its links are the same both ways.
    """
    graph, costs, cluster = problem.graph, problem.costs, problem.cluster
    kind_of = {device.name: device.kind for device in cluster.devices}
    nbytes = message_bytes(graph)
    start_fp: dict[str, float] = {}
    end_fp: dict[str, float] = {}
    for v in graph.nodes:
        start_fp[v] = max(
            (
                end_fp[u] + cluster.transfer_seconds(nbytes[u, v], device_of[u], device_of[v])
                for u in graph.predecessors[v]
            ),
            default=0.0,
        )
        end_fp[v] = start_fp[v] + costs.forward_s(v, kind_of[device_of[v]])
    start_bp: dict[str, float] = {}
    end_bp: dict[str, float] = {}
    for u in reversed(graph.nodes):
        start_bp[u] = max(
            (
                end_bp[v] + cluster.transfer_seconds(nbytes[u, v], device_of[v], device_of[u])
                for v in graph.successors[u]
            ),
            default=end_fp[u],
        )
        end_bp[u] = start_bp[u] + costs.backward_s(u, kind_of[device_of[u]])
    return ThesisTimes(start_fp, start_bp, max(end_bp.values(), default=0.0))
