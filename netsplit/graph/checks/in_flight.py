"""Whether a captured graph computes the same with two micro-batches in flight, as pipelines have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from netsplit.errors import CaptureError
from netsplit.graph.checks.difference import difference
from netsplit.graph.checks.plain import copies, own, with_own_calls
from netsplit.graph.code_places import line_of, where_of
from netsplit.graph.ir import Graph
from netsplit.graph.module import rebuild
from netsplit.graph.operators import touching_initializers, written_initializers
from netsplit.graph.random_draws import DrawKey, run_microbatch

__all__ = ["check_order", "order_may_matter"]


def order_may_matter(graph: Graph) -> bool:
    """Whether something that all micro-batches see is written, and read by others than its writers.

    Statistics and counters of a BatchNorm are not: they see forwards alone, which keep their order.
    """
    written = written_initializers(graph)
    touching = touching_initializers(graph)
    return bool(graph.calls) or any(touching[k] - own for k, own in written.items())


def check_order(
    name: str, graph: Graph, values: Mapping[str, Tensor], batches: Sequence[tuple[Tensor, ...]]
) -> None:
    """Pipelines compute forwards of later micro-batches before backwards of earlier ones.

    Args:
        name: of the model, for the error.
        values: of all initializers.

    Raises:
        CaptureError: it makes a difference, or cannot be done.
    """
    one_by_one = _two_in_flight(name, graph, values, batches, together=False)
    together = _two_in_flight(name, graph, values, batches, together=True)
    for k, (a, b) in enumerate(zip(one_by_one, together, strict=True)):
        initializer = list(values)[k // 2]
        what = f"the gradient of '{initializer}'" if k % 2 else f"'{initializer}'"
        apart = difference(a, b)
        if apart is not None:
            raise CaptureError(
                f"{name} depends on the order of micro-batches' forwards and backwards, which a "
                f"pipeline changes: {what} differs ({apart}); usually a buffer is written whose "
                f"old value its backward needs."
            )


def _two_in_flight(
    name: str,
    graph: Graph,
    values: Mapping[str, Tensor],
    batches: Sequence[tuple[Tensor, ...]],
    together: bool,
) -> list[Tensor | None]:
    ours = {k: own(t, graph.initializers[k].requires_grad) for k, t in values.items()}
    graph = with_own_calls(graph)
    module = rebuild(graph, ours)
    waiting = []
    try:
        with torch.enable_grad():
            for i, tensors in enumerate(batches):
                result = run_microbatch(module, graph, copies(tensors), DrawKey(microbatch=i))
                waiting.append(result if isinstance(result, Tensor) else result[0])
                if not together:
                    waiting.pop().backward()
            for loss in waiting:
                loss.backward()
    except Exception as error:
        text = str(error) if "modified by an inplace" in str(error) else ""
        for k in written_initializers(graph):
            if str(list(graph.initializers[k].shape)) in text:
                raise CaptureError(
                    f"{name} writes into '{k}' in the forward while the backward of the micro-batch before "
                    "still needs what was there, as a pipeline has several in flight: compute with "
                    f"{k}.clone()."
                ) from error
        raise CaptureError(
            f"{name} cannot be computed with two micro-batches in flight, as a pipeline has them"
            f"{where_of(error)}: {line_of(error)}; usually a tensor that a backward needs is written in "
            "the forward."
        ) from error
    return [t for tensor in ours.values() for t in (tensor.detach(), tensor.grad)]
