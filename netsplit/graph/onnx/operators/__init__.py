"""ONNX's operators as differentiable functions of torch, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from netsplit.graph.onnx.call import OnnxCall
from netsplit.graph.onnx.operators.elementwise import ELEMENTWISE
from netsplit.graph.onnx.operators.layers import LAYERS
from netsplit.graph.onnx.operators.pooling import POOLING, REDUCTIONS, RESIZING
from netsplit.graph.onnx.operators.shapes import SHAPES

__all__ = ["DRAWING", "HOST_ONLY", "OPERATORS", "STATISTICS"]

OPERATORS: dict[str, Callable[[OnnxCall], Any]] = {
    **ELEMENTWISE,
    **LAYERS,
    **POOLING,
    **REDUCTIONS,
    **RESIZING,
    **SHAPES,
}
"""Operator -> its function: of an `OnnxCall` to one output or several (tensors; sizes as numpy arrays)."""

HOST_ONLY = frozenset({"Constant", "ConstantOfShape", "EyeLike", "NonZero", "Range"})
"""Operators that are computed where all their inputs are known without data, and refused where not."""

DRAWING = frozenset({"Dropout", "RandomUniformLike", "RandomNormalLike", "Bernoulli"})
"""Operators that draw random numbers, never computed beforehand; all but dropout are refused."""

STATISTICS = {
    "BatchNormalization": (3, 4),
    "SoftmaxCrossEntropyLoss": (2,),
    "NegativeLogLikelihoodLoss": (2,),
    "Clip": (1, 2),
    "Dropout": (1,),
    "Pad": (2,),
    "Resize": (1, 2),
}
"""Inputs through which no operator is trained: statistics, class weights, bounds."""
