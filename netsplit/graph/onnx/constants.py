"""What a file holds beside its nodes: weights to train, buffers, and numbers known before any data."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any, Literal

import numpy as np

from netsplit.errors import NetSplitError
from netsplit.graph.onnx.files import OnnxNode, onnx_package
from netsplit.graph.onnx.operators import DRAWING, STATISTICS
from netsplit.graph.user_code import line_of

__all__ = ["Kind", "constant_of", "evaluate_node", "fold_constants", "kinds_of"]

log = logging.getLogger(__name__)

Kind = Literal["parameter", "buffer", "number"]
"""What an initializer becomes: a `Parameter`, a buffer, or a value that operators know beforehand."""

_FLOATS = frozenset({1, 10, 11, 16})  # ONNX's float, float16, double, bfloat16
_FEW = {True: 8, False: 64}  # is it a float: elements up to which an array is a number rather than a buffer


def kinds_of(model: Any, nodes: Iterable[OnnxNode], notes: Mapping[str, list[str]]) -> dict[str, Kind]:
    """The kind of every initializer.

    A file of this package names its parameters. In any other, and where a tool has renamed some since, every
    float array is one, unless it has no dimension or is read only where no operator is trained (statistics,
    bounds, class weights).
    """
    untrained: dict[str, bool] = {}
    statistics: set[str] = set()
    for node in nodes:
        places = STATISTICS.get(node.op, ()) if not node.domain else ()
        for i, name in enumerate(node.inputs):
            untrained[name] = untrained.get(name, True) and i in places
            if node.op == "BatchNormalization" and i in places:
                statistics.add(name)
    named = set(notes["parameters"]) if "parameters" in notes else None
    if named is not None and not named <= {each.name for each in model.graph.initializer}:
        log.warning("Another tool renamed weights of the ONNX file: all its float arrays will be trained.")
        named = None
    kinds: dict[str, Kind] = {}
    for each in model.graph.initializer:
        is_float, size = each.data_type in _FLOATS, int(np.prod(each.dims))
        trained = is_float and len(each.dims) > 0 and not untrained.get(each.name, True)
        if (trained and named is None) or (named is not None and each.name in named):
            kinds[each.name] = "parameter"
        elif each.name in statistics or size > _FEW[is_float]:
            kinds[each.name] = "buffer"
        else:
            kinds[each.name] = "number"
    return kinds


def constant_of(node: OnnxNode) -> np.ndarray[Any, Any]:
    """The value of a Constant node.

    Raises:
        NetSplitError: it is text, or sparse.
    """
    for key, kind in (
        ("value", None),
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
    ):
        if key in node.attributes:
            return np.asarray(node.attributes[key], dtype=kind)
    raise NetSplitError(
        f"node '{node.name}' (Constant) holds text or a sparse tensor, which is not supported."
    )


def fold_constants(
    nodes: Iterable[OnnxNode], numbers: dict[str, np.ndarray[Any, Any]], opset: int
) -> tuple[tuple[OnnxNode, ...], dict[str, np.ndarray[Any, Any]]]:
    """Compute what depends on numbers alone.

    Args:
        nodes: in order.
        numbers: values known; those found here are added.
        opset: version of ONNX's own operators.

    Returns:
        The nodes that are left, and the values of Constant nodes that are too large for a number.
    """
    left: list[OnnxNode] = []
    large: dict[str, np.ndarray[Any, Any]] = {}
    for node in nodes:
        if node.op == "Constant" and not node.domain:
            value = constant_of(node)
            few = value.size <= _FEW[value.dtype.kind not in "biu"]
            (numbers if few else large)[node.outputs[0]] = value
        elif node.inputs and not node.domain and node.op not in DRAWING and {*node.inputs} <= {"", *numbers}:
            values = evaluate_node(node, [numbers.get(k) for k in node.inputs], opset)
            numbers |= dict(zip(node.outputs, values, strict=False))
        else:
            left.append(node)
    return tuple(left), large


def evaluate_node(
    node: OnnxNode, values: Collection[np.ndarray[Any, Any] | None], opset: int
) -> list[np.ndarray[Any, Any]]:
    """A node's outputs by the standard's own implementation.

    Raises:
        NetSplitError: it refuses.
    """
    try:
        evaluator = _evaluator(node.proto, opset)
        feeds = {k: v for k, v in zip(node.inputs, values, strict=True) if k}
        return [np.asarray(each) for each in evaluator.run(None, feeds)]
    except Exception as error:
        raise NetSplitError(
            f"node '{node.name}' ({node.op}) cannot be computed: {line_of(error)}."
        ) from error


@cache
def _evaluator(proto: bytes, opset: int) -> Any:
    onnx = onnx_package()
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(onnx.NodeProto.FromString(proto), opsets={"": opset})
