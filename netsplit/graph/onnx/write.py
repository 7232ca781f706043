"""A placed graph as an ONNX file for viewers: operators with their device, seconds and bytes as metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from netsplit.errors import NetSplitError
from netsplit.files import write_atomically, write_text
from netsplit.graph.arguments import read_by, references
from netsplit.graph.ir import Graph, Node
from netsplit.graph.onnx.files import METADATA, onnx_package
from netsplit.graph.onnx.read import PREFIX

__all__ = ["NodeNotes", "write_node_data", "write_onnx"]

_OPSET = 21
_IR_VERSION = 10  # the first whose nodes and values carry metadata
_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "complex64": 14, "complex128": 15, "bfloat16": 16,
}  # fmt: skip
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#edc948", "#76b7b2", "#9c755f")


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

    Each node of the graph is one of the file. Operators of torch are written in a domain of their own
    (``aten``), with their other arguments as text; operators read from an ONNX file as they were. Weights are
    inputs of the file, as it has no values for them. Metadata of a node: device, forward_s, backward_s
    (seconds), output_bytes, parameter_bytes, module, source; of a value: bytes.

    Args:
        graph: captured, or read by `read_onnx`.
        path: replaced whole or not at all.
        notes: devices and seconds.

    Raises:
        NetSplitError: `notes` has a node that the graph has not, or a dtype has no form in ONNX.
    """
    onnx = onnx_package()
    notes = notes or NodeNotes()
    _check(graph, notes)
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
    model = helper.make_model(file, opset_imports=_opsets(onnx, graph))
    model.ir_version, model.producer_name = _IR_VERSION, "netsplit"
    devices = sorted({notes.device[k] for k in graph.nodes if k in notes.device})
    _note(model, {METADATA + "devices": json.dumps(devices)})
    text = model.SerializeToString()
    write_atomically(path, lambda place: place.write_bytes(text))


def write_node_data(graph: Graph, path: str | Path, notes: NodeNotes, what: str = "device") -> None:
    """Write one number or word for every node as JSON, for Model Explorer to lay over a file of `write_onnx`.

    Nodes are found by the names of the values they make.

    Args:
        graph: as given to `write_onnx`.
        path: replaced whole or not at all.
        notes: devices and seconds.
        what: ``device`` (a colour for each), ``forward_s``, ``backward_s``, ``output_bytes`` or
            ``parameter_bytes`` (from light to dark).

    Raises:
        NetSplitError: `what` is none of these, nothing is known of it, or `notes` has a node that the graph
            has not.
    """
    known = ("device", "forward_s", "backward_s", "output_bytes", "parameter_bytes")
    if what not in known:
        raise NetSplitError(f"node data of '{what}' is not known: choose one of {', '.join(known)}.")
    _check(graph, notes)
    texts = {node.name: notes.of(graph, node).get(what) for node in graph}
    values = {name: value for name, value in texts.items() if value is not None}
    if not values:
        raise NetSplitError(f"no node has a {what}: give it in the notes.")
    data: dict[str, Any] = {"name": what, "results": {}}
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(sorted(set(values.values())))}
    for node in graph:
        if node.name in values:
            value = values[node.name]
            result = (
                {"value": value, "bgColor": colours[value]} if what == "device" else {"value": float(value)}
            )
            data["results"] |= {k: result for k in node.outputs if k}
    if what != "device":
        data["gradient"] = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#e15759"}]
    write_text(path, json.dumps({"netsplit": data}, indent=1))


def _check(graph: Graph, notes: NodeNotes) -> None:
    for each in (notes.device, notes.forward_s, notes.backward_s):
        unknown = [name for name in each if name not in graph.nodes]
        if unknown:
            raise NetSplitError(f"the notes speak of the node '{unknown[0]}', which the graph has not.")


def _node(onnx: Any, graph: Graph, node: Node, notes: NodeNotes, weights: Mapping[str, str]) -> Any:
    domain, name, _ = _parts(node)
    own = node.op.startswith(PREFIX)
    proto = onnx.helper.make_node(
        name,
        [weights.get(k, k) if tag == "init" else k for tag, k in _tensors(node, gaps=own)],
        list(node.outputs),
        name=node.name,
        domain="" if own else domain,
    )
    if own:
        proto.attribute.extend(_attributes(onnx, node))
    else:
        text = json.dumps([list(node.args), node.kwargs])
        proto.attribute.append(onnx.helper.make_attribute("arguments", text))
    _note(proto, notes.of(graph, node))
    return proto


def _tensors(node: Node, gaps: bool) -> list[tuple[str, str]]:
    """The tensors of a call in order; of ONNX's own operators also the inputs that are left out."""
    if not gaps:
        return read_by(node)
    return [("var", "") if each is None else next(references(each)) for each in node.args]


def _attributes(onnx: Any, node: Node) -> Iterator[Any]:
    """Attributes as the operator's schema has them: a whole number where it asks for a float is one."""
    _, name, version = _parts(node)
    schema = onnx.defs.get_schema(name, max_inclusive_version=version) if onnx.defs.has(name) else None
    for key, value in node.kwargs.items():
        kind = schema.attributes[key].type if schema is not None and key in schema.attributes else None
        if isinstance(value, dict):
            dtype, values = value["tensor"]
            value = onnx.numpy_helper.from_array(np.array(values, dtype=dtype))
        yield onnx.helper.make_attribute(key, value, attr_type=kind)


def _parts(node: Node) -> tuple[str, str, int]:
    """Domain, operator and version of its set (1 for torch's, which have none)."""
    domain, name, rest = [*node.op.split(".", 2), ""][:3]
    return (
        domain,
        name if domain == "onnx" or rest in ("", "default") else f"{name}.{rest}",
        (int(rest) if rest.isdigit() else 1),
    )


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
        raise NetSplitError(f"'{name}' is of the type {dtype}, which ONNX has not.")
    return _TYPES[dtype]


def _opsets(onnx: Any, graph: Graph) -> list[Any]:
    """The operator set that the graph was read in for ONNX's own operators, and one for each other domain."""
    versions = {"": _OPSET}
    for node in graph:
        domain, _, version = _parts(node)
        versions |= {"": version} if domain == "onnx" else {domain: version}
    return [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]


def _note(proto: Any, notes: Mapping[str, str]) -> None:
    for key, value in notes.items():
        each = proto.metadata_props.add()
        each.key, each.value = key, value
