"""Calling the operator of a node, in the mode that the model had set around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache
from typing import Any

import torch

from netsplit.graph.arguments import references
from netsplit.graph.autocast import autocast_context
from netsplit.graph.ir import CALL, INITIALIZER, Graph, Node
from netsplit.graph.storage import storage_of

__all__ = [
    "in_its_mode",
    "mode_of",
    "operator_of",
    "resolve",
    "written_by_schema",
    "written_initializers",
    "written_references",
    "written_storages",
]


@cache
def resolve(op: str) -> Any:
    """The torch operator of a name such as ``aten.conv2d.default``."""
    namespace, name, overload = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def operator_of(graph: Graph, node: Node) -> Callable[..., Any]:
    """What a node calls: a torch operator, or one of `graph.calls`."""
    return graph.calls[node.op] if node.op.startswith(CALL) else resolve(node.op)


def _has_mode(node: Node) -> bool:
    return node.no_grad or node.autocast is not None or node.default_dtype is not None


def mode_of(node: Node, device: torch.device | str) -> AbstractContextManager[Any]:
    """The model's own ``no_grad``, autocast and default dtype around a node, to run it in."""
    if not _has_mode(node):
        return nullcontext()
    stack = ExitStack()
    if node.default_dtype is not None:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(getattr(torch, node.default_dtype))
    if node.no_grad:
        stack.enter_context(torch.no_grad())
    if node.autocast == "off":
        stack.enter_context(torch.autocast(torch.device(device).type, enabled=False))
    elif node.autocast is not None:
        stack.enter_context(autocast_context(node.autocast, device))
    return stack


def in_its_mode(node: Node, operator: Callable[..., Any], device: torch.device | str) -> Callable[..., Any]:
    """The operator as it runs within the model's own blocks; itself where there are none."""
    if not _has_mode(node):
        return operator

    def run(*args: Any, **kwargs: Any) -> Any:
        with mode_of(node, device):
            return operator(*args, **kwargs)

    run.__name__ = run.__qualname__ = f"{node.kind}_in_its_mode"
    return run


def written_references(graph: Graph, node: Node) -> list[tuple[str, str]]:
    """("var" | "init", name) of every tensor argument that a node writes; a call of Python knows itself."""
    if node.op.startswith(CALL):
        given = list(references(node.args))
        return [given[i] for i in graph.calls[node.op].writes]
    return written_by_schema(node.op, node.args, node.kwargs)


def written_storages(graph: Graph, node: Node) -> list[str]:
    """The memory that a node writes (see `storage_of`); an initializer's behind its prefix."""
    references = written_references(graph, node)
    return [INITIALIZER + k if tag == "init" else storage_of(graph, k) for tag, k in references]


def written_initializers(graph: Graph) -> dict[str, set[str]]:
    """Initializers that are written, themselves or through a view, and the nodes that do."""
    writers: dict[str, set[str]] = {}
    for node in graph:
        for root in written_storages(graph, node):
            if root.startswith(INITIALIZER):
                writers.setdefault(root.removeprefix(INITIALIZER), set()).add(node.name)
    return writers


def written_by_schema(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a torch operator writes of the tensors in these templates.

    Schemas say so, but for the running statistics of normalisations, which go by their names.
    """
    schema = resolve(op)._schema
    given = dict(zip((a.name for a in schema.arguments), args, strict=False)) | dict(kwargs)
    learns = any(given.get(flag) is True for flag in ("training", "train", "use_input_stats"))
    targets = []
    for argument in schema.arguments:
        written = argument.alias_info is not None and argument.alias_info.is_write
        if written or (learns and argument.name in ("running_mean", "running_var")):
            targets += list(references(given.get(argument.name)))
    return targets
