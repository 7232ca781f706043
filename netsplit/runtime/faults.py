"""Failures of a batch in words: the exception, the operator, the user's line; and the origin of a non-finite
loss.

For the latter the batch is computed again, operator by operator. A mask of minus infinity is not finite
either, yet correct. So the search follows non-finite values from the loss back to an operator with finite
inputs, a parameter, or the batch.
"""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, fx

from netsplit.errors import BatchError, NetSplitError, WorkerError
from netsplit.graph.ir import CALL, Graph, once_of
from netsplit.graph.module import NODE, VARIABLE
from netsplit.graph.user_code import quoted
from netsplit.program.instructions import Program, origin

__all__ = [
    "AS_BEFORE", "BatchFailure", "Inspection", "failure_of", "is_fatal", "is_finite", "is_of_connection",
    "may_be_unlike", "one_line", "origin_of", "require_as_captured", "require_steady", "words_of_node",
]  # fmt: skip

AS_BEFORE = "the batch was skipped and the model is unchanged"

_LONGEST = 600  # characters of an error's text
_GENERATED = "<eval_with_key>"  # fx's names for files of generated code


@dataclass(frozen=True)
class BatchFailure:
    """One device's exception as an answer; `at` is its instruction's place in the program's order."""

    device: str
    reason: str  # 'raised IndexError: … at its forward of segment 1, micro-batch 0, in operator …'
    at: int  # -1: before the first, without a batch
    trace: str
    unread: bool = False  # it could not read the batch
    unlike: bool = False  # it read an unexpected kind of batch, or could not read


def failure_of(error: Exception, device: str, place: str, graph: Graph, at: int) -> BatchFailure:
    """Args:
    place: ' at its …', the instruction.
    """
    reason = str(error).rstrip(".") if isinstance(error, NetSplitError) else f"raised {one_line(error)}"
    node = _node_of(error)
    operator = f", in {words_of_node(graph, node)}" if node in graph.nodes else ""
    trace = "".join(traceback.format_exception(error))
    return BatchFailure(device, f"{reason.rstrip('.')}{place}{operator}", at, trace)


def words_of_node(graph: Graph, name: str) -> str:
    """ "operator 'conv2d' of module 'stem.conv', file.py:12 ('return self.conv(x)')"."""
    node = graph.nodes[name]
    module = f" of module '{node.module}'" if node.module else ""
    source = f", {quoted(node.source)}" if node.source else ""
    return f"operator '{name}'{module}{source}"


def is_fatal(error: BaseException) -> bool:
    """Whether the process can compute no more: a peer is gone, or the GPU is in an error state."""
    accelerator = getattr(torch, "AcceleratorError", ())
    return isinstance(error, (WorkerError, accelerator)) or is_of_connection(error)


def is_of_connection(error: BaseException) -> bool:
    """Whether gloo, NCCL or a store reports that another process is gone or late."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and ("gloo/transport" in str(error) or "NCCL" in str(error))


def one_line(error: BaseException) -> str:
    """The error's type and text, without torch's C++ stack and gloo's advice."""
    text = " ".join(str(error).partition("Exception raised from")[0].split())
    text = re.sub(r"^\[\S+\] ", "", text).partition(" This is typically caused")[0]
    shortened = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
    return f"{type(error).__name__}: {shortened}" if shortened else type(error).__name__


def _node_of(error: BaseException) -> str:
    for frame, line in reversed(list(_frames(error))):
        module = frame.f_locals.get("self")
        if not frame.f_code.co_filename.startswith(_GENERATED) or not isinstance(module, fx.GraphModule):
            continue
        written = (
            linecache.getline(frame.f_code.co_filename, line).partition("=")[0].partition(":")[0].strip()
        )
        for each in module.graph.nodes:
            if each.name == written:
                return str(each.meta.get(NODE, ""))
    return ""


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def require_as_captured(graph: Graph, results: Iterable[str], differentiable: Container[str]) -> None:
    """Check that a segment's results require gradients as in the example.

    Raises:
        NetSplitError: the example required none, so that nobody sends one; or a loss requires none.
    """
    loss = graph.output_variables[0]
    for k in results:
        if k in differentiable and k in _untrained_by_code(graph):
            node = next(node.name for node in graph if k in node.outputs)
            raise NetSplitError(
                f"trains through {words_of_node(graph, node)} on this batch, but the captured example did "
                "not: give parallelize an example batch that does"
            )
        if k == loss and k not in differentiable:
            raise NetSplitError("computed a loss that depends on no trained parameter")


