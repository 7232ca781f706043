"""A DTensor on another mesh is what torch would have put there at once, and so is its gradient on its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

import netsplit
from netsplit.errors import ReshardError
from netsplit.runtime.workers.worker import Worker
from tests.examples import tried
from tests.workers import Pools

COUNT = 6
MESHES = {  # name -> ranks; disjoint, overlapping, and all in another order
    "3x2": [[0, 1], [2, 3], [4, 5]],
    "2x3": [[5, 4, 3], [2, 1, 0]],
    "left": [0, 1],
    "right": [[2, 3], [4, 5]],
    "middle": [1, 2, 3],
    "last": [5],
}
SIZES = (0, 1, 2, 3, 5, 7, 13)


def mesh_of(worker: Worker, name: str) -> DeviceMesh:
    """Made once by all processes: each makes groups."""
    if "meshes" not in worker.memory:
        worker.memory["meshes"] = {name: DeviceMesh("cpu", ranks) for name, ranks in MESHES.items()}
    mesh: DeviceMesh = worker.memory["meshes"][name]
    return mesh


def drawn(shape: Sequence[int], seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed), dtype=dtype)


def on(mesh: DeviceMesh, placements: Sequence[Placement], whole: Tensor) -> DTensor:
    """What torch puts there, without a message; on other processes with an empty piece."""
    return distribute_tensor(whole, mesh, placements, src_data_rank=None)


def alike(own: DTensor, expected: DTensor) -> bool:
    """In all that a DTensor is, bit for bit."""
    return (
        own.device_mesh == expected.device_mesh
        and own.placements == expected.placements
        and own.shape == expected.shape
        and own.to_local().shape == expected.to_local().shape
        and torch.equal(own.to_local(), expected.to_local())
    )


def _there_and_back(
    worker: Worker,
    source: tuple[str, tuple[Placement, ...]],
    destination: tuple[str, tuple[Placement, ...]],
    shape: tuple[int, ...],
    everywhere: bool,
) -> dict[str, bool]:
    """Whether tensor and gradient are right here; the gradient is that of a sum with drawn factors."""
    a, b = mesh_of(worker, source[0]), mesh_of(worker, destination[0])
    here_a, here_b = a.get_coordinate() is not None, b.get_coordinate() is not None
    if not (here_a or here_b):
        return {}
    whole, factors = drawn(shape, 3), drawn(shape, 4)
    x = on(a, source[1], whole).detach().requires_grad_() if here_a or everywhere else None
    y = netsplit.redistribute(x, b, destination[1], source=a, timeout_s=30.0)
    right = {"placements": tuple(y.placements) == destination[1] and y.device_mesh == b}
    if here_b:
        right["tensor"] = alike(y, on(b, destination[1], whole))
        (y.to_local() * on(b, destination[1], factors).to_local()).sum().backward()
    else:
        right["empty"] = y.to_local().numel() <= 1
        y.sum().backward()
    if here_a:
        assert x is not None
        right["gradient"] = x.grad is not None and alike(x.grad, on(a, source[1], factors))
    return right


@st.composite
def ends(draw: st.DrawFn, dimensions: int) -> tuple[str, tuple[Placement, ...]]:
    name = draw(st.sampled_from(sorted(MESHES)))
    each = [Replicate(), *(Shard(d) for d in range(dimensions))]
    axes = torch.tensor(MESHES[name]).dim()
    return name, tuple(draw(st.lists(st.sampled_from(each), min_size=axes, max_size=axes)))


@settings(max_examples=tried(90), deadline=None)
@given(st.data(), st.lists(st.sampled_from(SIZES), max_size=3).map(tuple), st.booleans())
def test_a_tensor_goes_there_and_its_gradient_comes_back(
    pools: Pools, data: st.DataObject, shape: tuple[int, ...], everywhere: bool
) -> None:
    source, destination = data.draw(ends(len(shape))), data.draw(ends(len(shape)))
    told = pools(COUNT).call(_there_and_back, source, destination, shape, everywhere)
    assert all(all(right.values()) for right in told), told
    assert any("tensor" in right for right in told)
    assert any("gradient" in right for right in told)


NAMED = {
    "(3, 2) to (2, 3)": (("3x2", (Shard(0), Shard(1))), ("2x3", (Shard(1), Shard(0))), (13, 7)),
    "apart": (("left", (Shard(0),)), ("right", (Replicate(), Shard(1))), (5, 11)),
    "overlapping": (("middle", (Shard(1),)), ("3x2", (Shard(0), Replicate())), (3, 4)),
    "to itself": (("3x2", (Shard(0), Shard(0))), ("3x2", (Shard(1), Shard(0))), (7, 7)),
    "empty pieces": (("3x2", (Shard(0), Shard(0))), ("2x3", (Shard(0), Shard(0))), (2, 3)),
    "one process": (("last", (Replicate(),)), ("left", (Shard(0),)), (9,)),
    "scalar": (("left", (Replicate(),)), ("right", (Replicate(), Replicate())), ()),
}


@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize("name", NAMED)
def test_cases_that_are_known_to_be_hard(pools: Pools, name: str, everywhere: bool) -> None:
    """`everywhere`: processes of the destination alone have the DTensor too, as where all run one program."""
    told = pools(COUNT).call(_there_and_back, *NAMED[name], everywhere)
    assert all(all(right.values()) for right in told), told


def _twice(worker: Worker) -> bool:
    """Two tensors of which one is used twice, one of another dtype and without gradient."""
    a, b = mesh_of(worker, "left"), mesh_of(worker, "right")
    x = on(a, [Shard(0)], drawn((6, 5), 1)).detach().requires_grad_()
    y, again = (netsplit.redistribute(x, b, [Shard(0), Replicate()]) for _ in range(2))
    counts = netsplit.redistribute(on(a, [Shard(0)], torch.arange(7)), b, [Replicate(), Shard(0)])
    assert not counts.requires_grad
    assert alike(counts, on(b, [Replicate(), Shard(0)], torch.arange(7)))
    (y * 2 + again * 3).sum().backward()
    if a.get_coordinate() is None:
        return True
    assert x.grad is not None
    return torch.equal(x.grad.to_local(), torch.full_like(x.to_local(), 5.0))


def test_one_program_of_all_processes_trains_as_one(pools: Pools) -> None:
    """Gradients of what was moved twice are summed; DTensor's own operators come after."""
    assert all(pools(COUNT).call(_twice))


