"""The parts of an ONNX file: which nodes lead from some values to others, and what they read."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from netsplit.errors import NetSplitError
from netsplit.graph.onnx.constants import fold_constants, kinds_of
from netsplit.graph.onnx.files import OnnxNode, metadata_of, nodes_of, onnx_package, opsets_of
from netsplit.graph.onnx.operators import HOST_ONLY, OPERATORS

__all__ = ["OLDEST", "OnnxFile", "OnnxPart"]

OLDEST = 9
"""The oldest operator set whose operators mean here what they meant then."""


@dataclass(frozen=True)
class OnnxPart:
    """Nodes between some values of a file and others, with what they read."""

    nodes: tuple[OnnxNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, tuple[int | None, ...] | None]  # of the file's own inputs; None: free
    numbers: Mapping[str, np.ndarray[Any, Any]]
    buffers: Mapping[str, np.ndarray[Any, Any]]
    parameters: Mapping[str, np.ndarray[Any, Any]]
    temporary: frozenset[str]  # buffers that are no initializers: not in the state_dict
    frozen: frozenset[str]
    opset: int


class OnnxFile:
    """A file's nodes and values, of which parts are made."""

    def __init__(self, model: Any, path: str, frozen: tuple[str, ...] = ()) -> None:
        """Of a ModelProto; raises NetSplitError where it is too old, or `frozen` names what it has not."""
        to_array = onnx_package().numpy_helper.to_array
        self.path, self.opset, self.notes = path, opsets_of(model).get("", 0), metadata_of(model)
        if self.opset < OLDEST:
            raise NetSplitError(
                f"'{path}' is written in operator set {self.opset}: export it with {OLDEST} or a later one."
            )
        nodes = nodes_of(model, path)
        self.kinds = kinds_of(model, nodes, self.notes)
        self.arrays = {each.name: to_array(each) for each in model.graph.initializer}
        self.inputs = {each.name: _dims(each) for each in model.graph.input if each.name not in self.arrays}
        self.outputs = tuple(each.name for each in model.graph.output)
        self.numbers = {name: self.arrays[name] for name, kind in self.kinds.items() if kind == "number"}
        self.nodes, self.large = fold_constants(nodes, self.numbers, self.opset)
        self.made = {name for node in self.nodes for name in node.outputs}
        self.frozen = _matching(frozen, [name for name, kind in self.kinds.items() if kind == "parameter"])

    def check_names(self, names: Iterable[str]) -> None:
        for name in names:
            if not any(name in each for each in (self.made, self.numbers, self.large)):
                raise NetSplitError(
                    f"'{self.path}' computes no value named '{name}': give names that it has."
                )

    def part(self, ends: tuple[str, ...], stop: tuple[str, ...] = ()) -> OnnxPart:
        """The nodes that lead to `ends`, from the file's inputs or from `stop`, with what they read."""
        wanted = set(ends)
        reads: set[str] = set()
        chosen: list[OnnxNode] = []
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                chosen.append(node)
                reads.update(node.inputs)
                wanted.update(k for k in node.inputs if k not in stop)
        self._check_operators(chosen)
        made = {name for node in chosen for name in node.outputs}
        unknown = [
            k
            for k in reads - made - {""}
            if not any(k in each for each in (self.arrays, self.inputs, self.numbers, self.large, stop))
        ]
        if unknown:
            raise NetSplitError(
                f"'{self.path}': no node makes the value '{min(unknown)}', which others read."
            )
        needed = [k for k in reads if self.kinds.get(k) in ("parameter", "buffer")]
        parameters = {k: v for k, v in self.arrays.items() if k in needed and self.kinds[k] == "parameter"}
        buffers = {k: v for k, v in self.arrays.items() if k in needed and k not in parameters}
        temporary = {k: v for k, v in self.large.items() if k in reads or k in ends}
        numbers = {k: v for k, v in self.numbers.items() if k in reads or k in ends}
        sources = (*stop, *self.inputs)
        read = reads.union(ends)
        return OnnxPart(
            nodes=tuple(_without_unread(node, read) for node in reversed(chosen)),
            inputs=tuple(k for k in sources if k in reads),
            outputs=ends,
            shapes=self.inputs,
            numbers=numbers,
            buffers=buffers | temporary,
            parameters=parameters,
            temporary=frozenset(temporary),
            frozen=self.frozen,
            opset=self.opset,
        )

    def _check_operators(self, nodes: Iterable[OnnxNode]) -> None:
        missing: dict[str, str] = {}
        for node in nodes:
            if node.domain or (node.op not in OPERATORS and node.op not in HOST_ONLY):
                missing[node.label] = node.name
        if missing:
            named = ", ".join(f"{op} (node '{name}')" for op, name in sorted(missing.items()))
            raise NetSplitError(f"'{self.path}' has operators that are not known: {named}.")


def _dims(value: Any) -> tuple[int | None, ...] | None:
    """Sizes that the file fixes; None where any will do, or for all where it does not say."""
    kind = value.type.tensor_type
    return tuple(each.dim_value or None for each in kind.shape.dim) if kind.HasField("shape") else None


def _without_unread(node: OnnxNode, read: set[str]) -> OnnxNode:
    """With "" for outputs that no one reads: exporters name all that a batch normalisation could give."""
    return replace(node, outputs=tuple(name if name in read else "" for name in node.outputs))


def _matching(patterns: Iterable[str], names: list[str]) -> frozenset[str]:
    matching: set[str] = set()
    for pattern in patterns:
        matched = fnmatch.filter(names, pattern)
        if not matched:
            raise NetSplitError(f"frozen: no parameter of the ONNX file is named '{pattern}'.")
        matching.update(matched)
    return frozenset(matching)
