"""Layouts as DTensor has them: a placement for each axis of the mesh, in their order. Needs torch."""

from __future__ import annotations

from collections.abc import Sequence

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from netsplit.errors import ReshardError
from netsplit.reshard.layout import Layout, Mesh

__all__ = ["mesh_from", "placements_from", "spec_from"]


def mesh_from(mesh: DeviceMesh) -> Mesh:
    """The processes of a mesh of torch.distributed, by their ranks."""
    return Mesh(tuple(map(int, mesh.mesh.flatten().tolist())), tuple(mesh.mesh.shape))


def spec_from(placements: Sequence[Placement], dimensions: int) -> str:
    """S and R of a tensor of so many dimensions: axes that cut the same one, in their own order.

    Raises:
        ReshardError: a placement other than `Shard` and `Replicate`, or of a dimension that is not there.
    """
    axes: list[list[int]] = [[] for _ in range(dimensions)]
    for axis, placement in enumerate(placements):
        if type(placement) is Shard:
            if not -dimensions <= placement.dim < dimensions:
                raise ReshardError(f"{placement} is of a dimension that a tensor of {dimensions} has not.")
            axes[placement.dim].append(axis)
        elif type(placement) is not Replicate:
            raise ReshardError(
                f"{placement} on axis {axis} of the mesh is not resharded, only Shard and Replicate are: "
                "redistribute it on its own mesh first."
            )
    if len(placements) > 10:
        raise ReshardError(f"a mesh of {len(placements)} axes is not resharded: give at most 10.")
    return "".join(f"S{''.join(map(str, each))}" if each else "R" for each in axes)


def placements_from(layout: Layout) -> tuple[Placement, ...]:
    """A placement for each axis of the layout's mesh.

    Raises:
        ReshardError: axes that cut one dimension in another order than theirs, as in S10.
    """
    placements: list[Placement] = [Replicate()] * len(layout.mesh.shape)
    for dimension, axes in enumerate(layout.axes):
        if list(axes) != sorted(axes):
            raise ReshardError(
                f"'{layout.spec}' cuts dimension {dimension} along axes {list(axes)}: DTensor's placements "
                "say no such order, give the mesh with these axes in that order instead."
            )
        for axis in axes:
            placements[axis] = Shard(dimension)
    return tuple(placements)
