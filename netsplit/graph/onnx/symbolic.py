"""How operators of torch that its exporter lacks are written in ONNX's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.onnx import utils

__all__ = ["more_symbolics"]


def _feature_dropout(g: Any, x: Any, p: Any, train: Any) -> Any:
    """Dropout of one number for each map, by which the map is multiplied."""
    from torch.onnx import symbolic_helper as helper

    if not helper._maybe_get_const(train, "b"):
        return x
    rank, dtype = helper._get_tensor_rank(x), x.type().scalarType()
    if rank is None or rank < 3:
        return helper._unimplemented("feature_dropout", "of an input without maps", x)
    one = torch.ones(1, dtype=getattr(torch, dtype.lower(), torch.float32))
    first = [g.op("Constant", value_t=torch.tensor([each])) for each in (0, 2)]
    shape = g.op("Slice", g.op("Shape", x), *first)
    rest = g.op("Constant", value_t=torch.ones(rank - 2, dtype=torch.long))
    ones = g.op("ConstantOfShape", g.op("Concat", shape, rest, axis_i=0), value_t=one)
    ratio = g.op("Constant", value_t=torch.tensor(helper._maybe_get_const(p, "f"), dtype=torch.float32))
    draw = g.op("Constant", value_t=torch.tensor(True))
    scaled = g.op("Mul", x, g.op("Dropout", ones, ratio, draw))
    scaled.setType(x.type())  # operators after it ask for its channels
    return scaled


@contextmanager
def more_symbolics(opset: int) -> Iterator[None]:
    """Registered with torch's exporter for as long as this lasts."""
    utils.register_custom_op_symbolic("aten::feature_dropout", _feature_dropout, opset)
    try:
        yield
    finally:
        utils.unregister_custom_op_symbolic("aten::feature_dropout", opset)
