"""Transfer nodes on cut edges (NetSplit thesis, section 4.5, Algorithm 2).

    u on p ──k──► v on q      becomes      u on p ──k──► [transfer] on q ──k@q──► v on q

A variable gets one transfer node per destination device, however many nodes read it there. That reads the
variable itself or, where an exchange says so, another's copy: k ─► k@q ─► k@r. A device has one of all copies
of a weight that its nodes read: in a placed graph they have one name (`Initializer.held_as`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from netsplit.errors import ConfigError
from netsplit.graph.arguments import renamed
from netsplit.graph.ir import INITIALIZER, TRANSFER, Graph, Node, Variable, once_of
from netsplit.placement.exchange import Exchange
from netsplit.rewrite.layouts import keep_runs

__all__ = ["exchanges_that_hold", "insert_transfers", "readers_elsewhere"]

_KEPT = 4  # placed graphs of a graph


def insert_transfers(
    graph: Graph, device_of: Mapping[str, str], exchanges: Sequence[Exchange] = ()
) -> tuple[Graph, dict[str, str]]:
    """The graph with transfer nodes, and every node's device; input variables need none.

    Raises:
        ConfigError: an exchange whose hops do not lead from the variable's home to all that read it.
    """
    known, key = _last_placed(graph), (tuple(device_of[name] for name in graph.nodes), tuple(exchanges))
    kept = known.get(key)
    if kept is None:
        kept = known[key] = _with_transfers(graph, device_of, exchanges)
        if len(known) > _KEPT:
            known.popitem(last=False)
    return kept[0], dict(kept[1])


@once_of
def _last_placed(
    graph: Graph,
) -> OrderedDict[tuple[tuple[str, ...], tuple[Exchange, ...]], tuple[Graph, dict[str, str]]]:
    return OrderedDict()


def readers_elsewhere(graph: Graph, device_of: Mapping[str, str], k: str) -> tuple[str, tuple[str, ...]]:
    """A variable's home, and the other devices that read it, first readers first."""
    variable = graph.variables[k]
    assert variable.producer is not None
    home = device_of[variable.producer]
    readers = dict.fromkeys(device_of[name] for name in variable.consumers)
    return home, tuple(device for device in readers if device != home)


def exchanges_that_hold(
    graph: Graph, device_of: Mapping[str, str], exchanges: Sequence[Exchange]
) -> tuple[Exchange, ...]:
    """Exchanges that also fit another graph, whose variables may differ or be read elsewhere."""
    return tuple(
        each
        for each in exchanges
        if each.variable in graph.variables
        and graph.variables[each.variable].producer is not None
        and not each.wrong(*readers_elsewhere(graph, device_of, each.variable))
    )


def _sources(
    graph: Graph, device_of: Mapping[str, str], exchanges: Sequence[Exchange]
) -> dict[tuple[str, str], str]:
    """(variable, reading device) -> the device that hands it on."""
    sources: dict[tuple[str, str], str] = {}
    for exchange in exchanges:
        k = exchange.variable
        if k not in graph.variables or graph.variables[k].producer is None:
            raise ConfigError(f"an exchange names '{k}', which no operator of the graph computes.")
        home, readers = readers_elsewhere(graph, device_of, k)
        if why := exchange.wrong(home, readers):
            raise ConfigError(f"an exchange of '{k}' does not bring it from '{home}' to its readers: {why}.")
        sources.update({(k, q): p for q, p in exchange.source_of.items() if p != home})
    return sources


def _with_transfers(
    graph: Graph, device_of: Mapping[str, str], exchanges: Sequence[Exchange]
) -> tuple[Graph, dict[str, str]]:
    sources = _sources(graph, device_of, exchanges)
    graph = _held_once(graph)
    nodes: dict[str, Node] = {}
    variables = dict(graph.variables)
    placed = dict(device_of)
    local_name: dict[tuple[str, str], str] = {}  # (variable, device) -> its name there
    for node in graph:
        device = device_of[node.name]
        names = {}
        for k in node.inputs:
            producer = graph.variables[k].producer
            if producer is None or device_of[producer] == device:
                continue
            way = [device]
            while (k, way[-1]) in sources:
                way.append(sources[k, way[-1]])
            read = k
            for q in reversed(way):
                if (k, q) not in local_name:
                    transfer = _transfer_node(k, q, read)
                    local_name[k, q] = transfer.outputs[0]
                    nodes[transfer.name] = transfer
                    placed[transfer.name] = q
                    variables[transfer.outputs[0]] = _moved(graph.variables[k], transfer)
                read = local_name[k, q]
            names[k] = read
        nodes[node.name] = _rename_inputs(node, names)
    moved = replace(graph, nodes=nodes, variables=_with_consumers(nodes, variables))
    keep_runs(moved, graph)
    return moved, placed


@once_of
def _held_once(graph: Graph) -> Graph:
    """The graph with one name for all copies of a weight."""
    names = {k: init.held_as for k, init in graph.initializers.items() if init.held_as != k}
    if not names:
        return graph
    references = {("init", k): ("init", name) for k, name in names.items()}
    nodes = {
        node.name: node
        if names.keys().isdisjoint(node.initializers)
        else replace(
            node,
            initializers=tuple(dict.fromkeys(names.get(k, k) for k in node.initializers)),
            **renamed(node, references),
        )
        for node in graph
    }
    initializers = {k: init for k, init in graph.initializers.items() if k not in names}
    variables = {
        k: replace(variable, alias_of=INITIALIZER + names[own])
        if (own := (variable.alias_of or "").removeprefix(INITIALIZER)) in names
        and variable.alias_of == INITIALIZER + own
        else variable
        for k, variable in graph.variables.items()
    }
    return replace(graph, nodes=nodes, variables=variables, initializers=initializers)


def _transfer_node(variable: str, device: str, read: str) -> Node:
    name = f"{variable}@{device}"
    return Node(name=name, op=TRANSFER, inputs=(read,), outputs=(name,), args=({"var": read}, device))


def _moved(variable: Variable, transfer: Node) -> Variable:
    return replace(
        variable,
        name=transfer.outputs[0],
        producer=transfer.name,
        alias_of=None,
        spread=bool(variable.repeated),
    )


def _rename_inputs(node: Node, names: Mapping[str, str]) -> Node:
    if not names:
        return node
    return replace(
        node,
        inputs=tuple(names.get(k, k) for k in node.inputs),
        saved=tuple(names.get(k, k) for k in node.saved),
        blocked=tuple(names.get(k, k) for k in node.blocked),
        **renamed(node, {("var", k): ("var", new) for k, new in names.items()}),
    )


def _with_consumers(nodes: Mapping[str, Node], variables: Mapping[str, Variable]) -> dict[str, Variable]:
    consumers: dict[str, list[str]] = {k: [] for k in variables}
    for node in nodes.values():
        for k in node.inputs:
            consumers[k].append(node.name)
    return {
        k: v if (read := tuple(consumers[k])) == v.consumers else replace(v, consumers=read)
        for k, v in variables.items()
    }
