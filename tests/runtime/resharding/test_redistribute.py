"""A DTensor on another mesh has the pieces that its coordinates there say, and so has its gradient here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

import netsplit
from netsplit.errors import ReshardError
from netsplit.runtime.workers.messages import Worker
from tests.cover import covering
from tests.examples import tried
from tests.workers import Pools

COUNT = 6
MESHES = {  # name -> ranks; disjoint, overlapping, and all in another order
    "3x2": [[0, 1], [2, 3], [4, 5]],
    "2x3": [[0, 2, 4], [1, 3, 5]],
    "left": [0, 1],
    "right": [[2, 3], [4, 5]],
    "middle": [1, 2, 3],
    "last": [5],
    # Along an axis that falls, torch has two minds of whose a piece is.
    "turned": [2, 0, 1],
    "falling": [[5, 4, 3], [2, 1, 0]],
    "rows fall": [[3, 4, 5], [0, 1, 2]],
}
SIZES = (0, 1, 2, 3, 5, 7, 13)
DTYPES = (torch.float64, torch.bfloat16, torch.complex64)
Where = tuple[str, tuple[Placement, ...]]  # a mesh, and what is placed there


def mesh_of(worker: Worker, name: str) -> DeviceMesh:
    """Made once by all processes: each makes groups."""
    if "meshes" not in worker.memory:
        worker.memory["meshes"] = {name: DeviceMesh("cpu", ranks) for name, ranks in MESHES.items()}
    mesh: DeviceMesh = worker.memory["meshes"][name]
    return mesh


def drawn(shape: Sequence[int], seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Small whole numbers, of which sums are exact in every dtype."""
    draw = torch.Generator().manual_seed(seed)
    first, second = (torch.randint(-8, 9, tuple(shape), generator=draw).float() for _ in range(2))
    return (torch.complex(first, second) if dtype.is_complex else first).to(dtype)


