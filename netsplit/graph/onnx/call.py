"""What an operator's function is given: its inputs, attributes and the operator set it is written in.

A value is a tensor, or a numpy array where it is known without data (shapes, axes, constants): operators on
such values alone are computed before anything is captured, so that sizes are plain numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from netsplit.errors import NetSplitError
from netsplit.graph.onnx.files import OnnxNode

__all__ = ["DTYPES", "OnnxCall", "Value", "as_tensor", "dtype_of"]

Value = Tensor | np.ndarray[Any, Any]

DTYPES = {
    1: torch.float32, 2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64,
    9: torch.bool, 10: torch.float16, 11: torch.float64, 16: torch.bfloat16,
}  # fmt: skip
"""ONNX's numbers of element types."""


def dtype_of(number: int, where: str) -> torch.dtype:
    """Raises NetSplitError where torch has no such type (strings, types of four bits)."""
    if number not in DTYPES:
        raise NetSplitError(f"{where} has elements of ONNX's type {number}, which torch tensors cannot hold.")
    return DTYPES[number]


def as_tensor(array: np.ndarray[Any, Any], device: torch.device | None = None) -> Tensor:
    """A copy as a tensor; types that numpy itself lacks (bfloat16) included."""
    if array.dtype.name == "bfloat16":
        return torch.tensor(array.astype(np.float32), device=device).to(torch.bfloat16)
    return torch.tensor(array, device=device)


@dataclass(frozen=True)
class OnnxCall:
    """One execution of a node."""

    node: OnnxNode
    values: Sequence[Value | None]
    opset: int
    training: bool
    device: torch.device

    def refuse(self, why: str) -> NetSplitError:
        """The error to raise: the node with its operator, and why it cannot be done."""
        return NetSplitError(f"node '{self.node.name}' ({self.node.label}): {why}")

    def has(self, i: int) -> bool:
        return i < len(self.values) and self.values[i] is not None

    def wants(self, i: int) -> bool:
        """Whether anything may read the output."""
        return i < len(self.node.outputs) and bool(self.node.outputs[i])

    def tensor(self, i: int) -> Tensor:
        value = self.values[i] if i < len(self.values) else None
        if value is None:
            raise self.refuse(f"its input {i} is missing.")
        return value if isinstance(value, Tensor) else as_tensor(value, self.device)

    def optional(self, i: int) -> Tensor | None:
        return self.tensor(i) if self.has(i) else None

    def tensors(self) -> list[Tensor]:
        return [self.tensor(i) for i in range(len(self.values))]

    def host(self, i: int) -> np.ndarray[Any, Any]:
        """An input that must be known before data is: a shape, axes, a fill value."""
        value = self.values[i] if i < len(self.values) else None
        if isinstance(value, np.ndarray):
            return value
        name = self.node.inputs[i] if i < len(self.node.inputs) else ""
        raise self.refuse(
            f"its input {i} ('{name}') must not depend on the data: export the model with fixed sizes."
        )

    def ints(self, i: int) -> list[int]:
        return [int(each) for each in self.host(i).reshape(-1)]

    def number(self, i: int, default: float) -> float:
        """One number; of single precision the shortest that is it, as the model had it (0.1)."""
        if not self.has(i):
            return default
        value = self.host(i).reshape(-1)[0]
        return float(str(value)) if value.dtype == np.float32 else value.item()

    def attr(self, name: str, default: Any = None) -> Any:
        return self.node.attributes.get(name, default)

    def axes(self, i: int, name: str = "axes") -> list[int] | None:
        """Axes as older operator sets have them, an attribute, or newer ones, an input; None: not given."""
        if name in self.node.attributes:
            return list(self.node.attributes[name])
        return self.ints(i) if self.has(i) else None