def may_be_unlike(graph: Graph, outputs: Iterable[str]) -> tuple[str, ...]:
    """The segment outputs that `require_as_captured` can refuse."""
    loss = graph.output_variables[0]
    return tuple(k for k in outputs if k == loss or k in _untrained_by_code(graph))


def require_steady(program: Program, attempts: int) -> None:
    """Raises BatchError if there were more attempts than segments."""
    if attempts > len(program.segments) + 1:
        raise BatchError(
            "code that was not captured uses its input in one pass over a batch but not in the next: make "
            f"it depend only on its tensors and torch's random generators; {AS_BEFORE}."
        )


@once_of
def _untrained_by_code(graph: Graph) -> frozenset[str]:
    """Variables without a gradient because uncaptured code gave none."""
    untrained: set[str] = set()
    for node in graph:
        reads_trained = any(graph.variables[k].requires_grad for k in node.inputs) or any(
            graph.initializers[k].requires_grad for k in node.initializers
        )
        if node.op.startswith(CALL) or (not reads_trained and not untrained.isdisjoint(node.inputs)):
            untrained.update(k for k in node.outputs if k and not graph.variables[k].requires_grad)
    return frozenset(untrained)


def is_finite(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex()) or bool(torch.isfinite(tensor).all())


@dataclass
class Inspection:
    """What is not finite in one device's part: variables by micro-batch, and initializers."""

    variables: set[tuple[str, int]] = field(default_factory=set)
    initializers: set[str] = field(default_factory=set)

    def inspect(self, tensors: Mapping[str, Tensor]) -> None:
        self.initializers |= {k for k, tensor in tensors.items() if not is_finite(tensor.detach())}

    def watching(self, module: fx.GraphModule, i: int) -> Callable[..., Any]:
        """An interpreter that looks at each result of micro-batch i."""
        return partial(_Inspected(module, self, i).run, enable_io_processing=False)


class _Inspected(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, inspection: Inspection, i: int) -> None:
        super().__init__(module)
        self.inspection, self.i = inspection, i

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        k = n.meta.get(VARIABLE)
        if k is not None and isinstance(result, Tensor) and not is_finite(result.detach()):
            self.inspection.variables.add((k, self.i))
        return result


def origin_of(
    program: Program, inspections: Sequence[Inspection], feeds: Sequence[Mapping[str, Tensor]]
) -> str:
    """The device, operator and micro-batch where a non-finite value arises, or the batch or model tensor."""
    graph = program.graph
    bad = {each for inspection in inspections for each in inspection.variables}
    bad |= {(k, i) for i, feed in enumerate(feeds) for k, tensor in feed.items() if not is_finite(tensor)}
    spoilt = {k for inspection in inspections for k in inspection.initializers}
    loss = graph.output_variables[0]
    i = next((i for i in range(program.microbatches) if (loss, i) in bad), None)
    if i is None:
        return "the second computation was finite"
    makers = {k: node for node in graph for k in node.outputs if k}

    k = loss
    while k in makers:
        node = makers[k]
        sources = [origin(graph, each) for each in node.inputs]
        before = [each for each in sources if (each, i) in bad]
        if not before:
            break
        k = before[0]
    if k not in makers:
        words = f"a tensor of shape {tuple(feeds[i][k].shape)}"
        return f"the batch itself is not finite, in {words} of micro-batch {i}"
    home = program.on(program.device_of[node.name], i)
    own = [name for name in node.initializers if name in spoilt]
    what = f"the model's '{own[0]}' is not finite and is read" if own else "it arises"
    return f"{what} on device {home} in {words_of_node(graph, node.name)}, micro-batch {i}"
