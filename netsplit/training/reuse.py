"""Batches that come again though the model writes into them: it then computes on what it has written."""

from __future__ import annotations

import logging
from bisect import bisect_right, insort
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from netsplit.errors import NetSplitError
from netsplit.graph.batches.batch import Batch
from netsplit.graph.ir import TRANSFER, Graph
from netsplit.graph.operators import written_storages
from netsplit.graph.storage import storage_of

__all__ = ["Reuse"]

log = logging.getLogger(__name__)

_Span = tuple[int, int, int]  # first byte, the one after the last, version


class Reuse:
    """Where the tensors lie that training has had and a plain model would have written, while they live."""

    def __init__(self) -> None:
        self._written: dict[int, tuple[Graph, list[int]]] = {}
        self._seen: dict[StorageWeakRef, list[_Span]] = {}
        self._most = 64
        self._warned = False

    @contextmanager
    def noted(self, graph: Graph, batch: Batch) -> Iterator[None]:
        """`look`, and what is trained within; a batch that fails there may come again."""
        before = {key: list(spans) for key, spans in self._seen.items()}
        try:
            self.look(graph, batch)
            yield
        except BaseException:
            self._seen = before
            raise

    def look(self, graph: Graph, batch: Batch) -> None:
        """Before a batch is trained.

        Raises:
            NetSplitError: a tensor that the model writes into has been in an earlier batch, and has not been
                written anew since.
        """
        if id(graph) not in self._written:
            self._written[id(graph)] = graph, _written_inputs(graph)
        written = dict.fromkeys(batch.same[j] for j in self._written[id(graph)][1])
        if written and not self._warned:
            self._warned = True
            shape = tuple(batch.tensors[next(iter(written))].shape)
            log.warning(
                "The model writes into a tensor of its batch, of shape %s. Plain PyTorch changes your "
                "tensor; the split model writes into a copy, so yours stays as it is, and it is "
                "refused in a second batch (x = x.clone() in the forward makes both alike).", shape,
            )  # fmt: skip
        for j in written:
            self._take(batch.tensors[j])

    def _take(self, tensor: Tensor) -> None:
        if len(self._seen) > self._most:
            self._seen = {key: spans for key, spans in self._seen.items() if not key.expired()}
            self._most = 64 + 2 * len(self._seen)
        begin, end, version = span = _span(tensor)
        spans = self._seen.setdefault(StorageWeakRef(tensor.untyped_storage()), [])
        at = bisect_right(spans, span)
        near = [each for each in spans[max(at - 1, 0) : at + 1] if each[0] < end and begin < each[1]]
        if any(each[2] == version for each in near):
            raise NetSplitError(
                f"a tensor of shape {tuple(tensor.shape)} comes in a second batch, and the model writes into "
                "it: plain PyTorch would now compute on what it has left there at first, but split it writes "
                "into copies: compute with a copy in the forward (x = x.clone()), or give a copy in every "
                "batch."
            )
        for each in near:
            spans.remove(each)
        insort(spans, span)


def _written_inputs(graph: Graph) -> list[int]:
    """Positions of the batch's tensors that the graph's nodes write."""
    nodes = [node for node in graph if node.op != TRANSFER]
    written = {root for node in nodes for root in written_storages(graph, node)}
    return [j for j, k in enumerate(graph.input_variables) if storage_of(graph, k) in written]


def _span(tensor: Tensor) -> _Span:
    reach = 1 + sum((n - 1) * int(s) for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    begin = int(tensor.storage_offset()) * tensor.element_size()
    version = 0 if tensor.is_inference() else tensor._version
    return begin, begin + (reach * tensor.element_size() if tensor.numel() else 0), version
