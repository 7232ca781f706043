"""Graphs as JSON files."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from netsplit.errors import NetSplitError
from netsplit.files import parsed_json, write_text
from netsplit.graph.ir import Graph, Initializer, Node, Region, Variable

__all__ = ["dumps", "load", "loads", "save"]

_FORMAT = "netsplit-graph"
_VERSION = 1


def dumps(graph: Graph) -> str:
    """A graph as JSON text; `loads` gives an equal graph back."""
    return json.dumps(
        {
            "format": _FORMAT,
            "version": _VERSION,
            "nodes": [asdict(node) for node in graph],
            "variables": [
                _without(asdict(variable), "order", "repeated") for variable in graph.variables.values()
            ],
            "initializers": [_without(asdict(init), "region") for init in graph.initializers.values()],
            "entry_nodes": graph.entry_nodes,
            "input_variables": graph.input_variables,
            "output_variables": graph.output_variables,
            "units": graph.units,
            "colocated": graph.colocated,
            "batch_size": graph.batch_size,
            "autocast": graph.autocast,
        },
        indent=1,
    )


def loads(text: str, where: str = "graph") -> Graph:
    """The graph of a JSON text.

    Raises:
        NetSplitError: not a graph file of this format; names `where` and what is wrong.
    """
    try:
        data = parsed_json(text)
    except json.JSONDecodeError as error:
        raise NetSplitError(f"{where}, line {error.lineno}: not JSON ({error.msg}).") from error
    except ValueError as error:
        raise NetSplitError(f"{where}: not JSON that can be read ({error}).") from error
    if not isinstance(data, dict) or data.get("format") != _FORMAT or data.get("version") != _VERSION:
        raise NetSplitError(f"{where}: not a {_FORMAT} file of version {_VERSION}.")
    try:
        nodes = [_Keep.node(item) for item in data["nodes"]]
        variables = [_made(Variable, item) for item in data["variables"]]
        initializers = [_initializer(item) for item in data["initializers"]]
        return Graph(
            nodes={node.name: node for node in nodes},
            variables={variable.name: variable for variable in variables},
            input_variables=tuple(data["input_variables"]),
            output_variables=tuple(data["output_variables"]),
            initializers={init.name: init for init in initializers},
            units=tuple(map(tuple, data["units"])),
            colocated=tuple(map(tuple, data["colocated"])),
            batch_size=data["batch_size"],
            autocast=data.get("autocast"),
        )
    except (KeyError, TypeError) as error:
        raise NetSplitError(f"{where}: a field is missing or unknown: {error}.") from error


def save(graph: Graph, path: str | Path) -> None:
    """Write a graph file, whole or not at all."""
    write_text(path, dumps(graph))


def load(path: str | Path) -> Graph:
    """Read a graph file; raises as `loads`, and when there is no such file."""
    file = Path(path)
    if not file.is_file():
        raise NetSplitError(f"graph file '{file}' is not there.")
    return loads(file.read_text(encoding="utf-8"), str(file))


def _without(item: dict[str, Any], *keys: str) -> dict[str, Any]:
    """An item that has nothing there as before there were such keys: profiles are kept by this text."""
    return {k: value for k, value in item.items() if value or k not in keys}


def _initializer(item: dict[str, Any]) -> Initializer:
    region = item.get("region")
    return _made(Initializer, {**item, "region": None if region is None else _made(Region, region)})


def _made(kind: Any, item: dict[str, Any]) -> Any:
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in item.items()})


class _Keep:
    """Node templates keep their lists: only the node's own fields are tuples."""

    _TUPLES = frozenset(f.name for f in fields(Node) if str(f.type).startswith("tuple"))

    @classmethod
    def node(cls, item: dict[str, Any]) -> Node:
        kept: dict[str, Any] = {k: tuple(v) if k in cls._TUPLES else v for k, v in item.items()}
        return Node(**kept)
