"""An ONNX file as a `Graph`, one node for each of its nodes (thesis, section 4.1.1)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from netsplit.errors import NetSplitError
from netsplit.graph.ir import Graph, Initializer, Node, Variable
from netsplit.graph.onnx.call import DTYPES, Value
from netsplit.graph.onnx.constants import kinds_of
from netsplit.graph.onnx.export import exported_inference
from netsplit.graph.onnx.files import (
    OnnxNode,
    load_model,
    metadata_of,
    nodes_of,
    onnx_package,
    opsets_of,
    without_trailing_gaps,
)
from netsplit.graph.onnx.module import OnnxFile, OnnxModule, OnnxPart

__all__ = ["graph_of", "inference_model", "read_onnx"]

ValueType = tuple[str, tuple[int, ...]]
"""Dtype and shape."""


def read_onnx(path: str | Path, sizes: Mapping[str, int] | None = None) -> Graph:
    """The graph of a file, of which every operator is kept, known or not: ``onnx.Conv.17``.

    What the file calls a node, a value and an initializer are the graph's nodes, variables and initializers.
    The graph is for counting; to train a file, `netsplit.from_onnx` makes a module of it.

    Args:
        path: of the file; external data beside it.
        sizes: dimensions that the file leaves free, by the names that it gives them, e.g. ``{"batch": 8}``.

    Raises:
        NetSplitError: there is no such file, it is damaged, a node has a graph of its own, or a shape is not
            known: the message names the value and the dimension.
    """
    return graph_of(load_model(path), str(path), sizes)


def graph_of(model: Any, path: str, sizes: Mapping[str, int] | None = None) -> Graph:
    """Reads a ModelProto, which is changed, as `read_onnx` does; `path` is what errors call it."""
    nodes, notes = nodes_of(model, path), metadata_of(model)
    kinds = kinds_of(model, nodes, notes)
    initializers = {each.name: _initializer(each, kinds[each.name]) for each in model.graph.initializer}
    opsets = opsets_of(model)
    read = {k for node in nodes for k in node.inputs} | {each.name for each in model.graph.output}
    inputs = tuple(each.name for each in model.graph.input if each.name not in initializers)
    outputs = [k for node in nodes for i, k in enumerate(node.outputs) if k and (i == 0 or k in read)]
    shapes = _types(model, dict(sizes or {}), inputs, outputs, path)
    shapes = {k: shapes[k] for k in (*inputs, *(k for node in nodes for k in node.outputs)) if k in shapes}
    read_nodes = tuple(_node(node, initializers, shapes, opsets) for node in nodes)
    used = {k for node in read_nodes for k in node.initializers}
    return Graph(
        nodes={node.name: node for node in read_nodes},
        variables=_variables(read_nodes, shapes, initializers),
        input_variables=inputs,
        output_variables=tuple(each.name for each in model.graph.output if each.name in shapes),
        initializers={k: init for k, init in initializers.items() if k in used},
        batch_size=next((shapes[k][1][0] for k in inputs if shapes[k][1]), 1),
    )


def _types(
    model: Any, sizes: dict[str, int], inputs: Iterable[str], names: Iterable[str], path: str
) -> dict[str, ValueType]:
    """Dtype and shape of inputs, of `names` and of what else is known.

    As ONNX infers them; what it cannot, by a run without data.
    """
    onnx = onnx_package()
    _fix(model, sizes)
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    try:
        inferred = onnx.shape_inference.infer_shapes(_light(bare), data_prop=True).graph
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise NetSplitError(f"'{path}': the shapes of its values cannot be inferred: {reason}.") from error
    kinds = {each.name: each.type for each in (*inferred.input, *inferred.value_info, *inferred.output)}
    types = {k: _typed(k, kinds.get(k), path) for k in inputs}
    unknown: list[NetSplitError] = []
    for name in names:
        try:
            types[name] = _typed(name, kinds.get(name), path)
        except NetSplitError as error:
            unknown.append(error)
    if unknown:
        try:
            types = _run_types(model, path, types) | types
        except NetSplitError as error:
            raise unknown[0] from error
    for name in names:
        if name not in types:
            raise NetSplitError(
                f"'{path}': the shape of the value '{name}', which nothing reads, is not known."
            )
    for name, kind in kinds.items():
        with suppress(NetSplitError):
            types.setdefault(name, _typed(name, kind, path))
    return types


class _TypedModule(OnnxModule):
    """Notes dtype and shape of every value that it makes."""

    def __init__(self, part: OnnxPart, types: dict[str, ValueType]) -> None:
        super().__init__(part)
        self.types = types

    def _run(self, node: OnnxNode, values: list[Value | None], device: torch.device) -> Sequence[Value]:
        results = super()._run(node, values, device)
        self.types |= {
            name: _type_of(each) for name, each in zip(node.outputs, results, strict=False) if name
        }
        return results


def _run_types(model: Any, path: str, inputs: Mapping[str, ValueType]) -> dict[str, ValueType]:
    """Of the values that lead to a ModelProto's outputs.

    Raises:
        NetSplitError: an operator is not known, or a size depends on the data.
    """
    file = OnnxFile(model, path)
    types = {name: _type_of(value) for name, value in (file.numbers | file.large).items()}
    with torch.device("meta"), torch.no_grad():
        module = _TypedModule(file.part(file.outputs), types).eval()
        module(*(torch.empty(inputs[k][1], dtype=getattr(torch, inputs[k][0])) for k in module.input_names))
    return types


def _type_of(value: Value) -> ValueType:
    return str(value.dtype).removeprefix("torch."), tuple(value.shape)


def _light(model: Any) -> Any:
    """Drops the data of large weights, which says nothing of shapes and may be more than fits."""
    for each in model.graph.initializer:
        if len(each.raw_data) > 2**16:
            each.ClearField("raw_data")
    return model


def _fix(model: Any, sizes: dict[str, int]) -> None:
    """Give the inputs the sizes asked for, and forget what the file says of what can be inferred."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise NetSplitError(f"the size of '{name}' is {size!r}: give a whole number above 0.")
    foreign = {k for node in model.graph.node if node.domain not in ("", "ai.onnx") for k in node.output}
    kept = [each for each in model.graph.value_info if each.name in foreign]
    for each in (*model.graph.input, *kept):
        for dim in each.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    kept = [type(each).FromString(each.SerializeToString()) for each in kept]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    for each in model.graph.output:
        each.type.tensor_type.ClearField("shape")


