"""Results of operators that are kept where the rest of their segment is computed again.

    forward   [norm] ─► [linear] ─► [gelu]     without autograd; the product is kept
    again     [norm] ─► (as kept) ─► [gelu]    with autograd, whose backward of [linear] reads the new norm

What a node's operator calls below autograd is not called again: it gives the tensors that it gave before.

Source: `torch.utils.checkpoint.create_selective_checkpoint_contexts`, by node instead of by kind of call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from netsplit.graph.analyse import storage_id

__all__ = ["KeptResults", "remembered", "remembering"]


class KeptResults:
    """Of every kept node what its calls gave, in order, in one micro-batch."""

    def __init__(self) -> None:
        self.of: dict[str, list[tuple[Any, Any]]] = {}
        self.again = False


_RESULTS: ContextVar[KeptResults | None] = ContextVar("results", default=None)


@contextmanager
def remembering(results: KeptResults | None, again: bool = False) -> Iterator[None]:
    """Within it, nodes that are remembered keep their results there, or `again` give them once more."""
    token = _RESULTS.set(results)
    if results is not None:
        results.again = again
    try:
        yield
    finally:
        _RESULTS.reset(token)


def remembered(name: str, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of the node `name`: what a rebuilt module calls in the place of `op`."""
    results = _RESULTS.get()
    if results is None:
        return op(*args, **kwargs)
    calls = results.of.setdefault(name, [])
    with _Calls(calls, results.again):
        result = op(*args, **kwargs)
    if not results.again:  # what it made on the way is no result
        own = _storages(result)
        calls[:] = [(func, None if own.isdisjoint(_storages(made)) else made) for func, made in calls]
    return result


def _storages(results: Any) -> set[int]:
    return {storage_id(each) for each in tree_leaves(results) if isinstance(each, Tensor)}


class _Calls(TorchDispatchMode):
    """Keeps what calls give, or gives it; views are made anew."""

    def __init__(self, known: list[tuple[Any, Any]], again: bool) -> None:
        super().__init__()
        self.known, self.again = known, again

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        view = any(each.alias_info is not None for each in func._schema.returns)
        if self.again and not view and self.known and self.known[0][0] is func:
            _, made = self.known.pop(0)
            if made is not None:
                return tree_map_only(Tensor, Tensor.detach, made)
        result = func(*args, **(kwargs or {}))
        if not (self.again or view):
            self.known.append((func, tree_map_only(Tensor, Tensor.detach, result)))
        return result
