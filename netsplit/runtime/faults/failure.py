"""Why a device could not compute its part of a batch: the exception, the operator, the line of the user."""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType

import torch
import torch.distributed as dist
from torch import fx

from netsplit.errors import BatchError, NetSplitError, WorkerError
from netsplit.graph.ir import CALL, Graph, once_of
from netsplit.graph.module import NODE
from netsplit.graph.user_code import quoted
from netsplit.program.instructions import Program

__all__ = [
    "AS_BEFORE",
    "BatchFailure",
    "failure_of",
    "is_fatal",
    "is_of_connection",
    "may_be_unlike",
    "one_line",
    "require_as_captured",
    "require_steady",
    "words_of_node",
]

AS_BEFORE = "the batch was skipped and the model is unchanged"

_LONGEST = 600  # characters of an error's text
_GENERATED = "<eval_with_key>"  # how fx calls the files of the code it writes


@dataclass(frozen=True)
class BatchFailure:
    """What one device raised; an answer rather than an exception, which would end the workers.

    `at` is where its instruction stands in the program's one order: what came first made the others fail.
    """

    device: str
    reason: str  # 'raised IndexError: … at its forward of segment 1, micro-batch 0, in operator …'
    at: int  # -1: before all, as it had no batch
    trace: str
    unread: bool = False  # it could not read the batch
    unlike: bool = False  # the batch that it read is not of the kind that it was told, or it cannot read any


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
    """Whether the process cannot compute on after it: a peer is gone, or a GPU's state is."""
    accelerator = getattr(torch, "AcceleratorError", ())
    return isinstance(error, (WorkerError, accelerator)) or is_of_connection(error)


def is_of_connection(error: BaseException) -> bool:
    """Whether gloo, NCCL or a store says that another process is gone or late: not this one's fault."""
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and ("gloo/transport" in str(error) or "NCCL" in str(error))


def one_line(error: BaseException) -> str:
    """Type and text, without the stack of C++ frames that torch may append, nor gloo's advice."""
    text = " ".join(str(error).partition("Exception raised from")[0].split())
    text = re.sub(r"^\[\S+\] ", "", text).partition(" This is typically caused")[0]
    shown = text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


def _node_of(error: BaseException) -> str:
    """The graph's node whose call raised; "" where none did, as in a backward."""
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
    """Check that `results` of a segment require gradients as in the example.

    Raises:
        NetSplitError: the example required none, so that nobody sends one; or a loss requires none.
    """
    loss = graph.output_variables[0]
    for k in results:
        if k in differentiable and k in _untrained_by_code(graph):
            node = next(node.name for node in graph if k in node.outputs)
            raise NetSplitError(
                f"trains on this batch through {words_of_node(graph, node)}, which the captured example "
                "did not: give parallelize an example batch that does"
            )
        if k == loss and k not in differentiable:
            raise NetSplitError("computed a loss that depends on no trained parameter")


def may_be_unlike(graph: Graph, outputs: Iterable[str]) -> tuple[str, ...]:
    """Those of a segment's outputs that `require_as_captured` can refuse."""
    loss = graph.output_variables[0]
    return tuple(k for k in outputs if k == loss or k in _untrained_by_code(graph))


def require_steady(program: Program, attempts: int) -> None:
    """Check that an iteration may be computed once more after other gradients were left out than assumed.

    Each attempt knows those of one segment more, as gradients go from segment to segment.

    Raises:
        BatchError: more attempts than that tell; the model is to be as before the batch.
    """
    if attempts > len(program.segments) + 1:
        raise BatchError(
            "code that was not captured uses its input in one pass over a batch but not in the next: let "
            f"it depend only on its tensors and torch's random generators; {AS_BEFORE}."
        )


@once_of
def _untrained_by_code(graph: Graph) -> frozenset[str]:
    """What had no gradient since code that stays whole gave none, itself or to what it is made of. What is
    made without gradients, or by an operator that has none, is so on every batch."""
    untrained: set[str] = set()
    for node in graph:
        reads_trained = any(graph.variables[k].requires_grad for k in node.inputs) or any(
            graph.initializers[k].requires_grad for k in node.initializers
        )
        if node.op.startswith(CALL) or (not reads_trained and not untrained.isdisjoint(node.inputs)):
            untrained.update(k for k in node.outputs if k and not graph.variables[k].requires_grad)
    return frozenset(untrained)
