"""What random operators draw: a function of seed, iteration, micro-batch and node, of nothing else.

    DrawKey(seed, iteration, microbatch) ── seed_of(node) ──► 64 bits ──► the generator, just before the node

Neither where a node runs, nor what ran before it, nor how its input lies in memory matters: such a node reads
a contiguous copy. CPU and CUDA draw different numbers from one key, as torch's generators do.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx

from netsplit.graph.autocast import autocast_of
from netsplit.graph.ir import CALL, HOOK, Graph, Node
from netsplit.graph.operators import resolve

__all__ = [
    "DrawCounter", "DrawKey", "drawing", "drawing_as_now", "drawn", "generators_kept", "marked",
    "node_draws", "operator_draws", "run_microbatch", "seed_generators",
]  # fmt: skip

_KNOWN = frozenset(["aten", "prim", "prims", "torchvision"])  # their operators say by a tag whether they draw

_RATE, _TRAINING = ("p", "dropout_p", "dropout"), ("train", "training")
_SWITCHED = frozenset([
    "dropout", "dropout_", "alpha_dropout", "alpha_dropout_", "feature_dropout", "feature_dropout_",
    "feature_alpha_dropout", "feature_alpha_dropout_", "native_dropout", "rrelu", "rrelu_",
    "scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu",
])  # fmt: skip
"""Draw nothing at a rate of 0, nor where they are told that this is no training."""

_ANY_LAYOUT = frozenset(["scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu"])
"""Draw for tensors of their own making, which lie in memory in one way whatever the inputs do."""


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


def node_draws(node: Node) -> bool:
    """Whether a node may draw random numbers, by its operator and the numbers among its arguments."""
    if node.op.startswith(CALL):
        return not node.op.startswith(HOOK)
    return node.op.count(".") == 2 and operator_draws(resolve(node.op), node.args, node.kwargs)


def operator_draws(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """The same of a call; tensors among the arguments do not matter."""
    if not _tagged(op):
        return False
    schema = op._schema
    if _base(op) not in _SWITCHED:
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
def _base(op: Any) -> str:
    return str(op._schema.name).partition("::")[2]


_MARKS = itertools.count(int.from_bytes(b"netsplit"))
_KEY: ContextVar[DrawKey | None] = ContextVar("key", default=None)


@contextmanager
def drawing(key: DrawKey) -> Iterator[None]:
    """Within it, rebuilt modules draw by this key; outside of it, as torch's generators stand.

    Leaves torch's generators anywhere: see `generators_kept`.
    """
    token = _KEY.set(key)
    try:
        yield
    finally:
        _KEY.reset(token)


def drawing_as_now(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which draws by the present key whenever it is called (in a backward, to compute again)."""
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


def marked() -> int:
    """A seed that nobody else gives the CPU's generator, which has it then: who sets it anew is noticed."""
    seed = next(_MARKS)
    torch.default_generator.manual_seed(seed)
    return seed


@contextmanager
def generators_kept() -> Iterator[None]:
    """Torch's generators stand afterwards where they stood before."""
    cuda = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(cuda):
        yield


def in_logical_order(op: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`op(*args, **kwargs)`, drawing in the order of elements, not of memory; the result lies as ever."""
    if not isinstance(op, torch._ops.OpOverload) or _base(op) in _ANY_LAYOUT:
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
