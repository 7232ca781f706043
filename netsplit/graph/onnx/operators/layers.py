"""Convolutions, matrix products, normalisations, dropout and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from netsplit.graph.onnx.call import OnnxCall

__all__ = ["LAYERS", "same_pads"]

Function = Callable[[OnnxCall], Any]


def same_pads(
    call: OnnxCall, sizes: list[int], kernel: list[int], strides: list[int], dilations: list[int]
) -> list[int]:
    """Elements to add before every dimension, then after every one, as `auto_pad` or `pads` has them."""
    mode = call.attr("auto_pad", "NOTSET")
    if mode == "VALID":
        return [0] * (2 * len(sizes))
    if mode == "NOTSET":
        return list(call.attr("pads") or [0] * (2 * len(sizes)))
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise call.refuse(f"its auto_pad '{mode}' is not supported.")
    before, after = [], []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max((-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size, 0)
        less, more = total // 2, total - total // 2
        before.append(less if mode == "SAME_UPPER" else more)
        after.append(more if mode == "SAME_UPPER" else less)
    return before + after


def _spatial(call: OnnxCall, x: Tensor) -> int:
    if not 3 <= x.ndim <= 5:
        raise call.refuse(f"its input has {x.ndim} dimensions: 3 to 5 are supported.")
    return x.ndim - 2


def _conv(call: OnnxCall) -> Tensor:
    x, weight = call.tensor(0), call.tensor(1)
    n = _spatial(call, x)
    strides, dilations = call.attr("strides", [1] * n), call.attr("dilations", [1] * n)
    pads = same_pads(call, list(x.shape[2:]), list(weight.shape[2:]), strides, dilations)
    before, after = pads[:n], pads[n:]
    if before != after:
        x = F.pad(x, [p for i in reversed(range(n)) for p in (before[i], after[i])])
        before = [0] * n
    function = getattr(F, f"conv{n}d")
    return function(x, weight, call.optional(2), strides, before, dilations, call.attr("group", 1))


def _conv_transpose(call: OnnxCall) -> Tensor:
    x, weight = call.tensor(0), call.tensor(1)
    n = _spatial(call, x)
    if call.attr("output_shape") is not None or call.attr("auto_pad", "NOTSET") != "NOTSET":
        raise call.refuse("its output_shape or auto_pad is not supported: use pads.")
    strides, dilations = call.attr("strides", [1] * n), call.attr("dilations", [1] * n)
    extra, groups = call.attr("output_padding", [0] * n), call.attr("group", 1)
    pads = list(call.attr("pads") or [0] * (2 * n))
    before, after = pads[:n], pads[n:]
    function = getattr(F, f"conv_transpose{n}d")
    if before == after:
        return function(x, weight, call.optional(2), strides, before, extra, groups, dilations)
    whole = function(x, weight, call.optional(2), strides, 0, extra, groups, dilations)
    for i in range(n):
        whole = whole.narrow(2 + i, before[i], whole.shape[2 + i] - before[i] - after[i])
    return whole


def _gemm(call: OnnxCall) -> Tensor:
    a, b, c = call.tensor(0), call.tensor(1), call.optional(2)
    alpha, beta = call.attr("alpha", 1.0), call.attr("beta", 1.0)
    a = a.T if call.attr("transA", 0) else a
    if call.attr("transB", 0) and alpha == beta == 1 and (c is None or c.shape == (b.shape[0],)):
        return F.linear(a, b, c)
    product = a @ (b.T if call.attr("transB", 0) else b)
    product = product if alpha == 1 else alpha * product
    if c is None:
        return product
    return product + (c if beta == 1 else beta * c)


def _batch_norm(call: OnnxCall) -> Any:
    """Running statistics, where they are buffers, follow as torch's do: with the unbiased variance."""
    x, scale, bias, mean, var = (call.tensor(i) for i in range(5))
    momentum, eps = call.attr("momentum", 0.9), call.attr("epsilon", 1e-5)
    by_file = call.attr("training_mode", 0) if call.opset >= 14 else len(call.node.outputs) > 1
    training = bool(by_file) and call.training
    if not (training and any(call.wants(i) for i in (1, 2))):
        return F.batch_norm(x, mean, var, scale, bias, training, 1 - momentum, eps)
    dims = [d for d in range(x.ndim) if d != 1]
    now = (x.detach().mean(dims), x.detach().var(dims, correction=0))
    after = tuple(old * momentum + new * (1 - momentum) for old, new in zip((mean, var), now, strict=True))
    return (F.batch_norm(x, mean, var, scale, bias, True, 1 - momentum, eps), *after)


