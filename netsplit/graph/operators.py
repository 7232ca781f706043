"""A node's operator: how it is called, in which mode and autocast, what it writes and whether it draws.

A graph's nodes hold no casts: run their forward within ``autocast_of(graph, device)``, and the backward
outside. The graph's variables have the dtypes that result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache
from typing import Any

import torch

from netsplit.errors import ConfigError
from netsplit.graph.arguments import HANDING_ON, Reference, hands_on, references, storage_of
from netsplit.graph.ir import CALL, HOOK, INITIALIZER, Graph, Node, once_of

__all__ = [
    "autocast_context", "autocast_of", "base_name", "in_its_mode", "is_here", "marked", "mode_of",
    "node_draws", "operator_draws", "operator_of", "over_the_batch", "refuse_surrounding", "resolve",
    "running_statistics", "storage_root", "touching_initializers", "unchanging", "written_by_schema",
    "written_initializers", "written_inputs", "written_references", "written_storages",
]  # fmt: skip


@cache
def resolve(op: str) -> Any:
    """The torch operator of a name such as ``aten.conv2d.default``."""
    namespace, name, overload = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def operator_of(graph: Graph, node: Node) -> Callable[..., Any]:
    """What a node calls: a torch operator, or one of `graph.calls`."""
    return graph.calls[node.op] if node.op.startswith(CALL) else resolve(node.op)


def _has_mode(node: Node) -> bool:
    return node.no_grad or node.autocast is not None


def mode_of(node: Node, device: torch.device | str) -> AbstractContextManager[Any]:
    """The model's own ``no_grad`` and autocast around a node, to run it in."""
    if not _has_mode(node):
        return nullcontext()
    stack = ExitStack()
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


def is_here(graph: Graph, node: Node) -> bool:
    """Whether what a node calls is known: a graph file has no calls, and other programs' operators."""
    if node.op.startswith(CALL):
        return node.op in graph.calls
    try:
        resolve(node.op)
    except (AttributeError, ValueError):
        return False
    return True


def written_references(graph: Graph, node: Node) -> list[tuple[str, str]]:
    """("var" | "init", name) of every tensor argument that a node writes.

    Of a call that is not at hand, as in a graph file, all buffers that it is given.
    """
    if node.op.startswith(CALL):
        given = list(references(node.args))
        if node.op in graph.calls:
            return [given[i] for i in graph.calls[node.op].writes]
        return [(tag, k) for tag, k in given if tag == "init" and not graph.initializers[k].is_parameter]
    return written_by_schema(node.op, node.args, node.kwargs)


def written_storages(graph: Graph, node: Node) -> list[str]:
    """The memory that a node writes (see `storage_of`); an initializer's behind its prefix."""
    return [storage_root(graph, reference) for reference in written_references(graph, node)]


def written_inputs(graph: Graph) -> list[int]:
    """The places among the graph's inputs of those that are written."""
    written = {root for node in graph for root in written_storages(graph, node)}
    return [j for j, k in enumerate(graph.input_variables) if k in written]


def storage_root(graph: Graph, reference: Reference) -> str:
    """The memory that a reference is to (see `storage_of`); an initializer's behind its prefix."""
    tag, k = reference
    return INITIALIZER + k if tag == "init" else storage_of(graph, k)


def written_initializers(graph: Graph, nodes: Iterable[Node] | None = None) -> dict[str, set[str]]:
    """Initializers that are written, themselves or through a view, and the nodes (of these) that do."""
    writers: dict[str, set[str]] = {}
    for node in graph if nodes is None else nodes:
        for root in written_storages(graph, node):
            if root.startswith(INITIALIZER):
                writers.setdefault(root.removeprefix(INITIALIZER), set()).add(node.name)
    return writers


@once_of
def touching_initializers(graph: Graph) -> dict[str, frozenset[str]]:
    """Initializer -> the nodes that read or write it, or a view of it; those without one are left out."""
    touching: dict[str, set[str]] = {}
    for node in graph:
        for k in node.initializers:
            touching.setdefault(k, set()).add(node.name)
    for variable in graph.variables.values():
        root = variable.alias_of or ""
        if root.startswith(INITIALIZER):
            touching.setdefault(root.removeprefix(INITIALIZER), set()).update(variable.consumers)
    return {k: frozenset(names) for k, names in touching.items()}


@once_of
def unchanging(graph: Graph) -> frozenset[str]:
    """Variables that stay the same between two optimiser steps: initializers that nobody writes, handed on,
    cut or concatenated by operators that read nothing else. Their gradients may be summed over micro-batches
    first."""
    if not hands_on(graph):
        return frozenset()
    moving = [n for n in graph if n.op in HANDING_ON and not (_has_mode(n) or n.checkpoint)]
    written = {root for node in graph if is_here(graph, node) for root in written_storages(graph, node)}
    same: set[str] = set()
    for node in moving:
        roots = {INITIALIZER + k for k in node.initializers} | {
            storage_of(graph, k) for k in node.outputs if k
        }
        if same.issuperset(node.inputs) and written.isdisjoint(roots):
            same.update(filter(None, node.outputs))
    return frozenset(same)