def _counted_from_the_last(worker: Worker) -> bool:
    """Also where this process has no piece, whose emptiness has another number of dimensions."""
    a, b = mesh_of(worker, "left"), mesh_of(worker, "right")
    x = on(a, [Shard(0)], drawn((6, 5), 1))
    y = netsplit.redistribute(x, b, [Shard(-1), Shard(-2)])
    return tuple(y.placements) == (Shard(1), Shard(0))


def test_dimensions_may_be_counted_from_the_last(pools: Pools) -> None:
    assert all(pools(COUNT).call(_counted_from_the_last))


def _single_elements(worker: Worker) -> bool:
    """Strides of a dimension of one element say nothing; these dtypes go as bytes."""
    a, b = mesh_of(worker, "left"), mesh_of(worker, "right")
    for dtype in (torch.bool, torch.complex128, torch.int16):
        whole = torch.ones(2, dtype=dtype)
        local = on(a, [Shard(0)], whole).to_local()
        piece = torch.ones(2, dtype=dtype)[::2] if local.numel() else local
        x = DTensor.from_local(piece, a, [Shard(0)], run_check=False, shape=whole.shape, stride=(1,))
        y = netsplit.redistribute(x, b, [Replicate(), Replicate()], timeout_s=10.0)
        if not alike(y, on(b, [Replicate(), Replicate()], whole)) and b.get_coordinate() is not None:
            return False
    return True


def test_single_elements_of_any_stride_go_as_bytes(pools: Pools) -> None:
    assert all(pools(COUNT).call(_single_elements))


def _said(worker: Worker, what: str) -> str:
    a, b = mesh_of(worker, "left"), mesh_of(worker, "right")
    x: DTensor | None = on(a, [Shard(0)], drawn((6, 5), 1)).detach()
    mesh, placements, source = b, [Replicate(), Replicate()], None
    if what == "partial":
        x = DTensor.from_local(torch.ones(2), a, [Partial()]) if a.get_coordinate() is not None else None
        source = a
    elif what == "partial there":
        placements = [Partial(), Replicate()]
    elif what == "nothing":
        x = None
    elif what == "dimension":
        placements = [Shard(2), Replicate()]
    elif what == "few":
        placements = [Shard(0)]
    elif what == "another":
        placements = [Replicate(), Shard(dist.get_rank() == 3)]
    elif what == "another source":
        x = on(a, [Replicate() if dist.get_rank() == 1 else Shard(0)], drawn((6, 5), 1))
    elif what == "gradient":
        assert x is not None
        x.requires_grad_(dist.get_rank() != 1)
    elif what == "neither":
        mesh = mesh_of(worker, "left")
    try:
        netsplit.redistribute(x, mesh, placements[: mesh.ndim], source=source, timeout_s=0.5)
    except ReshardError as error:
        return str(error)
    except netsplit.NetSplitError:
        return ""
    return "moved"


@pytest.mark.parametrize(
    ("what", "rank", "words"),
    [
        ("partial", 0, "is not resharded, only Shard and Replicate are"),
        ("partial", 5, "redistribute it on its own mesh first"),
        ("partial there", 2, "is not resharded, only Shard and Replicate are"),
        ("nothing", 0, "redistribute of no tensor needs source"),
        ("dimension", 4, "is of a dimension that a tensor of 2 has not"),
        ("few", 5, "1 placements for the destination's mesh of 2 axes"),
        ("another", 0, "rank 3 asks for (Replicate(), Shard(dim=1)) on ranks"),
        ("another", 4, "rank 3 asks for (Replicate(), Shard(dim=1)) on ranks"),
        ("another source", 2, "rank 1 has a tensor [6, 5] of torch.float64 by (Replicate(),)"),
        ("gradient", 5, "rank 1 asks for no gradient of its tensor"),
        ("neither", 4, "rank 4 is of neither mesh"),
    ],
)
def test_what_cannot_be_moved_is_refused_on_every_process(
    pools: Pools, what: str, rank: int, words: str
) -> None:
    said = pools(COUNT).call(_said, what)
    assert words in said[rank]
    assert "\n" not in said[rank]
    if what != "neither":
        assert "moved" not in said
