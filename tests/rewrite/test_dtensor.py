"""Rules beside those of DTensor, which say where the result of an operator on sharded tensors lies.

Where DTensor computes on shards as they are, without moving any, its result must be what ours joins: sharded
where we put parts together, partial where we add them up. Convolutions are not compared: torch 2.13 takes
what comes of a weight cut by channels for the whole result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn import functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore

from netsplit.graph import Graph, capture_inference
from netsplit.rewrite.layouts import layouts_of
from netsplit.rewrite.rules import ways_of
from netsplit.rewrite.ways import Cat, SplitCall, Way

ARGUMENTS = "abc"


class Called(torch.nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.function(*tensors)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


CALLS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "mm": (torch.mm, (numbers(4, 6), numbers(6, 8))),
    "bmm": (torch.bmm, (numbers(2, 4, 6), numbers(2, 6, 8))),
    "addmm": (torch.addmm, (numbers(8), numbers(4, 6), numbers(6, 8))),
    "add": (torch.add, (numbers(4, 6), numbers(6))),
    "gelu": (F.gelu, (numbers(4, 6),)),
    "where": (torch.where, (numbers(4, 6) > 0, numbers(4, 6), numbers(1, 6))),
    "layer_norm": (lambda x: F.layer_norm(x, (6,)), (numbers(4, 2, 6),)),
    "softmax": (lambda x: torch.softmax(x, 1), (numbers(4, 6, 2),)),
    "sum": (lambda x: x.sum(1), (numbers(4, 6, 2),)),
    "mean": (lambda x: x.mean((0, 2)), (numbers(4, 6, 2),)),
    "amax": (lambda x: x.amax(1), (numbers(4, 6),)),
    "view": (lambda x: x.view(4, 2, 6), (numbers(4, 12),)),
    "flatten": (lambda x: x.flatten(1), (numbers(4, 2, 6),)),
    "permute": (lambda x: x.permute(2, 0, 1), (numbers(4, 2, 6),)),
    "transpose": (lambda x: x.transpose(0, 1), (numbers(4, 6),)),
    "unsqueeze": (lambda x: x.unsqueeze(1), (numbers(4, 6),)),
    "expand": (lambda x: x.expand(4, 6, 2), (numbers(4, 1, 2),)),
    "select": (lambda x: x.select(1, 0), (numbers(4, 6, 2),)),
    "cat": (lambda x, y: torch.cat([x, y], 1), (numbers(4, 6), numbers(4, 2))),
    "stack": (lambda x, y: torch.stack([x, y], 1), (numbers(4, 6), numbers(4, 6))),
    "embedding": (lambda table, words: F.embedding(words, table), (numbers(8, 6), torch.arange(4))),
}


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    """Two ranks, of which this is one, and none that answers: nothing may be sent."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


def places_of(graph: Graph, call: SplitCall, way: Way) -> list[Placement] | None:
    """How the function's arguments are placed; None: they are cut in blocks, which Shard does not say."""
    placed: list[Placement] = [Replicate() for _ in graph.input_variables]
    for place, where in way.cut.items():
        k = call.template(place).get("var")
        if where.blocks > 1 or k not in graph.input_variables:
            return None
        placed[graph.input_variables.index(k)] = Shard(where.dim)
    return placed


def placement_of(way: Way) -> Placement | None:
    joined = way.joined[0]
    if isinstance(joined, Cat):
        return Shard(joined.where.dim) if joined.where.blocks == 1 else None
    return Partial("avg" if joined.mean else "sum")


@pytest.mark.parametrize("name", CALLS)
def test_results_lie_where_dtensor_has_them(name: str, mesh: DeviceMesh) -> None:
    function, tensors = CALLS[name]
    graph = capture_inference(Called(function), tensors)
    node = list(graph)[-1]
    call = SplitCall(node, layouts_of(graph), graph.initializers)
    compared = 0
    for way in ways_of(call).values():
        if isinstance(way, str) or way.size % 2 or way.before is not None or not way.cut:
            continue
        places, wanted = places_of(graph, call, way), placement_of(way)
        if places is None or wanted is None:
            continue
        given: list[Any] = [
            distribute_tensor(tensor, mesh, [place], src_data_rank=None)
            for tensor, place in zip(tensors, places, strict=True)
        ]
        with CommDebugMode() as moved:
            result = function(*given)
        if moved.get_total_counts() == 0:
            assert result.placements == (wanted,), (places, way)
            compared += 1
    assert compared > 0