def running_statistics(node: Node) -> tuple[list[Reference], list[Reference]]:
    """The running statistics that an operator writes and does not compute with, as a normalisation in
    training mode; and all else that it takes."""
    given = _arguments(node.op, node.args, node.kwargs)
    names = _STATISTICS if _learns(given) else ()
    running = [reference for name in names for reference in references(given.get(name))]
    others = list(references([each for name, each in given.items() if name not in names]))
    return running, others


def over_the_batch(node: Node) -> bool:
    """Whether it is a batch normalisation that uses statistics of the samples at hand."""
    named = "batch_norm" in node.op and not node.op.startswith(CALL)
    return named and _learns(_arguments(node.op, node.args, node.kwargs))


def written_by_schema(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a torch operator writes of the tensors in these templates: by its schema, and the running
    statistics of normalisations by their names."""
    if not _may_write(op):
        return []
    given = _arguments(op, args, kwargs)
    learns = _learns(given)
    targets = []
    for argument in resolve(op)._schema.arguments:
        written = argument.alias_info is not None and argument.alias_info.is_write
        if written or (learns and argument.name in _STATISTICS):
            targets += list(references(given.get(argument.name)))
    return targets


_STATISTICS = ("running_mean", "running_var")


@cache
def _may_write(op: str) -> bool:
    """Whether some arguments may make it write any."""
    every = resolve(op)._schema.arguments
    return any(a.name in _STATISTICS or (a.alias_info is not None and a.alias_info.is_write) for a in every)


def _arguments(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Templates by the names that the schema gives them."""
    return dict(zip((a.name for a in resolve(op)._schema.arguments), args, strict=False)) | dict(kwargs)


def _learns(given: Mapping[str, Any]) -> bool:
    return any(given.get(flag) is True for flag in ("training", "train", "use_input_stats"))


_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def autocast_of(graph: Graph, device: torch.device | str) -> AbstractContextManager[Any]:
    """The context to run nodes of `graph` in on `device`; it may be entered any number of times."""
    return autocast_context(graph.autocast, device)


def autocast_context(autocast: str | None, device: torch.device | str) -> AbstractContextManager[Any]:
    """`torch.autocast` to a dtype given by its name; None: a context that does nothing.

    Raises:
        ConfigError: another dtype than bfloat16 and float16.
    """
    if autocast is None:
        return nullcontext()
    if autocast not in _DTYPES:
        raise ConfigError(f"autocast is '{autocast}': give {' or '.join(_DTYPES)}, or null for none.")
    context: AbstractContextManager[Any] = torch.autocast(torch.device(device).type, _DTYPES[autocast])
    return context


def refuse_surrounding(autocast: str | None) -> None:
    """Refuse a call within the caller's own `torch.autocast`, which workers are not in.

    Args:
        autocast: what the step is captured under, which such a context may repeat.

    Raises:
        ConfigError: it says which argument to give.
    """
    for kind in ("cpu", "cuda"):
        if torch.is_autocast_enabled(kind):
            dtype = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
            if dtype != autocast:
                raise ConfigError(
                    f"NetSplit was called within torch.autocast('{kind}', torch.{dtype}), which workers do "
                    f"not inherit: leave that context and give parallelize(autocast='{dtype}')."
                )


_KNOWN = frozenset(["aten", "prim", "prims", "torchvision"])  # their operators say by a tag whether they draw


_RATE, _TRAINING = ("p", "dropout_p", "dropout"), ("train", "training")


_SWITCHED = frozenset([
    "dropout", "dropout_", "alpha_dropout", "alpha_dropout_", "feature_dropout", "feature_dropout_",
    "feature_alpha_dropout", "feature_alpha_dropout_", "native_dropout", "rrelu", "rrelu_",
    "scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu",
])  # fmt: skip
"""Draw nothing at a rate of 0, nor in evaluation mode."""


def node_draws(node: Node) -> bool:
    """Whether a node may draw random numbers, by its operator and the numbers among its arguments."""
    if node.op.startswith(CALL):
        return not node.op.startswith(HOOK)
    return node.op.count(".") == 2 and operator_draws(resolve(node.op), node.args, node.kwargs)


def operator_draws(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call may draw; tensors among the arguments do not matter."""
    if not _tagged(op):
        return False
    schema = op._schema
    if base_name(op) not in _SWITCHED:
        return True
    for i, argument in enumerate(schema.arguments):
        if argument.name in _RATE or argument.name in _TRAINING:
            given = args[i] if i < len(args) else kwargs.get(argument.name, argument.default_value)
            if given is False or (argument.name in _RATE and given == 0):
                return False
    return True


@cache
def _tagged(op: Any) -> bool:
    return op.namespace not in _KNOWN or torch.Tag.nondeterministic_seeded in op.tags


@cache
def base_name(op: Any) -> str:
    return str(op._schema.name).partition("::")[2]


_MARKS = itertools.count(int.from_bytes(b"netsplit"))


def marked() -> int:
    """Give the CPU's generator a seed of our own, so that it is noticed if somebody sets it anew."""
    seed = next(_MARKS)
    torch.default_generator.manual_seed(seed)
    return seed
