"""NetSplit's own JSON: a graph file (`netsplit.graph.files`) which may carry costs and a cluster too.

Beside the graph's keys, all optional unless a plan is asked for::

    "costs":    {"seconds": {kind: {node: [forward_s, backward_s, weight_s]}}, "alpha": 4, ...}
    "cluster":  {"name": ..., "devices": [{"name", "kind", "capacity_bytes", ...}], "links": [...]}
    "workload": {"name", "unit", "unit_s", "stage_time", "backward_nodes", "unsupported", "remarks"}

`weight_s` may be left out where it is 0. `costs.transients` has, for each kind, the bytes that nodes allocate
for themselves: {node: [forward, backward]}; `costs.offload` says what is kept on the host, whose copies the
seconds have (none). CPU devices of the same `host` share its memory (null: none). They take turns on
its `processors` (null: there are enough). All times are seconds; `unit` and `unit_s` say in which unit to
show them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_args

from netsplit.cluster.cluster import Cluster, Device, Link, Nic
from netsplit.errors import ConfigError, NetSplitError
from netsplit.files import write_text
from netsplit.formats.text import checked_number, topological
from netsplit.graph import files
from netsplit.graph.ir import Graph, Initializer, Variable
from netsplit.graph.quotient import joined
from netsplit.partition.objectives import MaxLoad
from netsplit.partition.stage_time import StageTime
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs, DeviceCosts, NodeBytes, NodeSeconds, Offload
from netsplit.settings import OffloadName

__all__ = ["dumps_workload", "read_own", "save_workload"]


_NO_NUMBERS = ("nodes", "transients", "rates", "parts", "unsure")
_RATES = {field.name: field.default for field in fields(DeviceCosts) if field.name not in _NO_NUMBERS}
"""Fields of `DeviceCosts`, each with what it is for a device kind that the file gives no number."""

_KEYS = {"step_s_per_byte": "step_seconds_per_byte"}
"""Keys in the file of the fields that have another name there."""


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
    """Write our own JSON, whole or not at all; `read.read_workload` gives an equal workload back."""
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
    try:
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
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, NetSplitError):
            raise
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise NetSplitError(f"{where}: costs, cluster or workload cannot be read: {what}.") from error


def _sharing_joined(graph: Graph) -> tuple[Graph, tuple[str, ...]]:
    """The graph with the users of each initializer colocated, as in captured ones, and what was joined."""
    users: dict[str, list[str]] = {}
    for node in graph:
        for name in dict.fromkeys(node.initializers):
            users.setdefault(name, []).append(node.name)
    set_of = {name: i for i, together in enumerate(graph.colocated) for name in together}
    apart = {k: names for k, names in users.items() if len({set_of.get(n, n) for n in names}) > 1}
    if not apart:
        return graph, ()
    groups = joined(graph, [*graph.colocated, *apart.values()])
    remark = f"nodes that share an initializer are placed on one device: {', '.join(apart)}"
    return replace(graph, colocated=tuple(each for each in groups if len(each) > 1)), (remark,)


def _about_in(item: dict[str, Any], graph: Graph, where: str) -> dict[str, Any]:
    for key in ("backward_nodes", "unsupported"):
        item[key] = frozenset(item.get(key, ()))
        strange = item[key] - graph.nodes.keys()
        if strange:
            raise NetSplitError(
                f"{where}: workload.{key} names '{min(strange)}', which is no node of the graph."
            )
    item["remarks"] = tuple(item.get("remarks", ()))
    if checked_number(item.get("unit_s", 1.0), "workload.unit_s", where) == 0:
        raise NetSplitError(f"{where}: workload.unit_s is 0: give the seconds of one unit.")
    return item


def _check_graph(graph: Graph, where: str) -> None:
    """Refuse a graph whose nodes and variables do not fit together, or that no order can run."""
    if not graph.nodes:
        raise NetSplitError(f"{where}: the file has no nodes.")
    for i, node in enumerate(graph):
        for k in (*node.inputs, *node.outputs):
            if k and k not in graph.variables:
                raise NetSplitError(
                    f"{where}, nodes[{i}]: node '{node.name}' names variable '{k}', which is not there."
                )
        for k in node.initializers:
            if k not in graph.initializers:
                raise NetSplitError(
                    f"{where}, nodes[{i}]: node '{node.name}' names initializer '{k}', which is not there."
                )
    for i, tensor in enumerate(graph.variables.values()):
        _check_bytes(tensor, f"{where}, variables[{i}]")
    for i, init in enumerate(graph.initializers.values()):
        _check_bytes(init, f"{where}, initializers[{i}]")
    for i, variable in enumerate(graph.variables.values()):
        for end in (*variable.consumers, variable.producer):
            if end is not None and end not in graph.nodes:
                raise NetSplitError(
                    f"{where}, variables[{i}]: variable '{variable.name}' names node '{end}', "
                    "which is not there."
                )
    order = topological(
        list(graph.nodes),
        [(u, v) for v, before in graph.predecessors.items() for u in before],
        {},
        where,
    )
    if order != list(graph.nodes):
        late = next(
            v
            for v in graph.nodes
            if any(graph.position[u] > graph.position[v] for u in graph.predecessors[v])
        )
        raise NetSplitError(
            f"{where}, nodes[{graph.position[late]}]: node '{late}' stands before a node that feeds it: "
            "give nodes in topological order."
        )


def _check_bytes(tensor: Variable | Initializer, place: str) -> None:
    try:
        nbytes = tensor.nbytes if all(size >= 0 for size in tensor.shape) else -1
    except (KeyError, TypeError) as error:
        raise NetSplitError(
            f"{place}: '{tensor.name}' has dtype {tensor.dtype!r} and shape {tensor.shape!r}: "
            "give a torch dtype by name, and whole numbers."
        ) from error
    checked_number(nbytes, f"size of '{tensor.name}'", place)


def _costs_in(item: dict[str, Any], graph: Graph, where: str) -> Costs:
    seconds: dict[str, dict[str, NodeSeconds]] = {}
    for kind, measured in item["seconds"].items():
        missing = next((node for node in graph.nodes if node not in measured), None)
        if missing is not None:
            raise NetSplitError(f"{where}: costs.seconds.{kind} has no seconds of node '{missing}'.")
        seconds[kind] = {}
        for node, pair in measured.items():
            place = f"{where}, costs.seconds.{kind}"
            if node not in graph.nodes:
                raise NetSplitError(f"{place}: '{node}' is no node of the graph.")
            if not isinstance(pair, list) or len(pair) not in (2, 3):
                raise NetSplitError(
                    f"{place}: '{node}' has {pair!r}: give [forward_s, backward_s], and weight_s if any."
                )
            each = NodeSeconds(*(checked_number(value, f"a time of '{node}'", place) for value in pair))
            if each.weight_s > each.backward_s:
                raise NetSplitError(
                    f"{place}: '{node}' has a weight_s of {each.weight_s}, which is part of its backward_s, "
                    f"{each.backward_s}: give no more than that."
                )
            seconds[kind][node] = each
    if not seconds:
        raise NetSplitError(f"{where}: costs.seconds names no device kind.")
    rates: dict[str, dict[str, Any]] = {kind: {} for kind in seconds}
    for name in _RATES:
        key = _KEYS.get(name, name)
        for kind, each in item.get(key, {}).items():
            rates.setdefault(kind, {})[name] = checked_number(each, f"costs.{key}.{kind}", where)
            if name == "contention" and each < 1:
                raise NetSplitError(f"{where}: costs.{key}.{kind} is {each}: give at least 1.")
    alpha, copies = item["alpha"], item.get("variable_copies")
    if not all(
        type(n) is int and n >= least for n, least in ((alpha, 1), (0 if copies is None else copies, 0))
    ):
        raise NetSplitError(
            f"{where}: costs.alpha is {alpha!r}, variable_copies {copies!r}: give whole numbers."
        )
    transients = _transients_in(item.get("transients", {}), graph, where)
    offload = item.get("offload", "none")
    if offload not in get_args(OffloadName):
        raise NetSplitError(
            f"{where}: costs.offload is {offload!r}: give one of {', '.join(get_args(OffloadName))}."
        )
    devices = {
        kind: DeviceCosts(nodes, **rates[kind], transients=transients.get(kind, {}))
        for kind, nodes in seconds.items()
    }
    return Costs(devices, alpha, copies, offload=Offload.of(offload))


def _transients_in(item: dict[str, Any], graph: Graph, where: str) -> dict[str, dict[str, NodeBytes]]:
    transients: dict[str, dict[str, NodeBytes]] = {}
    for kind, measured in item.items():
        place = f"{where}, costs.transients.{kind}"
        for node, pair in measured.items():
            if node not in graph.nodes:
                raise NetSplitError(f"{place}: '{node}' is no node of the graph.")
            if not isinstance(pair, list) or len(pair) != 2 or any(not isinstance(n, int) for n in pair):
                raise NetSplitError(f"{place}: '{node}' has {pair!r}: give bytes, [forward, backward].")
            forward, backward = (int(checked_number(n, f"bytes of '{node}'", place)) for n in pair)
            transients.setdefault(kind, {})[node] = NodeBytes(forward, backward)
    return transients


def _costs_out(costs: Costs) -> dict[str, Any]:
    kinds = costs.devices.items()
    seconds = {kind: {node: _seconds_out(s) for node, s in each.nodes.items()} for kind, each in kinds}
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


def _seconds_out(each: NodeSeconds) -> list[float]:
    return [each.forward_s, each.backward_s, *([each.weight_s] if each.weight_s else [])]


def _processors_in(entry: dict[str, Any], where: str) -> float | None:
    if entry.get("processors") is None:
        return None
    key = f"processors of device '{entry['name']}'"
    processors = checked_number(entry["processors"], key, where)
    if processors == 0:
        raise NetSplitError(f"{where}: {key} is 0: give more, or null where there are enough.")
    return processors


def _cluster_in(item: dict[str, Any], where: str) -> Cluster:
    devices = []
    for entry in item["devices"]:
        port, host = entry.get("port"), entry.get("host")
        link = Link(**port) if port is not None else None
        processors = _processors_in(entry, where)
        devices.append(Device(**{**entry, "port": link, "host": host, "processors": processors}))
        if not isinstance(host, str | None):
            raise NetSplitError(
                f"{where}: device '{devices[-1].name}' has the host {host!r}: give a name, or null for none."
            )
        if not isinstance(devices[-1].capacity_bytes, int) or devices[-1].capacity_bytes < 1:
            raise NetSplitError(
                f"{where}: device '{devices[-1].name}' has a capacity of "
                f"{devices[-1].capacity_bytes!r}: give bytes, 1 or more, or leave the device out."
            )
    links = {
        (entry["source"], entry["target"]): Link(
            checked_number(entry["latency_s"], "latency_s", f"{where}, cluster.links[{i}]"),
            checked_number(entry["seconds_per_byte"], "seconds_per_byte", f"{where}, cluster.links[{i}]"),
            entry.get("r_squared"),
        )
        for i, entry in enumerate(item["links"])
    }
    levels = tuple((count, rate) for count, rate in item.get("levels", ()))
    try:
        cluster = Cluster(item["name"], tuple(devices), links, levels, _nics_in(item, where))
        cluster.check_links()
    except ConfigError as error:
        raise NetSplitError(f"{where}: {error}") from error
    return cluster


def _nics_in(item: dict[str, Any], where: str) -> tuple[Nic, ...]:
    """None in files from before there were any."""
    return tuple(
        Nic(
            entry["host"],
            tuple(entry["devices"]),
            *(
                checked_number(entry[key], key, f"{where}, cluster.nics[{i}]")
                for key in ("out_s_per_byte", "in_s_per_byte")
            ),
        )
        for i, entry in enumerate(item.get("nics", ()))
    )
