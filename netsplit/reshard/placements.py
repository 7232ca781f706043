"""Layouts as DTensor has them: a placement for each axis of the mesh, in their order. Needs torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from netsplit.errors import ReshardError
from netsplit.layout import Mesh

__all__ = ["mesh_from", "out_of_order", "spec_from"]


def mesh_from(mesh: DeviceMesh) -> Mesh:
    """The processes of a mesh of torch.distributed, by their ranks."""
    return Mesh(tuple(map(int, mesh.mesh.flatten().tolist())), tuple(mesh.mesh.shape))


def spec_from(placements: Sequence[Placement], dimensions: int) -> str:
    """S and R of a tensor of so many dimensions; axes that cut one dimension stay in their order.

    Raises:
        ReshardError: a placement other than `Shard` and `Replicate`, or of a dimension that is not there.
    """
    axes: list[list[int]] = [[] for _ in range(dimensions)]
    for axis, placement in enumerate(placements):
        if type(placement) is Shard:
            if not -dimensions <= placement.dim < dimensions:
                raise ReshardError(
                    f"{placement} names a dimension that a tensor of {dimensions} dimensions lacks."
                )
            axes[placement.dim].append(axis)
        elif type(placement) is not Replicate:
            raise ReshardError(
                f"{placement} on axis {axis} of the mesh cannot be resharded, only Shard and Replicate can: "
                "redistribute it on its own mesh first."
            )
    if len(placements) > 10:
        raise ReshardError(f"a mesh of {len(placements)} axes cannot be resharded: give at most 10.")
    return "".join(f"S{''.join(map(str, each))}" if each else "R" for each in axes)


def out_of_order(mesh: DeviceMesh, placements: Sequence[Placement]) -> str:
    """Why it is unclear which piece of a tensor is whose; "" where it is clear, as far as this process knows.

    On a mesh as [2, 0, 1] `distribute_tensor` and `full_tensor` of torch 2.13 take pieces in the order of
    ranks, and `redistribute` in that of the mesh.
    """
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return ""
    for axis, placement in enumerate(placements):
        if type(placement) is not Shard:
            continue
        along = tuple(slice(None) if each == axis else place for each, place in enumerate(coordinate))
        ranks, group = mesh.mesh[along].tolist(), dist.get_process_group_ranks(mesh.get_group(axis))
        if ranks != group:
            return (
                f"axis {axis} of the mesh {mesh.mesh.tolist()} cuts the tensor, but torch's collectives "
                f"take its ranks {ranks} in the order {group}: give a mesh in that order."
            )
    return ""
