"""What random operators draw: a function of seed, iteration, micro-batch and node, of nothing else.

    DrawKey(seed, iteration, microbatch) ── seed_of(node) ──► 64 bits ──► the generator, just before the node

A drawing node reads a contiguous copy, so memory layout does not matter. CPU and CUDA draw different numbers
from one key. A plain PyTorch loop draws the same within `draws`, where its k-th drawing operator gets the key
of the graph's k-th drawing node:

    with netsplit.draws(graph, seed=0, iteration=12, microbatch=i):
        value = loss(model(inputs), targets)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Self
from unittest import mock

import torch
import torch.utils.checkpoint as torch_checkpoint
from torch import Tensor, fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.utils._python_dispatch import _pop_mode_temporarily

from netsplit.errors import NetSplitError
from netsplit.graph.ir import CALL, Graph, Node
from netsplit.graph.operators import autocast_of, base_name, marked, node_draws, operator_draws
from netsplit.graph.recording.step import Inference, TrainingStep
from netsplit.graph.recording.traps import checkpoints_replaced, intercepted_functions, script_unoptimised
from netsplit.graph.recording.whole import FunctionCall, ModuleCall

__all__ = [
    "DrawCounter", "DrawKey", "drawing", "drawing_as_now", "drawn", "draws", "generators_kept",
    "run_microbatch", "seed_generators",
]  # fmt: skip

_ANY_LAYOUT = frozenset(["scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu"])
"""Draw for tensors that they make themselves, always in one memory layout."""


@dataclass(frozen=True)
class DrawKey:
    """All that a draw depends on, beside the node.

    Args:
        iteration: training batches (or, of another phase, its batches) before this one.
        phase: keeps apart what training and prediction draw.
    """

    seed: int = 0
    iteration: int = 0
    microbatch: int = 0
    phase: str = "train"

    def seed_of(self, node: str) -> int:
        """The seed of a node's generator: the same 64 bits in every process and version of Python."""
        text = f"{self.seed}/{self.phase}/{self.iteration}/{self.microbatch}/{node}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

    def at(self, microbatch: int) -> DrawKey:
        return replace(self, microbatch=microbatch)


@dataclass
class DrawCounter:
    """Where the draws of a training stand; a checkpoint keeps it."""

    seed: int = 0
    batches: int = 0  # trained on
    predictions: int = 0  # batches predicted

    def training(self) -> DrawKey:
        return DrawKey(self.seed, self.batches)

    def predicting(self) -> DrawKey:
        return DrawKey(self.seed, self.predictions, phase="predict")


_KEY: ContextVar[DrawKey | None] = ContextVar("key", default=None)


@contextmanager
def drawing(key: DrawKey) -> Iterator[None]:
    """Rebuilt modules draw by this key within it; it does not put torch's generators back."""
    token = _KEY.set(key)
    try:
        yield
    finally:
        _KEY.reset(token)


