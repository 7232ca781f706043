"""ONNX files: read whole or refused in one sentence; nodes as plain records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from netsplit.errors import NetSplitError
from netsplit.files import parsed_json

__all__ = [
    "METADATA", "OnnxNode", "load_model", "metadata_of", "nodes_of", "onnx_package", "opsets_of",
    "without_trailing_gaps",
]  # fmt: skip

METADATA = "netsplit."
"""Precedes the keys that this package keeps in a file's metadata: outputs, targets, parameters."""

_STANDARD = ("", "ai.onnx")


@dataclass(frozen=True)
class OnnxNode:
    """One node of a file; `inputs`, `outputs` are value names in the operator's order, "" where left out."""

    name: str  # unique; made up where the file has none
    op: str
    domain: str  # "" is ONNX's own
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]  # numbers, text, lists, numpy arrays
    proto: bytes  # the serialised NodeProto

    @property
    def label(self) -> str:
        """The operator's name with its domain, where it is not ONNX's own."""
        return self.op if not self.domain else f"{self.domain}.{self.op}"


def onnx_package() -> ModuleType:
    """The package ``onnx`` with what it leaves to be imported by hand."""
    for part in ("checker", "inliner", "numpy_helper", "shape_inference", "version_converter"):
        import_module(f"onnx.{part}")
    return import_module("onnx")


def load_model(path: str | Path) -> Any:
    """The ModelProto of a file, its functions put in place of their calls.

    Args:
        path: of the file; external data beside it.

    Raises:
        NetSplitError: there is no such file, it is no ONNX model, its data is missing, or a node of it has a
            graph of its own (If, Loop, Scan).
    """
    if not isinstance(path, str | Path):
        raise NetSplitError(f"the path of an ONNX file is {path!r}: give a str or a Path.")
    file = Path(path)
    onnx = onnx_package()
    if not file.is_file():
        raise NetSplitError(f"ONNX file '{file}' is {'a folder' if file.is_dir() else 'not there'}.")
    try:
        model = onnx.load(str(file), load_external_data=False)
    except Exception as error:  # protobuf's own, of several kinds
        raise NetSplitError(f"'{file}' is not an ONNX file, or is incomplete.") from error
    if not model.graph.node and not model.graph.output:
        raise NetSplitError(f"'{file}' is not an ONNX file, or it holds no graph.")
    try:
        onnx.external_data_helper.load_external_data_for_model(model, str(file.parent))
    except Exception as error:
        raise NetSplitError(
            f"'{file}' keeps its weights in another file, which is missing or cannot be read: copy both to "
            "one folder."
        ) from error
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    if model.graph.sparse_initializer:
        name = model.graph.sparse_initializer[0].values.name
        raise NetSplitError(f"'{file}': the weight '{name}' is sparse: export it as a dense one.")
    return model


def opsets_of(model: Any) -> dict[str, int]:
    """Domain -> version of its operators that the file is written in."""
    return {"" if each.domain in _STANDARD else each.domain: each.version for each in model.opset_import}


def metadata_of(model: Any) -> dict[str, list[str]]:
    """What this package has noted in the file: lists of names by key, without the prefix.

    Raises:
        NetSplitError: a note cannot be read.
    """
    notes = {}
    for each in model.metadata_props:
        if not each.key.startswith(METADATA):
            continue
        try:
            names = parsed_json(each.value)
        except ValueError:
            names = None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise NetSplitError(f"the file's metadata '{each.key}' is not a list of names: export it again.")
        notes[each.key.removeprefix(METADATA)] = names
    return notes


def nodes_of(model: Any, where: str | Path) -> tuple[OnnxNode, ...]:
    """The nodes in the file's order.

    Raises:
        NetSplitError: a node has a graph of its own, or an attribute of a type that is not known; names it.
    """
    records: list[OnnxNode] = []
    names: set[str] = set()
    for index, proto in enumerate(model.graph.node):
        name = proto.name or f"{proto.op_type}_{index}"
        while name in names:
            name = f"{name}_{index}"
        names.add(name)
        domain = "" if proto.domain in _STANDARD else proto.domain
        inputs, outputs = without_trailing_gaps(proto.input), without_trailing_gaps(proto.output)
        attributes = {each.name: _attribute(each, proto, name, str(where)) for each in proto.attribute}
        whole = proto.SerializeToString()
        records.append(OnnxNode(name, proto.op_type, domain, inputs, outputs, attributes, whole))
    return tuple(records)


def without_trailing_gaps(names: Iterable[str]) -> tuple[str, ...]:
    """Names without the "" at their end, where the last inputs or outputs are left out."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return tuple(kept)


def _attribute(attribute: Any, proto: Any, node: str, where: str) -> Any:
    onnx = onnx_package()
    kinds = onnx.AttributeProto
    if attribute.type in (kinds.GRAPH, kinds.GRAPHS):
        raise NetSplitError(
            f"{where}: node '{node}' ({proto.op_type}) runs a subgraph, whose operators cannot be placed: "
            "export the model without control flow."
        )
    value = onnx.helper.get_attribute_value(attribute)
    one: dict[Any, Callable[[Any], Any]] = {
        kinds.FLOAT: _decimal, kinds.STRING: bytes.decode, kinds.INT: int,
        kinds.TENSOR: onnx.numpy_helper.to_array,
    }  # fmt: skip
    several: dict[Any, Callable[[Any], Any]] = {
        kinds.FLOATS: _decimal,
        kinds.STRINGS: bytes.decode,
        kinds.INTS: int,
    }
    if attribute.type in one:
        return one[attribute.type](value)
    if attribute.type in several:
        return [several[attribute.type](each) for each in value]
    raise NetSplitError(
        f"{where}: node '{node}' ({proto.op_type}) has an attribute '{attribute.name}' whose type cannot be "
        "read: export the model without it."
    )


def _decimal(value: float) -> float:
    """The shortest number of that single precision: 1e-05 for 9.99999974e-06, as the model had it."""
    return float(str(np.float32(value)))
