"""A static predictor of seconds: the work of every operator, counted, on a device known by a few rates.

    seconds of a pass = calls · launch + the larger of  FLOPs / (peak · fraction reached)
                                                        bytes / (bandwidth · fraction reached)

This is the roofline (Williams, Waterman, Patterson, CACM 52(4), 2009) with a fraction of both peaks for each
class of operators, and the fixed cost of a call. One CPU thread takes the sum of the two, and more in a step
that fills its caches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TypeAlias

from netsplit.cluster.catalogue import Rates, crowding
from netsplit.graph.deferral.deferrable import deferrable_nodes
from netsplit.graph.ir import Graph
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.profile.fusion import chains, fused_pass
from netsplit.profile.measure.predicted_bytes import predicted_transients
from netsplit.profile.roofline import Work, node_work, operator_class, step_bytes, unknown_in_words

__all__ = [
    "operator_class",
    "predicted_costs",
    "predicted_seconds",
    "unknown_in_words",
    "work_seconds",
    "works_of",
]

log = logging.getLogger(__name__)

Works: TypeAlias = Mapping[str, tuple[str, Work]]
"""Node name -> class and work of its operator."""

AT_MOST = 0.95  # of a backward can be put off: its input part is never nothing


def predicted_costs(graph: Graph, kinds: Mapping[str, Rates], alpha: int) -> Costs:
    """Seconds of every node on every device kind, of an optimiser's step and of an instruction; and bytes
    that nodes allocate, as metered on a CPU (`predicted_transients`).

    A step reads parameter, gradient and moments and writes all but the gradient: 2 alpha - 1 passes over the
    bytes of the parameters.

    Args:
        kinds: device kind -> its rates; those under the graph's autocast count.
        alpha: bytes of training state per byte of parameter (`Costs.alpha`).

    Raises:
        ConfigError: a device does not compute in the dtype of the graph's autocast.
    """
    unknown = unknown_in_words(graph)
    if unknown:
        log.warning("No cost model for %s: its time is a rough guess (one pass over its tensors).", unknown)
    kinds = {kind: rates.under(graph.autocast) for kind, rates in kinds.items()}
    works, transients = works_of(graph, graph.nodes), predicted_transients(graph)

    def on(rates: Rates) -> DeviceCosts:
        moving = 1.0 / (rates.bandwidth * rates.efficiency_of("elementwise").memory)
        return DeviceCosts(
            work_seconds(graph, works, rates),
            step_s_per_byte=(2 * alpha - 1) * moving,
            accumulate_s_per_byte=3 * moving,
            transients=transients,
            host_s_per_byte=1.0 / rates.host_bandwidth,
            rates=rates,
            **({"instruction_s": rates.launch_s} if rates.overheads is None else asdict(rates.overheads)),
        )

    return Costs({kind: on(rates) for kind, rates in kinds.items()}, alpha, predicted=True)


def predicted_seconds(graph: Graph, rates: Rates) -> dict[str, NodeSeconds]:
    """Seconds of every node on one device."""
    return predicted_costs(graph, {rates.name: rates}, alpha=2).devices[rates.name].nodes


def works_of(graph: Graph, names: Iterable[str]) -> Works:
    """The class and work of nodes, by name."""
    nodes = (graph.nodes[name] for name in names)
    return {node.name: (operator_class(graph, node), node_work(graph, node)) for node in nodes}


def work_seconds(graph: Graph, works: Works, rates: Rates) -> dict[str, NodeSeconds]:
    """Seconds of some of a graph's nodes, on a device with these rates under the graph's autocast."""
    later, crowded = deferrable_nodes(graph), crowding(step_bytes(graph), rates.crowded_bytes)
    by_dtype = {dtype: rates.under(dtype, casts=False) for dtype in rates.half_flops}
    seconds = {
        name: _node_seconds(
            by_dtype.get(_dtype(graph, name), rates) if graph.autocast is None else rates,
            kind, work, name in later, crowded,
        )
        for name, (kind, work) in works.items()
    }  # fmt: skip
    if rates.fused and len(works) == len(graph):
        for names in chains(graph, works):
            seconds |= _as_one_kernel(graph, works, rates, names, seconds)
    return seconds


def _as_one_kernel(
    graph: Graph, works: Works, rates: Rates, names: list[str], alone: Mapping[str, NodeSeconds]
) -> dict[str, NodeSeconds]:
    """What the nodes of a chain take of its kernel: in the proportions that they have alone."""
    forward, backward = fused_pass(graph, works, names)
    least = [
        min(rates.seconds("elementwise", of, done) / alone_s, 1.0) if done and alone_s else 1.0
        for of, done, alone_s in (
            ("forward", forward, sum(alone[name].forward_s for name in names)),
            ("input", backward, sum(alone[name].backward_s for name in names)),
        )
    ]
    return {
        name: NodeSeconds(least[0] * alone[name].forward_s, least[1] * alone[name].backward_s)
        for name in names
    }


def _dtype(graph: Graph, name: str) -> str:
    """The dtype of what a node writes first."""
    return next((graph.variables[k].dtype for k in graph.nodes[name].outputs if k), "")


def _node_seconds(rates: Rates, kind: str, work: Work, deferrable: bool, crowded: float) -> NodeSeconds:
    forward_s = rates.seconds(kind, "forward", work.forward, crowded)
    if not work.has_backward:
        return NodeSeconds(forward_s, 0.0)
    back = work.input + work.sums
    weight_s = rates.seconds(kind, "weight", work.weight, crowded) if work.weight else 0.0
    alone = bool(back) or not work.weight
    backward_s = weight_s + (rates.seconds(kind, "input", back, crowded) if alone else 0.0)
    return NodeSeconds(forward_s, backward_s, min(weight_s, AT_MOST * backward_s) if deferrable else 0.0)
