"""A placed graph as an ONNX file for viewers: operators with their device, seconds and bytes as metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from netsplit.errors import NetSplitError
from netsplit.files import write_atomically
from netsplit.graph.arguments import read_by
from netsplit.graph.ir import Graph, Node
from netsplit.graph.onnx.files import METADATA, onnx_package

__all__ = ["NodeNotes", "write_onnx"]

_OPSET = 21
_IR_VERSION = 10  # the first whose nodes and values carry metadata
_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "complex64": 14, "complex128": 15, "bfloat16": 16,
}  # fmt: skip


@dataclass(frozen=True)
class NodeNotes:
    """What is decided and known of every node, by its name; where a mapping lacks one, nothing is."""

    device: Mapping[str, str] = field(default_factory=dict)
    forward_s: Mapping[str, float] = field(default_factory=dict)
    backward_s: Mapping[str, float] = field(default_factory=dict)

    def of(self, graph: Graph, node: Node) -> dict[str, str]:
        """Notes as text, with the bytes that the graph knows of the node's outputs and parameters."""
        notes = {"device": self.device.get(node.name)}
        for key, seconds in (("forward_s", self.forward_s), ("backward_s", self.backward_s)):
            notes[key] = f"{seconds[node.name]:.9g}" if node.name in seconds else None
        notes["output_bytes"] = str(sum(graph.variables[k].nbytes for k in node.outputs if k))
        notes["parameter_bytes"] = str(sum(graph.initializers[k].nbytes for k in node.initializers))
        notes |= {"module": node.module or None, "source": node.source or None}
        return {key: value for key, value in notes.items() if value is not None}


def write_onnx(graph: Graph, path: str | Path, notes: NodeNotes | None = None) -> None:
    """Write a graph as an ONNX file without the values of its weights, for Netron and other viewers.

    Each node of the graph is one of the file, in the domain ``aten`` with its other arguments as text.
    Weights are inputs of the file, as it has no values for them. Metadata of a node: device, forward_s,
    backward_s (seconds), output_bytes, parameter_bytes, module, source; of a value: bytes.

    Args:
        graph: as captured.
        path: replaced whole or not at all.
        notes: devices and seconds.

    Raises:
        NetSplitError: a dtype has no form in ONNX.
    """
    onnx = onnx_package()
    notes = notes or NodeNotes()
    helper = onnx.helper
    computed = [k for k in graph.variables if graph.variables[k].producer is not None]
    inner = [k for k in computed if k not in graph.output_variables]
    weights = _weight_names(graph)
    file = helper.make_graph(
        [_node(onnx, graph, node, notes, weights) for node in graph],
        "netsplit",
        [
            *(_value(onnx, graph, k) for k in graph.input_variables),
            *(_weight(onnx, graph, k, name) for k, name in weights.items()),
        ],
        [_value(onnx, graph, k) for k in graph.output_variables],
        value_info=[_value(onnx, graph, k) for k in inner],
    )
    domains = {"": _OPSET} | {_parts(node)[0]: 1 for node in graph}
    model = helper.make_model(file, opset_imports=[helper.make_opsetid(*each) for each in domains.items()])
    model.ir_version, model.producer_name = _IR_VERSION, "netsplit"
    devices = sorted({notes.device[k] for k in graph.nodes if k in notes.device})
    _note(model, {METADATA + "devices": json.dumps(devices)})
    text = model.SerializeToString()
    write_atomically(path, lambda place: place.write_bytes(text))


def _node(onnx: Any, graph: Graph, node: Node, notes: NodeNotes, weights: Mapping[str, str]) -> Any:
    domain, name = _parts(node)
    proto = onnx.helper.make_node(
        name,
        [weights.get(k, k) if tag == "init" else k for tag, k in read_by(node)],
        list(node.outputs),
        name=node.name,
        domain=domain,
        arguments=json.dumps([list(node.args), node.kwargs]),
    )
    _note(proto, notes.of(graph, node))
    return proto


def _parts(node: Node) -> tuple[str, str]:
    """Domain and operator."""
    domain, name, rest = [*node.op.split(".", 2), ""][:3]
    return domain, name if rest in ("", "default") else f"{name}.{rest}"


def _weight_names(graph: Graph) -> dict[str, str]:
    """A model may use one name for a variable and for a weight; a file may not."""
    variables = set(graph.variables)
    return {k: f"{k} (weight)" if k in variables else k for k in graph.initializers}


def _value(onnx: Any, graph: Graph, name: str) -> Any:
    variable = graph.variables[name]
    info = onnx.helper.make_tensor_value_info(name, _type(variable.dtype, name), variable.shape)
    _note(info, {"bytes": str(variable.nbytes)})
    return info


def _weight(onnx: Any, graph: Graph, key: str, name: str) -> Any:
    init = graph.initializers[key]
    info = onnx.helper.make_tensor_value_info(name, _type(init.dtype, key), init.shape)
    _note(info, {"bytes": str(init.nbytes), "trained": str(init.requires_grad).lower()})
    return info


def _type(dtype: str, name: str) -> int:
    if dtype not in _TYPES:
        raise NetSplitError(f"'{name}' has the type {dtype}, which ONNX does not have.")
    return _TYPES[dtype]


def _note(proto: Any, notes: Mapping[str, str]) -> None:
    for key, value in notes.items():
        each = proto.metadata_props.add()
        each.key, each.value = key, value