def drawing_as_now(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which draws by the present key whenever it is called, as when a backward recomputes it."""
    key = _KEY.get()
    if key is None:
        return function

    def run(*args: Any) -> Any:
        with drawing(key):
            return function(*args)

    return run


def drawn(name: str, op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of the node `name`, which draws: what a rebuilt module calls in the place of `op`."""
    key = _KEY.get()
    if key is None:
        return op(*args, **kwargs)
    seed_generators(key.seed_of(name))
    return in_logical_order(op, args, kwargs)


def seed_generators(seed: int) -> None:
    """Seed the generators of the CPU, and of CUDA devices where this process uses them."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Torch's generators stand afterwards where they stood before."""
    cuda = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(cuda):
        yield


def in_logical_order(op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`op(*args, **kwargs)`, drawing in the order of elements, not of memory; the result's layout is kept."""
    if not isinstance(op, torch._ops.OpOverload) or base_name(op) in _ANY_LAYOUT:
        return op(*args, **kwargs)
    if op.overloadpacket is torch.ops.aten.randint_like:  # has no derivative; torch calls it below autograd
        args = [arg.detach() if isinstance(arg, Tensor) else arg for arg in args]
    if all(arg.is_contiguous() for arg in args if isinstance(arg, Tensor)):
        return op(*args, **kwargs)
    straight = [arg.contiguous() if isinstance(arg, Tensor) else arg for arg in args]
    result = op(*straight, **kwargs)
    for argument, own, copy in zip(op._schema.arguments, args, straight, strict=False):
        if argument.is_write and copy is not own:
            own.copy_(copy)
    if not isinstance(result, Tensor):
        return tuple(_laid(each, args[0]) for each in result)
    return args[0] if result is straight[0] else _laid(result, args[0])


def _laid(tensor: Tensor, like: Tensor) -> Tensor:
    """The same elements, in memory as those of `like` where it has as many."""
    if not isinstance(like, Tensor) or tensor.shape != like.shape or like.is_contiguous():
        return tensor
    return torch.empty_like(like, dtype=tensor.dtype, requires_grad=False).copy_(tensor)


def run_microbatch(module: fx.GraphModule, graph: Graph, batch: Sequence[Tensor], key: DrawKey) -> Any:
    """One micro-batch of a rebuilt graph in this process: the reference for what any placement draws.

    Args:
        module: `rebuild(graph, …)`.
        batch: the graph's input variables, in order.
    """
    with generators_kept(), drawing(key), autocast_of(graph, batch[0].device):
        return module(*batch)


_MODULE_CALL = nn.Module.__call__


def draws(
    graph: Graph, seed: int = 0, iteration: int = 0, microbatch: int = 0, phase: str = "train"
) -> AbstractContextManager[PlainDraws]:
    """Run one micro-batch of the plain model in it, and nothing else that draws; the backward may be outside.

    What ``torch.utils.checkpoint`` recomputes draws the same again. Torch's generators are put back.

    Args:
        graph: as captured from this model and loss (of a prediction: the inference graph).
        seed: the one given at deploy.
        iteration: training batches before this one; with `phase` "predict", batches predicted before.
        microbatch: its index in the batch.

    Raises:
        NetSplitError: the model calls other drawing operators than its graph, or sets torch's generator.
    """
    return PlainDraws(graph, DrawKey(seed, iteration, microbatch, phase))


class PlainDraws:
    """What `draws` enters: the keys of the graph's drawing nodes, taken in their order."""

    def __init__(self, graph: Graph, key: DrawKey) -> None:
        self.key = key
        self.nodes = [node for node in graph if node_draws(node)]
        self.drawn = 0  # of them
        self.after: dict[int, int] = {}  # the generator's seed -> how many were drawn when it was set
        self.calls = graph.calls
        self.inside = 0  # calls that are one node
        self.stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(generators_kept())
            self.after[marked()] = 0
            self.state = torch.get_rng_state()
            if self._is_one_node:
                self.take()
            elif self.nodes:
                stack.enter_context(intercepted_functions(self._function_apply))
                stack.enter_context(mock.patch.object(nn.Module, "__call__", self._module_call()))
                stack.enter_context(checkpoints_replaced(self._checkpoint))
                stack.enter_context(script_unoptimised())
                stack.enter_context(self._seen())
            self.stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        has_drawn = not torch.equal(self.state, torch.get_rng_state())
        self.stack.__exit__(kind, *rest)
        if kind is not None:
            return
        left = [node for node in self.nodes[self.drawn :] if not node.op.startswith(CALL)]
        if left:
            raise NetSplitError(
                f"the plain model drew nothing for {_named(left[0])}: run one whole "
                "micro-batch, model and loss, within draws(…), in the captured mode."
            )
        if has_drawn and not self.nodes:
            raise NetSplitError(
                "the plain model draws, or sets torch's generator, where its graph draws nothing: run the "
                "captured model in the captured mode."
            )

    @property
    def next(self) -> Node | None:
        return self.nodes[self.drawn] if self.drawn < len(self.nodes) else None

    @property
    def _is_one_node(self) -> bool:
        """Whether model and loss together are one node: as one call of Python, with its own draws."""
        call = self.calls.get(self.nodes[0].op) if self.nodes else None
        return isinstance(call, ModuleCall) and isinstance(call.module, TrainingStep | Inference)

    def take(self) -> None:
        """Seed for the next node."""
        self._seed(self.drawn)
        self.drawn += 1

    def _seed(self, index: int) -> None:
        seed = self.key.seed_of(self.nodes[index].name)
        seed_generators(seed)
        self.after[seed] = index + 1

    def run(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """An operator of the plain model."""
        if self.inside or not operator_draws(op, args, kwargs):
            return op(*args, **kwargs)
        before = self.after.get(torch.default_generator.initial_seed(), -1)
        if _in_backward():  # computed again by a checkpoint, which sets the generator as it was then
            if not 0 <= before < self.drawn:
                return op(*args, **kwargs)
            self._seed(before)
            return in_logical_order(op, args, kwargs)
        if self.next is None or self.next.op != str(op):
            there = f"the graph has {_named(self.next)}" if self.next else "the graph draws no more"
            raise NetSplitError(
                f"the plain model draws with '{op}' where {there}: run one micro-batch of the captured "
                "model, with its loss and in the captured mode, within draws(…)."
            )
        if before != self.drawn:
            raise NetSplitError(
                f"it sets torch's generator before it draws for {_named(self.next)}: pass random numbers in "
                "the batch, or keep them in a buffer."
            )
        self.take()
        return in_logical_order(op, args, kwargs)

    @contextmanager
    def _seen(self) -> Iterator[None]:
        with enable_python_dispatcher(), _Seen(self):
            yield

    def _expects(self, fits: Callable[[Any], bool]) -> AbstractContextManager[None]:
        """What to run a Python call in, which is the next drawing node where that is a call that `fits`."""
        there = self.next is not None and self.next.op.startswith(CALL) and not self.inside
        if self.next is None or not there or _in_backward() or not fits(self.calls[self.next.op]):
            return nullcontext()
        return self._opaque()

    @contextmanager
    def _opaque(self) -> Iterator[None]:
        """Around a Python call that is the graph's next drawing node: seeded once, whatever it draws."""
        self.take()
        self.inside += 1
        original = mock.patch.object(nn.Module, "__call__", _MODULE_CALL)  # which a compiler can read through
        try:
            with (
                _pop_mode_temporarily(torch._C.DispatchKey.PreDispatch),
                torch._C._DisablePythonDispatcher(),
                original,
            ):
                yield
        finally:
            self.inside -= 1

    def _function_apply(self, apply: Callable[..., Any], cls: Any, *args: Any, **kwargs: Any) -> Any:
        """A custom autograd function, which may be a node of the graph."""
        if cls is torch_checkpoint.CheckpointFunction:
            args = (self._again(args[0]), *args[1:])
        name = cls.__qualname__
        with self._expects(
            lambda call: isinstance(call, FunctionCall) and call.function.__qualname__ == name
        ):
            return apply(*args, **kwargs)

    def _module_call(self) -> Callable[..., Any]:
        original = nn.Module.__call__

        def patched_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            with self._expects(lambda call: isinstance(call, ModuleCall) and call.is_of(module)):
                return original(module, *args, **kwargs)

        return patched_call

    def _checkpoint(self, original: Callable[..., Iterator[None]]) -> Callable[..., Iterator[None]]:
        return lambda function, *args, **kwargs: original(self._again(function), *args, **kwargs)

    def _again(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A checkpointed function, whose operators are seen in the backward too, outside of `draws`."""

        def run(*args: Any, **kwargs: Any) -> Any:
            watched = torch._ops._len_torch_dispatch_stack_pre_dispatch()
            with nullcontext() if watched or not _in_backward() else self._seen():
                return function(*args, **kwargs)

        return run


class _Seen(SchemaCheckMode):
    """A mode that sees operators as a capture does: whole, above autograd and autocast.

    Torch lets modes of a few classes that high; of this class nothing else is used.
    """

    def __init__(self, plain: PlainDraws) -> None:
        super().__init__()
        self.__dict__["_dispatch_key"] = torch._C.DispatchKey.PreDispatch
        self.plain = plain

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # With the Python dispatcher some operators would be what Python makes of them, with other bits.
        with torch._C._DisablePythonDispatcher():
            return self.plain.run(func, args, kwargs or {})


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _named(node: Node) -> str:
    return f"node '{node.name}' ('{node.op}'{f' at {node.source}' if node.source else ''})"
