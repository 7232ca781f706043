"""NetSplit's own JSON: a graph file (`netsplit.graph.files`) which may carry costs and a cluster too.

Beside the graph's keys, all optional unless a plan is asked for::

    "costs":    {"seconds": {kind: {node: [forward_s, backward_s, weight_s]}}, "alpha": 4, ...}
    "cluster":  {"name": ..., "devices": [{"name", "kind", "capacity_bytes", ...}], "links": [...]}
    "workload": {"name", "unit", "unit_s", "stage_time", "backward_nodes", "unsupported", "remarks"}

`weight_s` may be left out where it is 0. `costs.transients` has for each kind the bytes that nodes allocate:
{node: [forward, backward]}; `costs.offload` what is kept on the host, with copies in the seconds. CPU devices
of one `host` share its memory (null: none) and take turns on its `processors` (null: there are enough). Times
are seconds; `unit` and `unit_s` say how to show them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Container
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_args

from netsplit.cluster.cluster import Cluster, Device, Link, Nic
from netsplit.errors import ConfigError, NetSplitError
from netsplit.files import write_text
from netsplit.formats.text import checked_number, reading, topological
from netsplit.graph import files
from netsplit.graph.ir import Graph, Initializer, Variable
from netsplit.graph.quotient import joined
from netsplit.partition.objectives import MaxLoad, StageTime
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs, DeviceCosts, NodeBytes, NodeSeconds, Offload
from netsplit.settings import OffloadName

__all__ = ["dumps_workload", "read_own", "save_workload"]


_NO_NUMBERS = ("nodes", "transients", "rates", "parts", "unsure")
_RATES = {field.name: field.default for field in fields(DeviceCosts) if field.name not in _NO_NUMBERS}
"""Fields of `DeviceCosts` and their defaults."""

_KEYS = {"step_s_per_byte": "step_seconds_per_byte"}
"""Field -> its key in the file, if another."""


def dumps_workload(work: Workload) -> str:
    """A workload as JSON text."""
    data = json.loads(files.dumps(work.graph))
    data["costs"] = _costs_out(work.costs)
    if work.cluster is not None:
        cluster = work.cluster
        data["cluster"] = {
            "name": cluster.name,
            "devices": [asdict(device) for device in cluster.devices],
            "links": [{"source": p, "target": q, **asdict(link)} for (p, q), link in cluster.links.items()],
            "levels": [list(level) for level in cluster.levels],
            "nics": [asdict(nic) for nic in cluster.nics],
            "collectives": cluster.collectives,
        }
    data["workload"] = {
        "name": work.name,
        "unit": work.unit,
        "unit_s": work.unit_s,
        "stage_time": work.period.bound_key == StageTime.bound_key,
        "backward_nodes": sorted(work.backward_nodes),
        "unsupported": sorted(work.unsupported),
        "remarks": list(work.remarks),
    }
    return json.dumps(data, indent=1, allow_nan=False)


def save_workload(work: Workload, path: str | Path) -> None:
    """Write our own JSON, whole or not at all; `read.read_workload` returns an equal workload."""
    write_text(path, dumps_workload(work))


def read_own(data: dict[str, Any], text: str, where: str, name: str) -> Workload:
    """The workload of a parsed file.

    Raises:
        NetSplitError: a field is missing, unknown or wrong; or the file holds a graph without costs.
    """
    graph = files.loads(text, where)
    _check_graph(graph, where)
    graph, shared = _sharing_joined(graph)
    if data.get("costs") is None:
        raise NetSplitError(
            f"{where}: the file has a graph but no costs: save both with "
            "netsplit.formats.own.save_workload, or add "
            '"costs": {"seconds": {"<device kind>": {"<node>": [forward_s, backward_s]}}, "alpha": 2}.'
        )
    with reading(where):
        cluster = _cluster_in(data["cluster"], where) if data.get("cluster") is not None else None
        about = _about_in(dict(data.get("workload") or {}), graph, where)
        about["remarks"] += shared
        return Workload(
            graph=graph,
            costs=_costs_in(data["costs"], graph, where),
            cluster=cluster,
            period=StageTime() if about.pop("stage_time", False) else MaxLoad(),
            **{"name": name, **about},
        )


def _sharing_joined(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """The graph with the users of each initializer colocated, as in captured ones, and a remark about
    them."""
    users: dict[str, list[str]] = {}
    for node in graph:
        for name in dict.fromkeys(node.initializers):
            users.setdefault(name, []).append(node.name)
    set_of = {name: i for i, together in enumerate(graph.colocated) for name in together}
    apart = {k: names for k, names in users.items() if len({set_of.get(n, n) for n in names}) > 1}
    if not apart:
        return graph, ()
    groups = joined(graph, [*graph.colocated, *apart.values()])
    remark = f"nodes that share an initializer must be on one device: {', '.join(apart)}"
    return replace(graph, colocated=tuple(each for each in groups if len(each) > 1)), (remark,)


def _about_in(item: dict[str, Any], graph: Graph, where: str) -> dict[str, Any]:
    for key in ("backward_nodes", "unsupported"):
        item[key] = frozenset(item.get(key, ()))
        if strange := item[key] - graph.nodes.keys():
            raise ValueError(f"workload.{key} names '{min(strange)}', which is not a node of the graph")
    item["remarks"] = tuple(item.get("remarks", ()))
    if checked_number(item.get("unit_s", 1.0), "workload.unit_s", where) == 0:
        raise ValueError("workload.unit_s is 0: give the seconds of one unit")
    return item


def _check_graph(graph: Graph, where: str) -> None:
    """Refuse a graph whose nodes and variables do not fit together, or that has no valid order."""
    if not graph.nodes:
        raise NetSplitError(f"{where}: the file has no nodes.")
    named: list[tuple[str, str, Container[str]]] = []
    for i, node in enumerate(graph):
        place = f"nodes[{i}]: node '{node.name}'"
        named += [(place, k, graph.variables) for k in (*node.inputs, *node.outputs) if k]
        named += [(place, k, graph.initializers) for k in node.initializers]
    for variable in graph.variables.values():
        ends = (*variable.consumers, variable.producer)
        named += [(f"variable '{variable.name}'", v, graph.nodes) for v in ends if v is not None]
    for place, name, known in named:
        if name not in known:
            raise NetSplitError(f"{where}, {place} names '{name}', which does not exist.")
    tensors: list[Variable | Initializer] = [*graph.variables.values(), *graph.initializers.values()]
    for tensor in tensors:
        with reading(f"{where}: dtype and shape of '{tensor.name}'"):
            checked_number(min((tensor.nbytes, *tensor.shape)), f"size of '{tensor.name}'", where)
    edges = [(u, v) for v, before in graph.predecessors.items() for u in before]
    topological(list(graph.nodes), edges, {}, where)
    for u, v in edges:
        if graph.position[u] > graph.position[v]:
            raise NetSplitError(
                f"{where}, nodes[{graph.position[v]}]: node '{v}' comes before one of its inputs: give "
                "nodes in topological order."
            )


def _costs_in(item: dict[str, Any], graph: Graph, where: str) -> Costs:
    kinds: dict[str, dict[str, Any]] = {}
    for kind, measured in item["seconds"].items():
        place = f"costs.seconds.{kind}"
        if strange := measured.keys() ^ graph.nodes.keys():
            raise ValueError(f"{place}: '{min(strange)}' is in only one of graph and costs")
        with reading(f"{where}, {place}: a node's [forward_s, backward_s], and weight_s if any"):
            kinds[kind] = {
                "nodes": {
                    node: NodeSeconds(
                        *(checked_number(value, f"a time of '{node}'", where) for value in given)
                    )
                    for node, given in measured.items()
                }
            }
        costly = (v for v, each in kinds[kind]["nodes"].items() if each.weight_s > each.backward_s)
        if (node := next(costly, None)) is not None:
            raise ValueError(f"{place}: weight_s of '{node}' exceeds its backward_s, which includes it")
    if not kinds:
        raise ValueError("costs.seconds names no device kind")
    keys = {_KEYS.get(name, name): name for name in _RATES}
    if strange := {kind for key in (*keys, "transients") for kind in item.get(key, {})} - kinds.keys():
        raise ValueError(f"costs has rates or transients for '{min(strange)}' but no seconds")
    for key, name in keys.items():
        for kind, each in item.get(key, {}).items():
            kinds[kind][name] = checked_number(each, f"costs.{key}.{kind}", where)
            if name == "contention" and each < 1:
                raise ValueError(f"costs.{key}.{kind} is {each}: give at least 1")
    for kind, allocated in item.get("transients", {}).items():
        if strange := allocated.keys() - graph.nodes.keys():
            raise ValueError(f"costs.transients.{kind}: '{min(strange)}' is not a node of the graph")
        with reading(f"{where}, costs.transients.{kind}: a node's bytes, [forward, backward]"):
            kinds[kind]["transients"] = {
                node: NodeBytes(*(int(checked_number(n, f"bytes of '{node}'", where)) for n in given))
                for node, given in allocated.items()
            }
    alpha, copies = item["alpha"], item.get("variable_copies")
    if type(alpha) is not int or alpha < 1 or type(copies) not in (int, type(None)) or (copies or 0) < 0:
        raise ValueError(f"costs.alpha is {alpha!r}, variable_copies {copies!r}: give whole numbers")
    if (offload := item.get("offload", "none")) not in get_args(OffloadName):
        raise ValueError(f"costs.offload is {offload!r}: give one of {', '.join(get_args(OffloadName))}")
    devices = {kind: DeviceCosts(**known) for kind, known in kinds.items()}
    return Costs(devices, alpha, copies, offload=Offload.of(offload))


def _costs_out(costs: Costs) -> dict[str, Any]:
    kinds = costs.devices.items()
    seconds = {
        kind: {
            v: [s.forward_s, s.backward_s, *[s.weight_s] * bool(s.weight_s)] for v, s in each.nodes.items()
        }
        for kind, each in kinds
    }
    rates = {
        _KEYS.get(name, name): {kind: r for kind, each in kinds if (r := getattr(each, name)) != default}
        for name, default in _RATES.items()
    }
    transients = {
        kind: {node: [own.forward, own.backward] for node, own in each.transients.items()}
        for kind, each in kinds
        if each.transients
    }
    return {
        "seconds": seconds,
        "alpha": costs.alpha,
        **rates,
        "transients": transients,
        "variable_copies": costs.variable_copies,
        **({"offload": costs.offload.name} if costs.offload else {}),
    }


def _cluster_in(item: dict[str, Any], where: str) -> Cluster:
    ends = [(entry["source"], entry["target"]) for entry in item["links"]]
    costs = [{k: v for k, v in each.items() if k not in ("source", "target")} for each in item["links"]]
    links, devices = files.records_of(Link, costs), files.records_of(Device, item["devices"])
    nics = files.records_of(Nic, item.get("nics", ()))
    for record in (*devices, *links, *nics):
        for key, value in vars(record).items():
            if isinstance(value, int | float) and key != "r_squared":
                checked_number(value, f"{key} of a {type(record).__name__}", where, most=math.inf)
    if wrong := [each.name for each in devices if not each.capacity_bytes or each.processors == 0]:
        raise ValueError(
            f"device '{wrong[0]}' has a capacity of 0, or 0 processors: give 1 or more, or null processors"
        )
    levels = tuple((count, rate) for count, rate in item.get("levels", ()))
    try:
        rule = item.get("collectives", "ring")
        cluster = Cluster(
            item["name"], tuple(devices), dict(zip(ends, links, strict=True)), levels, tuple(nics), rule
        )
        cluster.check_links()
    except ConfigError as error:
        raise NetSplitError(f"{where}: {error}") from error
    return cluster
