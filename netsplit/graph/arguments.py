"""The arguments of a call as templates, JSON-ready: what they read, with other names, and back to values.

Tensors become references: ``{"var": name}`` for a variable, ``{"init": name}`` for an initializer.
Torch's own constants become ``{"dtype": ...}``, ``{"device": ...}``, ``{"layout": ...}`` and
``{"memory_format": ...}``, complex numbers ``{"complex": ...}``. Other numbers, strings, booleans, None and
lists stand for themselves. Below: which variables have memory of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from netsplit.graph.ir import INITIALIZER, Graph, Node

if TYPE_CHECKING:
    import torch

__all__ = [
    "HANDING_ON", "Reference", "argument", "decode", "decoded", "encode",
    "gives_sparse_gradients", "hands_on", "read_by", "references", "renamed", "sparse_gradients",
    "storage_bytes", "storage_of",
]  # fmt: skip

Reference = tuple[str, str]  # "var" or "init", name


def references(template: Any) -> Iterator[Reference]:
    """Every reference in a template, in order."""
    if isinstance(template, list | tuple):
        for item in template:
            yield from references(item)
    elif isinstance(template, dict):
        ((tag, name),) = template.items() if len(template) == 1 else ((None, None),)
        if tag in ("var", "init") and isinstance(name, str):
            yield tag, name


def argument(call: Node, i: int, name: str = "") -> Any:
    """The template that a call has at a place or under a name; None where it has none."""
    return call.args[i] if len(call.args) > i else call.kwargs.get(name)


def read_by(call: Node) -> list[Reference]:
    """Every reference in a call's arguments, in order."""
    return list(references([*call.args, *call.kwargs.values()]))


def renamed(call: Node, names: Mapping[Reference, Reference]) -> dict[str, Any]:
    """`args` and `kwargs` of a call with other references, for `dataclasses.replace`."""

    def other(template: Any) -> Any:
        if isinstance(template, list | tuple):
            return type(template)(other(item) for item in template)
        if isinstance(template, dict) and len(template) == 1:
            ((tag, name),) = template.items()
            new = names.get((tag, name)) if isinstance(name, str) else None
            return {new[0]: new[1]} if new else template
        return template

    return {"args": other(call.args), "kwargs": {key: other(value) for key, value in call.kwargs.items()}}


def encode(value: Any, reference: Callable[[Any], dict[str, str] | None]) -> Any:
    """Template of one argument.

    `reference` answers the template of a value that stands for a tensor, None for any other.

    Raises:
        TypeError: the value has no JSON form (a symbolic size, a script object).
    """
    import torch  # not for those who only read graphs

    tagged = reference(value)
    if tagged is not None:
        return tagged
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, complex):
        return {"complex": str(value)}
    if isinstance(value, list | tuple):
        return [encode(item, reference) for item in value]
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for tag in ("dtype", "layout", "memory_format"):
        if isinstance(value, getattr(torch, tag)):
            return {tag: str(value).removeprefix("torch.")}
    raise TypeError(f"{type(value).__name__} {value!r}")


def decode(template: Any, tensor: Callable[[str, str], Any], device: torch.device | str | None = None) -> Any:
    """The argument a template stands for.

    `tensor(tag, name)` gives what stands for a "var" or an "init"; `device` replaces every device
    that the captured call named (None: leave it).
    """
    if isinstance(template, list | tuple):
        return [decode(item, tensor, device) for item in template]
    if not isinstance(template, dict):
        return template
    import torch

    ((tag, name),) = template.items()
    if tag in ("var", "init"):
        return tensor(tag, name)
    if tag == "complex":
        return complex(name)
    if tag == "device":
        return torch.device(name if device is None else device)
    return getattr(torch, name)


def decoded(
    call: Node, tensor: Callable[[str, str], Any], device: torch.device | str | None = None
) -> tuple[list[Any], dict[str, Any]]:
    """A call's positional and keyword arguments, each as `decode` has it."""
    kwargs = {key: decode(template, tensor, device) for key, template in call.kwargs.items()}
    return decode(call.args, tensor, device), kwargs


HANDING_ON = frozenset(["aten.alias.default", "aten.split_with_sizes.default", "aten.cat.default"])
"""Operators that hand initializers on unchanged, cut or concatenated."""

_LOSSES_IN_FULL = frozenset(
    f"aten.{kind}.default"
    for kind in ("binary_cross_entropy", "mse_loss", "smooth_l1_loss", "soft_margin_loss")
)


def storage_of(graph: Graph, k: str) -> str:
    """The memory that `k` is in: its own, or that of what it is a view of (see `Variable.alias_of`)."""
    return graph.variables[k].alias_of or k


def storage_bytes(graph: Graph) -> dict[str, int]:
    """Bytes of memory that every storage brings along: 0 for views, and for what is in an initializer.

    Torch computes some losses in memory as large as what they take the mean of, and keeps that.
    """
    nbytes = {k: 0 if variable.alias_of else variable.nbytes for k, variable in graph.variables.items()}
    for node in graph:
        if node.op in _LOSSES_IN_FULL and node.inputs and nbytes[node.outputs[0]]:
            nbytes[node.outputs[0]] = graph.variables[node.inputs[0]].nbytes
    return nbytes | {INITIALIZER + name: 0 for name in graph.initializers}


def hands_on(graph: Graph) -> bool:
    """Whether an operator may hand on an initializer (see `operators.unchanging`). Needs no torch."""
    return any(node.op in HANDING_ON and node.initializers for node in graph)


_SPARSE = {"embedding": 4, "embedding_bag": 5, "_embedding_bag": 5, "_embedding_bag_forward_only": 5}
"""Operators of `aten` to the place of their argument `sparse`."""


def gives_sparse_gradients(node: Node) -> bool:
    """Whether the gradient of its weight holds only the rows that were looked up. Needs no torch."""
    place = _SPARSE.get(node.op.removeprefix("aten.").partition(".")[0])
    if place is None:
        return False
    given = node.args[place] if len(node.args) > place else node.kwargs.get("sparse")
    return given is True


def sparse_gradients(graph: Graph) -> list[str]:
    """Trained initializers whose gradients are sparse, as all their readers give sparse ones."""
    sparse: dict[str, bool] = {}
    for node in graph:
        for k in node.initializers:
            if graph.initializers[k].requires_grad:
                sparse[k] = sparse.get(k, True) and gives_sparse_gradients(node)
    return [k for k, alone in sparse.items() if alone]