def _layer_norm(call: OnnxCall) -> Tensor:
    x, scale, bias = call.tensor(0), call.tensor(1), call.optional(2)
    if call.wants(1) or call.wants(2):
        raise call.refuse("its mean or deviation is read by other nodes: only its first output is supported.")
    shape, eps = list(x.shape[call.attr("axis", -1) :]), call.attr("epsilon", 1e-5)
    if list(scale.shape) == shape and (bias is None or list(bias.shape) == shape):
        return F.layer_norm(x, shape, scale, bias, eps)
    normed = F.layer_norm(x, shape, None, None, eps) * scale
    return normed if bias is None else normed + bias


def _group_norm(call: OnnxCall) -> Tensor:
    x, scale, bias, groups = call.tensor(0), call.tensor(1), call.tensor(2), call.attr("num_groups")
    if scale.shape[0] != x.shape[1]:  # one of every group, as operator set 18 has it
        scale, bias = (each.repeat_interleave(x.shape[1] // groups) for each in (scale, bias))
    return F.group_norm(x, groups, scale, bias, call.attr("epsilon", 1e-5))


def _local_response(call: OnnxCall) -> Tensor:
    size = call.attr("size")
    if size % 2 == 0:
        raise call.refuse(f"its size is {size}: only windows of an odd size are supported.")
    alpha, beta, bias = call.attr("alpha", 1e-4), call.attr("beta", 0.75), call.attr("bias", 1.0)
    return F.local_response_norm(call.tensor(0), size, alpha, beta, bias)


def _dropout(call: OnnxCall) -> Any:
    """Draws in training alone, and only where the file says that the node is one of training."""
    x = call.tensor(0)
    ratio = call.number(1, 0.5)
    if not (call.number(2, False) and call.training) or ratio == 0:
        return (x, torch.ones_like(x, dtype=torch.bool)) if call.wants(1) else x
    if not call.wants(1):
        return F.dropout(x, ratio, True)
    kept = torch.rand_like(x) >= ratio
    return x * kept / (1 - ratio), kept


def _loss(call: OnnxCall, function: Callable[..., Tensor]) -> Tensor:
    ignored, reduction = call.attr("ignore_index", -100), call.attr("reduction", "mean")
    scores, labels, weight = call.tensor(0), call.tensor(1), call.optional(2)
    return function(scores, labels, weight, ignore_index=ignored, reduction=reduction)


def _cross_entropy(call: OnnxCall) -> Any:
    loss = _loss(call, F.cross_entropy)
    return (loss, F.log_softmax(call.tensor(0), dim=1)) if call.wants(1) else loss


LAYERS: dict[str, Function] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": lambda call: torch.matmul(call.tensor(0), call.tensor(1)),
    "Einsum": lambda call: torch.einsum(call.attr("equation"), *call.tensors()),
    "BatchNormalization": _batch_norm,
    "InstanceNormalization": lambda call: F.instance_norm(
        call.tensor(0), weight=call.tensor(1), bias=call.tensor(2), eps=call.attr("epsilon", 1e-5)
    ),
    "LayerNormalization": _layer_norm,
    "GroupNormalization": _group_norm,
    "RMSNormalization": lambda call: F.rms_norm(
        x := call.tensor(0), x.shape[call.attr("axis", -1) :], call.tensor(1), call.attr("epsilon", 1e-5)
    ),
    "LRN": _local_response,
    "Dropout": _dropout,
    "Softmax": lambda call: F.softmax(call.tensor(0), dim=call.attr("axis", -1)),
    "LogSoftmax": lambda call: F.log_softmax(call.tensor(0), dim=call.attr("axis", -1)),
    "SoftmaxCrossEntropyLoss": _cross_entropy,
    "NegativeLogLikelihoodLoss": lambda call: _loss(call, F.nll_loss),
}
