"""A plan carried out on numpy arrays in one process, message by message; and meshes to plan between."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netsplit.reshard import Box, DeviceName, Layout, Mesh, Network, ReshardPlan

__all__ = ["between", "carry_out", "mesh_of", "network_for"]


def mesh_of(name: str, shape: tuple[int, ...]) -> Mesh:
    return Mesh(tuple(f"{name}{i}" for i in range(prod(shape))), shape)


def network_for(*meshes: Mesh, nic_bandwidth: float = 1.0, inside_bandwidth: float = float("inf")) -> Network:
    """A host for each row of a mesh: bytes of one second are those of its bandwidth."""
    hosts: dict[str, list[DeviceName]] = {}
    for mesh in meshes:
        for device, place in mesh.places.items():
            hosts.setdefault(f"host {str(device)[0]}{place[0] if place else 0}", []).append(device)
    return Network.uniform(hosts, nic_bandwidth, inside_bandwidth)


def between(
    source: tuple[tuple[int, ...], str], destination: tuple[tuple[int, ...], str]
) -> tuple[Layout, Layout]:
    """Layouts on two meshes of these shapes, which share no device."""
    return Layout(mesh_of("a", source[0]), source[1]), Layout(mesh_of("b", destination[0]), destination[1])


def pieces_of(layout: Layout, whole: NDArray[np.int64]) -> dict[DeviceName, NDArray[np.int64]]:
    """Every device's piece, by slicing."""
    return {device: whole[_slices(box)].copy() for device, box in layout.regions(whole.shape).items()}


def carry_out(plan: ReshardPlan) -> None:
    """Every element of every new piece is the whole tensor's, and what a NIC or a device does is in turn."""
    whole = np.arange(prod(plan.shape)).reshape(plan.shape)
    results, expected = arrived(plan, whole), pieces_of(plan.destination, whole)
    assert results.keys() == expected.keys()
    for device, piece in expected.items():
        assert np.array_equal(results[device], piece), device
    busy: dict[tuple[object, ...], list[tuple[float, float]]] = {}
    close, network = 1e-9 * plan.seconds, plan.network
    for hop, (start, end) in zip(plan.hops, plan.times, strict=True):
        a, b = network.host_of[hop.source], network.host_of[hop.destination]
        latency_s = network.seconds(0, hop.source, hop.destination)
        assert all(plan.times[before][1] <= start + close for before in hop.after)
        for one in (
            (hop.source, a, "out") if a == b else (a, "out"),
            (hop.destination, b, "in") if a == b else (b, "in"),
        ):
            busy.setdefault(one, []).append((start, end - latency_s))
    for spans in map(sorted, busy.values()):
        assert all(end <= start + close for (_, end), (start, _) in pairwise(spans))
    assert plan.bound_s <= plan.seconds + close


def arrived(plan: ReshardPlan, whole: NDArray[np.int64]) -> dict[DeviceName, NDArray[np.int64]]:
    """What each device of the destination has in the end; -1 where nothing came."""
    held = pieces_of(plan.source, whole)
    source_boxes = plan.source.regions(plan.shape)
    target_boxes = plan.destination.regions(plan.shape)
    results = {device: np.full([b - a for a, b in box], -1) for device, box in target_boxes.items()}
    slices: dict[tuple[int, DeviceName], NDArray[np.int64]] = {}
    for index, task in enumerate(plan.tasks):
        for device in task.senders:
            slices[index, device] = held[device][_slices(task.region, source_boxes[device])].reshape(-1)
        for device in task.receivers:
            slices[index, device] = np.full(task.elements, -1)
    for hop in plan.hops:
        sent = slices[hop.task, hop.source][hop.start : hop.stop]
        assert (sent != -1).all(), f"{hop} sends what its source does not have yet"
        slices[hop.task, hop.destination][hop.start : hop.stop] = sent
    for index, task in enumerate(plan.tasks):
        for device in (*task.receivers, *task.keepers):
            into = results[device][_slices(task.region, target_boxes[device])]
            into[...] = slices[index, device].reshape(into.shape)
    return results


def _slices(box: Box, within: Box | None = None) -> tuple[Any, ...]:
    """An index that gives a view, of a tensor without dimensions too."""
    first = [a for a, _ in within] if within is not None else [0] * len(box)
    return (..., *(slice(a - at, b - at) for (a, b), at in zip(box, first, strict=True)))
