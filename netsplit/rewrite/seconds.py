"""Costs of a rewritten graph from those of the graph before; what is new is predicted, measured or estimated.

A measured part serves all of its like (`operator_key`). Predicted costs predict new nodes by the same rates.
Other new parts take as much of their operator's seconds as of its work (`profile.roofline`), and what moves,
cuts or adds takes its bytes at the rate at which the device adds gradients.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from netsplit.graph.deferral.deferrable import deferrable_nodes
from netsplit.graph.ir import Graph, Node, once_of
from netsplit.profile.costs import Costs, DeviceCosts, NodeBytes, NodeSeconds
from netsplit.profile.operator_keys import new_nodes, operator_key
from netsplit.profile.predict import Works, work_seconds, works_of
from netsplit.profile.roofline import Pass, Work, node_work

__all__ = ["rewritten_costs"]

_MOST_PASSES = 3.0
"""Over a parameter's bytes, of adding a gradient: two are read, one is written."""


def rewritten_costs(costs: Costs, before: Graph, after: Graph) -> Costs:
    """Costs with every node of `after`; kinds of devices without costs of `before` stay without."""
    if after is before:
        return costs
    known = {kind: each for kind, each in costs.devices.items() if before.nodes.keys() <= each.nodes.keys()}
    extended = {kind: _extended(each, before, after) for kind, each in known.items()}
    return replace(costs, devices={**costs.devices, **extended})


def _extended(costs: DeviceCosts, before: Graph, after: Graph) -> DeviceCosts:
    new = new_nodes(before, after)
    nodes = {name: costs.nodes[name] for name in after.nodes if name not in new}
    transients = {name: costs.transients[name] for name in nodes if name in costs.transients}
    works = works_of(after, new)
    whole = works_of(before, {origin.name for origin in new.values() if origin is not None})
    if costs.rates is None:
        nodes |= _estimated(costs, before, after, new, works, whole)
    else:
        nodes |= work_seconds(after, works, costs.rates)
    for name, origin in new.items():
        own = None if origin is None else costs.transients.get(origin.name)
        if origin is not None and own is not None:
            part = _fraction(works[name][1].forward, whole[origin.name][1].forward)
            transients[name] = NodeBytes(ceil(part * own.forward), ceil(part * own.backward))
    deferrable = deferrable_nodes(after) if costs.parts else ()
    for name in new if costs.parts else ():
        measured = costs.parts.get(operator_key(after, after.nodes[name]))
        if measured is not None:
            put_off_s = measured.seconds.weight_s if name in deferrable else 0.0
            nodes[name] = replace(measured.seconds, weight_s=put_off_s)
            transients[name] = measured.transient
    return replace(costs, nodes=nodes, transients=transients)


def _estimated(
    costs: DeviceCosts, before: Graph, after: Graph, new: dict[str, Node | None], works: Works, whole: Works
) -> dict[str, NodeSeconds]:
    rate, seconds, deferrable = _seconds_per_byte(costs, before), {}, deferrable_nodes(after)
    for name, origin in new.items():
        if origin is None:  # of algebra: as its like
            node, work, most = after.nodes[name], works[name][1], _with_most_work(before)
            moves = node.part is not None and node.part.moves
            alike = None if moves else most.get(node.op) or most.get("")
            if alike is None or not work.forward.flops:
                seconds[name] = _moved(work, rate)
                continue
            times = work.forward.flops / node_work(before, alike).forward.flops
        else:
            alike = origin
            times = _fraction(works[name][1].forward, whole[origin.name][1].forward)
        own = costs.nodes[alike.name]
        # A weight that comes as a variable has its gradient at once: nothing of it is put off.
        weight_s = times * own.weight_s if name in deferrable else 0.0
        seconds[name] = NodeSeconds(times * own.forward_s, times * own.backward_s, weight_s)
    return seconds


@once_of
def _with_most_work(before: Graph) -> dict[str, Node]:
    """The operator of each kind with the most work; under "" that of all. Those without work are left out."""
    most: dict[str, Node] = {}
    worked = ((node_work(before, node).forward.flops, node) for node in before)
    for _, node in sorted(((flops, node) for flops, node in worked if flops), key=lambda each: each[0]):
        most |= {node.op: node, "": node}
    return most


def _fraction(part: Pass, whole: Pass) -> float:
    if whole.flops > 0:
        return min(part.flops / whole.flops, 1.0)
    return min(part.nbytes / whole.nbytes, 1.0) if whole.nbytes > 0 else 1.0


def _moved(work: Work, rate: float) -> NodeSeconds:
    backward = work.input.nbytes + work.weight.nbytes + work.sums.nbytes
    return NodeSeconds(rate * work.forward.nbytes, rate * backward if work.has_backward else 0.0)


def _seconds_per_byte(costs: DeviceCosts, graph: Graph) -> float:
    """Seconds per byte of moving; by default the average over all nodes."""
    if costs.accumulate_s_per_byte > 0:
        return costs.accumulate_s_per_byte / _MOST_PASSES
    nbytes = sum(node_work(graph, node).forward.nbytes for node in graph)
    return sum(costs.nodes[name].forward_s for name in graph.nodes) / nbytes if nbytes else 0.0
