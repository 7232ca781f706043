"""Layouts have the pieces of DTensor's placements."""

from __future__ import annotations

from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

from netsplit.errors import ReshardError
from netsplit.reshard import Layout, Mesh
from netsplit.reshard.placements import mesh_from, spec_from
from tests.reshard.carried import mesh_of

PLACEMENTS = st.sampled_from([Replicate(), Shard(0), Shard(1), Shard(-1)])


def torch_piece(mesh: Mesh, device: object, placements: list[Placement], whole: torch.Tensor) -> torch.Tensor:
    """As DTensor distributes: axis after axis, each piece cut again by what `Shard` itself cuts with."""
    place = mesh.places[device]  # type: ignore[index]
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):
            normal = Shard(placement.dim % whole.ndim)
            pieces, _ = normal._split_tensor(whole, mesh.shape[axis], with_padding=False)
            whole = pieces[place[axis]]
    return whole


@settings(max_examples=80, deadline=None)
@given(
    shape=st.sampled_from([(2, 3), (3, 2), (4, 2), (1, 5), (2, 2)]),
    sizes=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    placements=st.tuples(PLACEMENTS, PLACEMENTS),
)
def test_a_layout_has_the_pieces_of_its_placements(
    shape: tuple[int, int], sizes: tuple[int, int], placements: tuple[Placement, Placement]
) -> None:
    mesh, whole = mesh_of("a", shape), torch.arange(prod(sizes)).reshape(sizes)
    layout = Layout(mesh, spec_from(placements, 2))
    for device, box in layout.regions(sizes).items():
        piece = whole[tuple(slice(a, b) for a, b in box)]
        expected = torch_piece(mesh, device, list(placements), whole)
        assert piece.numel() == expected.numel()
        assert torch.equal(piece.reshape(-1), expected.reshape(-1))


@pytest.mark.parametrize(
    ("placements", "sentence"),
    [
        ([Partial(), Shard(0)], "on axis 0 of the mesh cannot be resharded"),
        ([Shard(2), Shard(0)], "a dimension that a tensor of 2 dimensions lacks"),
        ([Replicate()] * 11, "at most 10"),
    ],
)
def test_placements_that_no_layout_says_are_refused(placements: list[Placement], sentence: str) -> None:
    with pytest.raises(ReshardError, match=sentence):
        spec_from(placements, 2)


def test_a_mesh_of_processes_is_one_of_ranks() -> None:
    mesh = DeviceMesh("cpu", torch.arange(8, 14).reshape(2, 3), _init_backend=False, _rank=8)
    assert mesh_from(mesh) == Mesh((8, 9, 10, 11, 12, 13), (2, 3))
