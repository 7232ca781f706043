"""What it costs to keep optimiser state or saved tensors in the host's memory.

    Costs + Graph ──offloaded──► Costs   step:     every moment comes and goes
                                         forward:  what the node is the first to save goes
                                         backward: what it is the first to read of that comes back

Copies are on the device's own stream: none overlaps a computation. A storage counts at the first node that
saves it; what crosses to another device, or is recomputed, counts a little too much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from netsplit.errors import ConfigError
from netsplit.graph.ir import Graph
from netsplit.graph.storage import storage_bytes, storage_of
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds, Offload
from netsplit.settings import OffloadName

__all__ = ["offloaded", "saved_bytes"]


def offloaded(costs: Costs, graph: Graph, name: OffloadName) -> Costs:
    """The costs with `name` kept in the host's memory; the same object for "none".

    Raises:
        ConfigError: the costs have an offload already, and another one.
    """
    asked = Offload.of(name)
    if asked == costs.offload or not (asked or costs.offload):
        return costs
    if costs.offload:
        raise ConfigError(
            f"offload is {name}, and the costs are of a training with another offload already: leave it out."
        )
    kinds = costs.devices.items()
    devices = {kind: _with_copies(each, graph, asked, costs.alpha) for kind, each in kinds}
    return replace(costs, devices=devices, offload=asked)


def _with_copies(costs: DeviceCosts, graph: Graph, asked: Offload, alpha: int) -> DeviceCosts:
    nodes, step_s = costs.nodes, costs.step_s_per_byte
    if asked.optimizer:
        step_s += 2 * max(alpha - 2, 0) * costs.host_s_per_byte
    if asked.activations:
        out, back = saved_bytes(graph)
        nodes = {
            name: NodeSeconds(
                each.forward_s + out.get(name, 0) * costs.host_s_per_byte,
                each.backward_s + back.get(name, 0) * costs.host_s_per_byte,
                each.weight_s,
            )
            for name, each in nodes.items()
        }
    return replace(costs, nodes=nodes, step_s_per_byte=step_s)


def saved_bytes(graph: Graph) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Bytes that leave in every node's forward, and those that come back in its backward."""
    own = storage_bytes(graph)
    computed = {storage_of(graph, k) for node in graph for k in node.outputs if k}
    computed -= {storage_of(graph, k) for k in graph.input_variables}
    trained = [node for node in graph if not graph.requires_backward.isdisjoint(node.outputs)]
    first: dict[str, str] = {}
    last: dict[str, str] = {}
    for node in trained:
        for root in {storage_of(graph, k) for k in node.saved} & computed:
            first.setdefault(root, node.name)
            last[root] = node.name
    out, back = ({node.name: node.saved_bytes for node in trained} for _ in range(2))
    for root, name in first.items():
        out[name] += own[root]
        back[last[root]] += own[root]
    return out, back
