"""Operators on every element: arithmetic, comparison, activation, types."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from netsplit.graph.onnx.call import OnnxCall, dtype_of

__all__ = ["ELEMENTWISE"]

Function = Callable[[OnnxCall], Tensor]


def _operand(call: OnnxCall, i: int) -> Tensor | float:
    """An input of arithmetic; a single known number as such, so that no constant tensor is made of it."""
    value = call.values[i]
    other = call.values[1 - i]
    known = isinstance(value, np.ndarray) and value.size == 1 and isinstance(other, Tensor)
    if known and value.ndim <= other.ndim:  # type: ignore[union-attr]
        return value.item()  # type: ignore[union-attr]
    return call.tensor(i)


def _binary(function: Callable[..., Tensor]) -> Function:
    return lambda call: function(_operand(call, 0), _operand(call, 1))


def _tensors(function: Callable[..., Tensor]) -> Function:
    return lambda call: function(call.tensor(0), call.tensor(1))


def _variadic(function: Callable[[Tensor, Tensor], Tensor]) -> Function:
    return lambda call: reduce(function, call.tensors())


def _unary(function: Callable[[Tensor], Tensor]) -> Function:
    return lambda call: function(call.tensor(0))


def _div(call: OnnxCall) -> Tensor:
    """Divides; whole numbers are rounded towards zero."""
    a, b = _operand(call, 0), _operand(call, 1)
    first = a if isinstance(a, Tensor) else call.tensor(1)
    if first.is_floating_point():
        return operator.truediv(a, b)
    return torch.div(call.tensor(0), call.tensor(1), rounding_mode="trunc")


def _pow(call: OnnxCall) -> Tensor:
    base, exponent = call.tensor(0), _operand(call, 1)
    return torch.pow(base, exponent).to(base.dtype)


def _prelu(call: OnnxCall) -> Tensor:
    x, slope = call.tensor(0), call.tensor(1)
    if slope.numel() == 1 or (x.ndim > 1 and slope.shape == (x.shape[1],) + (1,) * (x.ndim - 2)):
        return F.prelu(x, slope.reshape(-1))
    return torch.where(x < 0, x * slope, x)


def _hard_sigmoid(call: OnnxCall) -> Tensor:
    alpha, beta = call.attr("alpha", 0.2), call.attr("beta", 0.5)
    if abs(alpha - 1 / 6) < 1e-7 and beta == 0.5:  # a sixth has no exact form in the file
        return F.hardsigmoid(call.tensor(0))
    return (call.tensor(0) * alpha + beta).clamp(0, 1)


def _clip(call: OnnxCall) -> Tensor:
    bounds = [call.values[i] if call.has(i) else None for i in (1, 2)]
    numbers = [b.item() if isinstance(b, np.ndarray) else b for b in bounds]
    return torch.clamp(call.tensor(0), *numbers) if any(b is not None for b in bounds) else call.tensor(0)


def _cast(call: OnnxCall) -> Tensor:
    return call.tensor(0).to(dtype_of(call.attr("to"), f"node '{call.node.name}' ({call.node.op})"))


_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs, "Acos": torch.acos, "Acosh": torch.acosh, "Asin": torch.asin, "Asinh": torch.asinh,
    "Atan": torch.atan, "Atanh": torch.atanh, "Ceil": torch.ceil, "Cos": torch.cos, "Cosh": torch.cosh,
    "Erf": torch.erf, "Exp": torch.exp, "Floor": torch.floor, "HardSwish": F.hardswish,
    "Identity": lambda x: x, "IsNaN": torch.isnan, "Log": torch.log, "Mish": F.mish, "Neg": torch.neg,
    "Not": torch.logical_not, "Reciprocal": torch.reciprocal, "Relu": F.relu, "Round": torch.round,
    "Sigmoid": torch.sigmoid, "Sign": torch.sign, "Sin": torch.sin, "Sinh": torch.sinh,
    "Softplus": F.softplus, "Softsign": F.softsign, "Sqrt": torch.sqrt, "Tan": torch.tan, "Tanh": torch.tanh,
}  # fmt: skip

ELEMENTWISE: dict[str, Function] = {
    **{op: _unary(function) for op, function in _UNARY.items()},
    "Add": _binary(operator.add),
    "Sub": _binary(operator.sub),
    "Mul": _binary(operator.mul),
    "Div": _div,
    "Mod": lambda call: (torch.fmod if call.attr("fmod", 0) else torch.remainder)(*call.tensors()),
    "Pow": _pow,
    "And": _tensors(torch.logical_and),
    "Or": _tensors(torch.logical_or),
    "Xor": _tensors(torch.logical_xor),
    "Equal": _tensors(torch.eq),
    "Less": _tensors(torch.lt),
    "LessOrEqual": _tensors(torch.le),
    "Greater": _tensors(torch.gt),
    "GreaterOrEqual": _tensors(torch.ge),
    "Max": _variadic(torch.maximum),
    "Min": _variadic(torch.minimum),
    "Sum": _variadic(torch.add),
    "Mean": lambda call: reduce(torch.add, call.tensors()) / len(call.values),
    "Where": lambda call: torch.where(call.tensor(0), call.tensor(1), call.tensor(2)),
    "Cast": _cast,
    "CastLike": lambda call: call.tensor(0).to(call.tensor(1).dtype),
    "Clip": _clip,
    "LeakyRelu": lambda call: F.leaky_relu(call.tensor(0), call.attr("alpha", 0.01)),
    "Elu": lambda call: F.elu(call.tensor(0), call.attr("alpha", 1.0)),
    "Celu": lambda call: F.celu(call.tensor(0), call.attr("alpha", 1.0)),
    "PRelu": _prelu,
    "ThresholdedRelu": lambda call: F.threshold(call.tensor(0), call.attr("alpha", 1.0), 0.0),
    "HardSigmoid": _hard_sigmoid,
    "Gelu": lambda call: F.gelu(call.tensor(0), approximate=call.attr("approximate", "none")),
}