def _typed(name: str, kind: Any, path: str | Path) -> ValueType:
    """Dtype and shape of a value."""
    tensor = kind.tensor_type if kind is not None else None
    if tensor is None or tensor.elem_type not in DTYPES or not tensor.HasField("shape"):
        raise NetSplitError(
            f"'{path}': the type or shape of the value '{name}' is not known: the operator that makes it is "
            "not ONNX's own, or its size depends on the data."
        )
    for dim in tensor.shape.dim:
        if not dim.HasField("dim_value"):
            called = f" ('{dim.dim_param}')" if dim.dim_param else ""
            raise NetSplitError(
                f"'{path}': a dimension{called} of the value '{name}' is not known: give it in `sizes`, or "
                "export the model with fixed sizes."
            )
    dtype = str(DTYPES[tensor.elem_type]).removeprefix("torch.")
    return dtype, tuple(dim.dim_value for dim in tensor.shape.dim)


def _initializer(proto: Any, kind: str) -> Initializer:
    if proto.data_type not in DTYPES:
        raise NetSplitError(f"the initializer '{proto.name}' has elements of an unknown type.")
    trained = kind == "parameter"
    dtype = str(DTYPES[proto.data_type]).removeprefix("torch.")
    return Initializer(proto.name, dtype, tuple(proto.dims), trained, trained)


def _node(
    node: OnnxNode, initializers: Mapping[str, Initializer], shapes: Container[str], opsets: Mapping[str, int]
) -> Node:
    """Outputs that no one reads are left out where their shape is not known (the mask of a dropout)."""

    def template(name: str) -> dict[str, str] | None:
        if not name:
            return None
        return {"init": name} if name in initializers else {"var": name}

    read = [name for name in dict.fromkeys(node.inputs) if name]
    return Node(
        name=node.name,
        op=f"{node.domain.replace('.', '_') or 'onnx'}.{node.op}.{opsets.get(node.domain, 1)}",
        inputs=tuple(k for k in read if k not in initializers),
        outputs=without_trailing_gaps(k if k in shapes else "" for k in node.outputs),
        initializers=tuple(k for k in read if k in initializers),
        args=tuple(template(name) for name in node.inputs),
        kwargs={key: _plain(value) for key, value in node.attributes.items()},
        module=_module(node.name),
    )


def _module(name: str) -> str:
    """The dotted path of the module, where the exporter of torch has made it part of a node's name."""
    scopes = name.strip("/").split("/")[:-1]
    return scopes[-1] if scopes else ""


def _plain(value: Any) -> Any:
    """An attribute as JSON has it; an array with its type, as no list says it."""
    return {"tensor": [str(value.dtype), value.tolist()]} if isinstance(value, np.ndarray) else value


def _variables(
    nodes: Iterable[Node],
    shapes: Mapping[str, ValueType],
    initializers: Mapping[str, Initializer],
) -> dict[str, Variable]:
    producer: dict[str, str] = {}
    consumers: dict[str, list[str]] = {name: [] for name in shapes}
    trained: set[str] = set()
    for node in nodes:
        for name in node.inputs:
            consumers[name].append(node.name)
        carries = any(initializers[k].requires_grad for k in node.initializers)
        carries = carries or any(k in trained for k in node.inputs)
        for name in node.outputs:
            if name:
                producer[name] = node.name
                if carries and "float" in shapes[name][0]:
                    trained.add(name)
    return {
        name: Variable(name, dtype, shape, producer.get(name), tuple(consumers[name]), name in trained)
        for name, (dtype, shape) in shapes.items()
    }


def inference_model(model: nn.Module, inputs: Tensor, merge: bool = True) -> Any:
    """The ModelProto of `exported_inference`; errors as it has them.

    With `merge=False` operators that compute the same of the same values stay as many as there are, as in
    PyTorch before autumn 2022, whose exporter did not merge them (pytorch pull request 85665).
    """
    with nullcontext() if merge else _unmerged():
        return exported_inference(model, inputs)


@contextmanager
def _unmerged() -> Iterator[None]:
    """Without the exporter's pass that merges equal operators, which no option of it leaves out."""
    own = torch._C._jit_pass_cse
    torch._C._jit_pass_cse = lambda *_: False
    try:
        yield
    finally:
        torch._C._jit_pass_cse = own