def on(mesh: DeviceMesh, placements: Sequence[Placement], whole: Tensor, strided: bool = False) -> DTensor:
    """Cut by hand, by the mesh's coordinates; on other processes with an empty piece."""
    place, piece = mesh.get_coordinate(), whole
    for axis, placement in enumerate(placements if place is not None else ()):
        assert place is not None
        if isinstance(placement, Shard):
            size, count = piece.shape[placement.dim], mesh.shape[axis]
            each = -(-size // count)
            start, stop = (min(each * (place[axis] + end), size) for end in (0, 1))
            piece = piece.narrow(placement.dim, start, stop - start)
    piece = torch.stack([piece, piece], -1)[..., 0] if strided else piece.clone()
    return DTensor.from_local(
        piece, mesh, placements, run_check=False, shape=whole.shape, stride=whole.contiguous().stride()
    )


def falls(name: str, placements: Sequence[Placement]) -> bool:
    """Whether an axis that cuts the tensor has ranks that do not rise."""
    ranks = torch.tensor(MESHES[name])
    return any(
        isinstance(placement, Shard) and bool((ranks.diff(dim=axis) < 0).any())
        for axis, placement in enumerate(placements)
    )


def alike(own: DTensor, expected: DTensor) -> bool:
    """In all that a DTensor is, bit for bit."""
    return (
        own.device_mesh == expected.device_mesh
        and own.placements == expected.placements
        and own.shape == expected.shape
        and own.dtype == expected.dtype
        and own.to_local().shape == expected.to_local().shape
        and torch.equal(own.to_local(), expected.to_local())
    )


@dataclass(frozen=True)
class Way:
    """From a mesh to another, and on to a third.

    Args:
        everywhere: processes without the tensor have it with an empty piece, as where all run one program.
        strided: pieces are not contiguous.
        backwards: how often the gradient goes back through the same graph.
    """

    stops: tuple[Where, Where, Where]
    shape: tuple[int, ...]
    everywhere: bool = False
    dtype: torch.dtype = torch.float64
    strided: bool = False
    backwards: int = 1


def _there_and_back(worker: Worker, way: Way) -> dict[str, bool]:
    """Whether tensors and gradient are right here; the gradient is that of sums with drawn factors, of the
    tensor on the second mesh, where it is used twice, and on the third."""
    meshes = [mesh_of(worker, name) for name, _ in way.stops]
    placed = [placements for _, placements in way.stops]
    here = [mesh.get_coordinate() is not None for mesh in meshes]
    whole, *factors = (drawn(way.shape, seed, way.dtype) for seed in (3, 4, 5))
    x, right, terms = None, {}, []
    if here[0] or (way.everywhere and here[1]):
        x = on(meshes[0], placed[0], whole, way.strided).detach().requires_grad_()
    current = x
    falling = [falls(*stop) for stop in way.stops]
    for n in (1, 2):
        if n == 2 and any(falling[:2]):
            break  # those of the first two meshes were refused, and do not come
        if not (here[n - 1] or here[n]):
            current = None
            continue
        given = current if here[n - 1] or way.everywhere else None
        try:
            current = netsplit.redistribute(given, meshes[n], placed[n], source=meshes[n - 1], timeout_s=30.0)
        except ReshardError as error:
            return {**right, f"refused {n}": "give a mesh in that order" in str(error)}
        right[f"placed {n}"] = (current.device_mesh, tuple(current.placements)) == (meshes[n], placed[n])
        if not here[n]:
            right[f"empty {n}"] = current.to_local().numel() <= 1
            terms.append((current.abs() if way.dtype.is_complex else current).sum())
            continue
        right[f"tensor {n}"] = alike(current, on(meshes[n], placed[n], whole))
        factor = on(meshes[n], placed[n], factors[n - 1], way.strided).to_local()
        term = (current.to_local() * factor.conj()).sum()
        terms.append(term.real if way.dtype.is_complex else term)
    if any(falling):
        return right
    for n in range(way.backwards if terms else 0):
        torch.autograd.backward(terms, retain_graph=n < way.backwards - 1)
    if here[0]:
        assert x is not None
        wanted = way.backwards * (factors[0] + factors[1])
        right["gradient"] = x.grad is not None and alike(x.grad, on(meshes[0], placed[0], wanted))
    return right


@st.composite
def ways(draw: st.DrawFn) -> Way:
    shape = draw(st.lists(st.sampled_from(SIZES), max_size=3).map(tuple))
    each = [Replicate(), *(Shard(d) for d in range(len(shape)))]

    def stop() -> Where:
        name = draw(st.sampled_from(sorted(MESHES)))
        axes = torch.tensor(MESHES[name]).dim()
        return name, tuple(draw(st.lists(st.sampled_from(each), min_size=axes, max_size=axes)))

    return Way(
        (stop(), stop(), stop()), shape, draw(st.booleans()), draw(st.sampled_from(DTYPES)),
        draw(st.booleans()), draw(st.integers(1, 2)),
    )  # fmt: skip


@settings(max_examples=tried(40), deadline=None)
@given(way=ways())
def test_a_tensor_goes_on_and_on_and_its_gradient_comes_back(pools: Pools, way: Way) -> None:
    """To a mesh, where it is used, and on to a third; or it is refused, where a piece has no sure place."""
    told = pools(COUNT).call(_there_and_back, way)
    assert all(all(right.values()) for right in told), told
    done = {key for right in told for key in right}
    falling = [falls(*stop) for stop in way.stops]
    assert ("refused 1" in done) == (falling[0] or falling[1])
    assert ("refused 2" in done) == (falling == [False, False, True])
    assert ("gradient" in done) == (not any(falling))


NAMED = {
    "(3, 2) to (2, 3)": (("3x2", (Shard(0), Shard(1))), ("2x3", (Shard(1), Shard(0))), (13, 7)),
    "apart": (("left", (Shard(0),)), ("right", (Replicate(), Shard(1))), (5, 11)),
    "overlapping": (("middle", (Shard(1),)), ("3x2", (Shard(0), Replicate())), (3, 4)),
    "to itself": (("3x2", (Shard(0), Shard(0))), ("3x2", (Shard(1), Shard(0))), (7, 7)),
    "empty pieces": (("3x2", (Shard(0), Shard(0))), ("2x3", (Shard(0), Shard(0))), (2, 3)),
    "one process": (("last", (Replicate(),)), ("left", (Shard(0),)), (9,)),
    "scalar": (("left", (Replicate(),)), ("right", (Replicate(), Replicate())), ()),
    "whole along what falls": (("turned", (Replicate(),)), ("rows fall", (Replicate(), Shard(0))), (5,)),
}


@covering(name=NAMED, everywhere=[True, False])
def test_cases_that_are_known_to_be_hard(pools: Pools, name: str, everywhere: bool) -> None:
    """`everywhere`: processes of the destination alone have the DTensor too, as where all run one program."""
    a, b, shape = NAMED[name]
    told = pools(COUNT).call(_there_and_back, Way((a, b, a), shape, everywhere))
    assert all(all(right.values()) for right in told), told
    assert any("gradient" in right for right in told)


def _in_another_order(worker: Worker) -> str:
    """Two tensors of one size; one process goes back through them the other way round."""
    a, b = mesh_of(worker, "left"), mesh_of(worker, "right")
    both = []
    for seed in (1, 2):
        x = on(a, [Shard(0)], drawn((6, 5), seed)).detach().requires_grad_()
        both.append(netsplit.redistribute(x, b, [Shard(0), Replicate()], timeout_s=10.0))
    for y in both if dist.get_rank() == 1 else both[::-1]:
        try:
            y.sum().backward()
        except ReshardError as error:
            return str(error)
    return "went back"


def test_gradients_in_another_order_are_refused_and_not_swapped(pools: Pools) -> None:
    for said in pools(COUNT).call(_in_another_order):
        assert "rank 1 is at the gradient of redistribution" in said
        assert "in the same order on all ranks" in said


def _said(worker: Worker, what: str) -> str:
    a, b = mesh_of(worker, "left"), mesh_of(worker, "right")
    x: DTensor | None = on(a, [Shard(0)], drawn((6, 5), 1)).detach()
    placements, source = [Replicate(), Replicate()], None
    if what == "partial":
        x = DTensor.from_local(torch.ones(2), a, [Partial()]) if a.get_coordinate() is not None else None
        source = a
    elif what == "nothing":
        x = None
    elif what == "another":
        placements = [Replicate(), Shard(dist.get_rank() == 3)]
    elif what == "another source":
        x = on(a, [Replicate() if dist.get_rank() == 1 else Shard(0)], drawn((6, 5), 1))
    elif what == "size":
        piece = torch.ones(2 + (dist.get_rank() == 1), 5, dtype=torch.float64)
        if a.get_coordinate() is not None:
            x = DTensor.from_local(
                piece, a, [Shard(0)], run_check=False, shape=torch.Size((4, 5)), stride=(5, 1)
            )
        else:
            x, source = None, a
    elif what == "gradient":
        assert x is not None
        x.requires_grad_(dist.get_rank() != 1)
    try:
        netsplit.redistribute(x, b, placements, source=source, timeout_s=10.0)
    except ReshardError as error:
        return str(error)
    return "moved"


@pytest.mark.parametrize(
    ("what", "rank", "words"),
    [
        ("partial", 0, "cannot be resharded, only Shard and Replicate can"),
        ("nothing", 0, "redistribute without a tensor needs source"),
        ("another", 0, "rank 3 asks for (Replicate(), Shard(dim=1)) on ranks"),
        ("another source", 2, "rank 1 has a tensor [6, 5] of torch.float64 by (Replicate(),)"),
        ("gradient", 5, "rank 1 requires no gradient of its tensor"),
        ("size", 4, "rank 1 has a piece of [3, 5], but (Shard(dim=0),) gives it [2, 5] of [4, 5]"),
    ],
)
def test_what_cannot_be_moved_is_refused_on_every_process(
    pools: Pools, what: str, rank: int, words: str
) -> None:
    said = pools(COUNT).call(_said, what)
    assert words in said[rank]
    assert "\n" not in said[rank]
    assert "moved" not in said
