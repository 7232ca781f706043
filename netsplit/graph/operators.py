"""Calling the operator of a node."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from netsplit.graph.ir import Node
from netsplit.graph.template import decode

__all__ = ["call_node", "resolve"]


@cache
def resolve(op: str) -> Any:
    """The torch operator of a name such as ``aten.conv2d.default``."""
    namespace, name, overload = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def call_node(
    node: Node, tensor: Callable[[str, str], torch.Tensor], device: torch.device | str | None = None
) -> Any:
    """Run a node's operator on tensors given by `tensor("var" | "init", name)`."""
    args = decode(node.args, tensor, device)
    kwargs = {key: decode(template, tensor, device) for key, template in node.kwargs.items()}
    return resolve(node.op)(*args, **kwargs)
