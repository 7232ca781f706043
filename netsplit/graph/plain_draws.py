"""A plain PyTorch loop that draws what NetSplit's runtimes draw.

    with netsplit.draws(graph, seed=0, iteration=12, microbatch=i):
        value = loss(model(inputs), targets)

A plain model has no nodes. It runs its drawing operators in the order in which the captured graph has them,
though: the k-th of them gets the key of the graph's k-th drawing node.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Self
from unittest import mock

import torch
import torch.utils.checkpoint as torch_checkpoint
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.utils._python_dispatch import _pop_mode_temporarily

from netsplit.errors import NetSplitError
from netsplit.graph.ir import CALL, Graph, Node
from netsplit.graph.random_draws import (
    DrawKey,
    generators_kept,
    in_logical_order,
    node_draws,
    operator_draws,
    seed_generators,
)
from netsplit.graph.recording.seeds import marked, no_seeds
from netsplit.graph.recording.step import Inference, TrainingStep
from netsplit.graph.recording.torch_calls import (
    checkpoints_replaced,
    intercepted_functions,
    script_unoptimised,
)
from netsplit.graph.recording.whole import FunctionCall, ModuleCall

__all__ = ["draws"]

_MODULE_CALL = nn.Module.__call__


def draws(
    graph: Graph, seed: int = 0, iteration: int = 0, microbatch: int = 0, phase: str = "train"
) -> AbstractContextManager[PlainDraws]:
    """Run one micro-batch of the plain model in it, and nothing else that draws; the backward may be outside.

    What ``torch.utils.checkpoint`` computes again in the backward draws what it drew first.

    Torch's generators stand afterwards where they stood before.

    Args:
        graph: as captured from this model and loss (of a prediction: the inference graph).
        seed: the one given at deploy.
        iteration: training batches before this one; with `phase` "predict", batches predicted before.
        microbatch: its index in the batch.

    Raises:
        NetSplitError: the model draws otherwise than its graph: another operator, fewer or more of them, or
            sets torch's generator.
    """
    return PlainDraws(graph, DrawKey(seed, iteration, microbatch, phase))


class PlainDraws:
    """What `draws` enters: the keys of the graph's drawing nodes, taken one by one."""

    def __init__(self, graph: Graph, key: DrawKey) -> None:
        self.key = key
        self.left = [node for node in graph if node_draws(node)]
        self.left.reverse()
        self.calls = graph.calls
        self.inside = 0  # calls that are one node
        self.seed = 0  # of the generator, as long as the model does not set it
        self.drawn: list[Node] = []
        self.again: list[Node] | None = None  # what a recomputation is still to draw
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(generators_kept())
            stack.enter_context(no_seeds())
            if self._is_one_node:
                self.take()
                self.stack = stack.pop_all()
                return self
            self.seed = marked()
            for patched in (_patched_functions, _patched_modules, _patched_checkpoints):
                stack.enter_context(patched(self))
            stack.enter_context(script_unoptimised())
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

    def expects(self, fits: Callable[[Any], bool]) -> bool:
        """Whether the next drawing node is a call of Python that `fits`."""
        if self.inside or not self.left or not self.left[-1].op.startswith(CALL) or _in_backward():
            return False
        return fits(self.calls[self.left[-1].op])

    @property
    def _is_one_node(self) -> bool:
        """Whether model and loss together are one node: as one call of Python, with its own draws."""
        call = self.calls.get(self.left[-1].op) if self.left else None
        return isinstance(call, ModuleCall) and isinstance(call.module, TrainingStep | Inference)

    def take(self) -> None:
        """Seed for the next node."""
        self.drawn.append(self.left.pop())
        self.seed = self.key.seed_of(self.drawn[-1].name)
        seed_generators(self.seed)

    @contextmanager
    def opaque(self) -> Iterator[None]:
        """Around a Python call that is the graph's next drawing node: seeded once, whatever it draws."""
        self.take()
        self.inside += 1
        try:
            with (
                _pop_mode_temporarily(torch._C.DispatchKey.PreDispatch),
                torch._C._DisablePythonDispatcher(),
                mock.patch.object(
                    nn.Module, "__call__", _MODULE_CALL
                ),  # a compiler could not read through it
            ):
                yield
        finally:
            self.inside -= 1

    @contextmanager
    def once_more(self, nodes: Sequence[Node]) -> Iterator[None]:
        """Around what computes these nodes a second time."""
        before, self.again = self.again, list(reversed(nodes))
        try:
            with ExitStack() as stack:
                if not torch._ops._len_torch_dispatch_stack_pre_dispatch():  # a backward outside of draws(…)
                    stack.enter_context(enable_python_dispatcher())
                    stack.enter_context(_Seen(self))
                yield
        finally:
            self.again = before

    def run(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """An operator of the plain model."""
        if self.inside or not operator_draws(op, args, kwargs):
            return op(*args, **kwargs)
        if self.again:
            seed_generators(self.key.seed_of(self.again.pop().name))
            return in_logical_order(op, args, kwargs)
        if _in_backward():
            return op(*args, **kwargs)
        if not self.left or self.left[-1].op != str(op):
            there = f"the graph has {_named(self.left[-1])}" if self.left else "the graph has no more"
            raise NetSplitError(
                f"the plain model draws by '{op}' where {there}: run one micro-batch, model and loss, within "
                "draws(…), of the model that was captured, and in the same mode."
            )
        if torch.default_generator.initial_seed() != self.seed:
            raise NetSplitError(
                f"it sets torch's generator before it draws for {_named(self.left[-1])}: take from the batch "
                "what is drawn by a fixed seed, or keep it in a buffer."
            )
        self.take()
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


def _patched_functions(plain: PlainDraws) -> AbstractContextManager[None]:
    """Custom autograd functions that are nodes of the graph are entered as such."""

    def patched_call(apply: Callable[..., Any], cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is torch_checkpoint.CheckpointFunction:
            args = (_Repeated(plain, args[0]), *args[1:])
        known = plain.expects(
            lambda call: isinstance(call, FunctionCall) and call.function.__qualname__ == cls.__qualname__
        )
        with plain.opaque() if known else nullcontext():
            return apply(*args, **kwargs)

    return intercepted_functions(patched_call)


@contextmanager
def _patched_modules(plain: PlainDraws) -> Iterator[None]:
    """Modules that are nodes of the graph are entered as such."""
    original = nn.Module.__call__

    def patched_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        known = plain.expects(lambda call: isinstance(call, ModuleCall) and call.is_of(module))
        with plain.opaque() if known else nullcontext():
            return original(module, *args, **kwargs)

    with mock.patch.object(nn.Module, "__call__", patched_call):
        yield


class _Repeated:
    """A checkpointed function: what it draws first, it draws again."""

    def __init__(self, plain: PlainDraws, function: Callable[..., Any]) -> None:
        self.plain = plain
        self.function = function
        self.nodes: list[Node] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.nodes is not None:
            with self.plain.once_more(self.nodes):
                return self.function(*args, **kwargs)
        before = len(self.plain.drawn)
        result = self.function(*args, **kwargs)
        self.nodes = self.plain.drawn[before:]
        return result


def _patched_checkpoints(plain: PlainDraws) -> AbstractContextManager[None]:
    def within(original: Callable[..., Generator[None, None, None]]) -> Callable[..., Iterator[None]]:
        def patched_call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[None]:
            repeated = _Repeated(plain, function)
            before = len(plain.drawn)
            inner = original(repeated, *args, **kwargs)
            next(inner)
            try:
                yield
            except BaseException as error:
                inner.throw(error)
                raise
            repeated.nodes = plain.drawn[before:]
            next(inner, None)

        return patched_call

    return checkpoints_replaced(within)


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _named(node: Node) -> str:
    return f"node '{node.name}' ('{node.op}'{f' at {node.source}' if node.source else ''})"
