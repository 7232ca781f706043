"""Graphs as JSON files."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from netsplit.errors import NetSplitError
from netsplit.files import parsed_json, write_text
from netsplit.graph.ir import Graph, Initializer, Node, Variable

__all__ = ["dumps", "load", "loads", "parse_json", "records_of", "save"]

_FORMAT = "netsplit-graph"
_VERSION = 1
T = TypeVar("T")
Named = TypeVar("Named", Node, Variable, Initializer)


def parse_json(text: str, where: str) -> Any:
    """The value of a JSON text.

    Raises:
        NetSplitError: not JSON; names the line.
    """
    try:
        return parsed_json(text)
    except json.JSONDecodeError as error:
        place = f"{where}, line {error.lineno}, column {error.colno}"
        raise NetSplitError(f"{place}: not JSON ({error.msg}).") from error
    except ValueError as error:
        raise NetSplitError(f"{where}: cannot be read as JSON ({error}).") from error


def dumps(graph: Graph) -> str:
    """A graph as JSON text; `loads` gives an equal graph back."""
    return json.dumps(
        {
            "format": _FORMAT,
            "version": _VERSION,
            "nodes": [_without(asdict(node), "part") for node in graph],
            "variables": [
                _without(asdict(each), "order", "repeated", "spread") for each in graph.variables.values()
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
    data = parse_json(text, where)
    if not isinstance(data, dict) or data.get("format") != _FORMAT or data.get("version") != _VERSION:
        raise NetSplitError(f"{where}: not a {_FORMAT} file of version {_VERSION}.")
    try:
        nodes = records_of(Node, data["nodes"])
        variables = records_of(Variable, data["variables"])
        initializers = records_of(Initializer, data["initializers"])
        named = _by_name(nodes, "nodes", where)
        return Graph(
            nodes=named,
            variables=_by_name(variables, "variables", where),
            input_variables=tuple(data["input_variables"]),
            output_variables=tuple(data["output_variables"]),
            initializers=_by_name(initializers, "initializers", where),
            units=_sets(data, "units", named, where),
            colocated=_sets(data, "colocated", named, where),
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
        raise NetSplitError(f"graph file '{file}' does not exist.")
    return loads(file.read_text(encoding="utf-8"), str(file))


def records_of(kind: type[T], items: Any) -> list[T]:
    """Records of a dataclass from mappings of their fields. Raises TypeError: they are something else."""
    from pydantic import TypeAdapter, ValidationError  # 40 ms, which only a file takes

    adapter: TypeAdapter[list[T]] = TypeAdapter(list[kind])  # type: ignore[valid-type]
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    try:
        given = {key for item in items for key in item if key != "default_dtype" or item[key] is not None}
        if unknown := given - known:  # files of before had that key
            raise TypeError(min(unknown))
        return adapter.validate_python(items)
    except ValidationError as error:
        first = error.errors()[0]
        raise TypeError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _by_name(items: list[Named], key: str, where: str) -> dict[str, Named]:
    names = [each.name for each in items]
    named = dict(zip(names, items, strict=True))
    if len(named) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise NetSplitError(f"{where}: {key} has '{twice}' twice: give each a unique name.")
    return named


def _sets(data: dict[str, Any], key: str, nodes: dict[str, Node], where: str) -> tuple[tuple[str, ...], ...]:
    sets = tuple(map(tuple, data[key]))
    unknown = [name for name in chain.from_iterable(sets) if name not in nodes]
    if unknown:
        raise NetSplitError(f"{where}: {key} names {unknown[0]!r}, which is not a node of the graph.")
    return sets


def _without(item: dict[str, Any], *keys: str) -> dict[str, Any]:
    """An item that has nothing there as before there were such keys: profiles are kept by this text."""
    return {k: value for k, value in item.items() if value or k not in keys}
