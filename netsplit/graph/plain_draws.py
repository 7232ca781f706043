"""A plain PyTorch loop that draws what NetSplit's runtimes draw.

    with netsplit.draws(graph, seed=0, iteration=12, microbatch=i):
        value = loss(model(inputs), targets)

A plain model has no nodes. It runs its drawing operators in the order in which the captured graph has them,
though: the k-th of them gets the key of the graph's k-th drawing node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Self

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.schema_check_mode import SchemaCheckMode

from netsplit.errors import NetSplitError
from netsplit.graph.ir import CALL, Graph, Node
from netsplit.graph.random import (
    DrawKey,
    generators_kept,
    in_logical_order,
    node_draws,
    operator_draws,
    seed_generators,
)

__all__ = ["draws"]


def draws(
    graph: Graph, seed: int = 0, iteration: int = 0, microbatch: int = 0, phase: str = "train"
) -> AbstractContextManager[PlainDraws]:
    """Run one micro-batch of the plain model in it, and nothing else that draws; the backward may be outside.

    Torch's generators stand afterwards where they stood before.

    Args:
        graph: as captured from this model and loss (of a prediction: the inference graph).
        seed: the one given at deploy.
        iteration: training batches before this one; with `phase` "predict", batches predicted before.
        microbatch: its index in the batch.

    Raises:
        NetSplitError: the model draws otherwise than its graph: another operator, fewer or more of them,
            or once more in its backward (``torch.utils.checkpoint``).
    """
    return PlainDraws(graph, DrawKey(seed, iteration, microbatch, phase))


class PlainDraws:
    """What `draws` enters; `opaque` is for whoever runs a Python call that the graph has as one node."""

    def __init__(self, graph: Graph, key: DrawKey) -> None:
        self.key = key
        self.left = [node for node in graph if node_draws(node)]
        self.left.reverse()
        self.inside = 0  # calls that are one node
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(generators_kept())
            stack.enter_context(_functions_told(self))
            stack.enter_context(enable_python_dispatcher())
            stack.enter_context(_Seen(self))
            self.stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        self.stack.__exit__(kind, *rest)
        if kind is None and any(not node.op.startswith(CALL) for node in self.left):
            node = next(node for node in reversed(self.left) if not node.op.startswith(CALL))
            raise NetSplitError(
                f"the plain model did not draw for {_named(node)} of its graph: run all of one micro-batch, "
                "model and loss, within draws(…), in the mode in which it was captured."
            )

    @property
    def expects_a_call(self) -> bool:
        return bool(self.left) and self.left[-1].op.startswith(CALL)

    @contextmanager
    def opaque(self) -> Iterator[None]:
        """Around a Python call that is the graph's next drawing node: seeded once, whatever it draws."""
        if not self.inside:
            seed_generators(self.key.of(self.left.pop().name))
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def run(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """An operator of the plain model."""
        if self.inside or _in_backward() or not operator_draws(op, args, kwargs):
            return op(*args, **kwargs)
        if not self.left or self.left[-1].op != str(op):
            there = f"the graph has {_named(self.left[-1])}" if self.left else "the graph has no more"
            raise NetSplitError(
                f"the plain model draws by '{op}' where {there}: run one micro-batch, model and loss, within "
                "draws(…), of the model that was captured, and in the same mode."
            )
        if _recomputed():
            raise NetSplitError(
                f"the plain model draws by '{op}' within torch.utils.checkpoint, whose recomputation would "
                "draw other numbers: switch it off for this loop."
            )
        seed_generators(self.key.of(self.left.pop().name))
        return in_logical_order(op, args, kwargs)


class _Seen(SchemaCheckMode):
    """Sees operators as a capture does: whole, above autograd and autocast.

    Torch lets modes of a few classes that high, of which this one is free; nothing of it is used.
    """

    def __init__(self, plain: PlainDraws) -> None:
        super().__init__()
        self.__dict__["_dispatch_key"] = torch._C.DispatchKey.PreDispatch
        self.plain = plain

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # With the Python dispatcher some operators would be what Python makes of them, with other bits.
        with torch._C._DisablePythonDispatcher():
            return self.plain.run(func, args, kwargs or {})


@contextmanager
def _functions_told(plain: PlainDraws) -> Iterator[None]:
    """Custom autograd functions that are nodes of the graph are entered as such."""
    before = torch.autograd.Function.__dict__["apply"]

    def told(cls: Any, *args: Any, **kwargs: Any) -> Any:
        known = plain.inside or (plain.expects_a_call and not _in_backward())
        with plain.opaque() if known else nullcontext():
            return before.__func__(cls, *args, **kwargs)

    torch.autograd.Function.apply = classmethod(told)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = before  # type: ignore[method-assign]


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _recomputed() -> bool:
    """Whether what is saved for the backward here is not saved, but computed once more."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return hooks is not None and "_checkpoint_hook" in getattr(hooks[0], "__qualname__", "")


def _named(node: Node) -> str:
    return f"node '{node.name}' ('{node.op}'{f' at {node.source}' if node.source else ''})"
