"""Devices, tasks and messages as arrays for compiled functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from netsplit.cluster.cluster import Device, Nic
from netsplit.compiled import Floats, Ints, Packed, inlined, inner
from netsplit.profile.costs import Costs

__all__ = [
    "COMPUTES", "MOVES", "WAITS", "DeviceSeconds", "Heap", "Notes", "ProgramArrays", "heap_of", "pop", "push",
]  # fmt: skip

COMPUTES, MOVES, WAITS = range(3)
"""Kinds of `Notes`."""


class DeviceSeconds(NamedTuple):
    """`DeviceCosts` without its nodes; [D] unless noted."""

    instruction: Floats
    message: Floats
    slowdown: Floats  # [D, devices of a host + 1]
    host: Ints  # host whose memory it shares; -1: it has its own
    copy_per_byte: Floats
    step_per_byte: Floats
    accumulate_per_byte: Floats
    slowed: bool  # whether anything slows these devices' computations
    nic: Ints  # of the device's host (`Cluster.way`); -1: none
    nic_per_byte: Floats  # [2, NICs] out, and in

    @classmethod
    def of(cls, devices: Sequence[Device], nics: Sequence[Nic], costs: Costs) -> DeviceSeconds:
        kinds = {kind: costs.of(kind) for kind in {device.kind for device in devices}}
        on = [kinds[device.kind] for device in devices]
        hosts: dict[str, int] = {}
        homes = [device.memory_host for device in devices]
        rows = list(costs.slowdowns(devices).values())
        width = max(map(len, rows))
        own = [
            [each.instruction_s for each in on], [each.message_overhead_s for each in on],
            copying := [each.copy_s_per_byte for each in on], [each.step_s_per_byte for each in on],
            [each.accumulate_s_per_byte for each in on],
        ]  # fmt: skip
        instruction, message, copy, step, accumulate = np.array(own, float)
        slowdown = np.array([(*row, *row[-1:] * (width - len(row))) for row in rows], float)
        host = np.array([-1 if each is None else hosts.setdefault(each, len(hosts)) for each in homes], int)
        slowed = any(each > 0 for each in copying) or any(row[-1] != 1.0 for row in rows)
        number = {name: n for n, nic in enumerate(nics) for name in nic.devices}
        nic = np.array([number.get(device.name, -1) for device in devices], int)
        paces = np.array([[x.out_s_per_byte for x in nics], [x.in_s_per_byte for x in nics]], float)
        return cls(instruction, message, slowdown, host, copy, step, accumulate, slowed, nic, paces)


class ProgramArrays(NamedTuple):
    """Tasks of the devices, and the messages between them: transfers, chunks of one, sums, gatherings.

    Message i has row i % rows: those of several micro-batches have one together.
    """

    first: Ints  # [D + 1] the first task of each device; they follow one another
    overhead_s: Floats  # [tasks]
    compute_s: Floats  # [tasks]
    meets: Ints  # [tasks] the message that the device comes to; -1: it computes
    waits: Ints  # of each task those from `wait_from` to `wait_to`: messages that it waits for
    wait_from: Ints  # [tasks]
    wait_to: Ints  # [tasks]
    tag: Ints  # [messages] least first among those ready at once
    missing: Ints  # [messages] devices that have to come to it, and messages that it hands on
    handed: Packed  # [messages] -> messages that hand it on; empty, where none does
    source: Ints  # [rows] device; of a sum -1 - its row of `groups` and `rings`
    target: Ints  # [rows] device
    moving_s: Floats  # [rows]
    nbytes: Floats  # [rows] over each link
    groups: Packed  # [sums] -> devices
    rings: Packed  # [sums] -> links, each source * D + target


class Notes(NamedTuple):
    """Recorded events, in order; empty arrays if not asked for."""

    kind: Ints
    device: Ints
    what: Ints  # task or message
    start_s: Floats
    end_s: Floats

    @classmethod
    def of(cls, size: int) -> Notes:
        ints, floats = np.zeros((3, size), np.int64), np.zeros((2, size))
        return cls(ints[0], ints[1], ints[2], floats[0], floats[1])


class Heap(NamedTuple):
    """A heap for compiled functions: least time first, ties by least key."""

    size: Ints  # [1]
    time: Floats
    key: Ints
    what: Ints


@inner
def heap_of(size: int) -> Heap:
    ints = np.empty((2, size), np.int64)
    return Heap(np.zeros(1, np.int64), np.empty(size), ints[0], ints[1])


@inlined
def push(heap: Heap, time: float, key: int, what: int) -> None:
    i = heap.size[0]
    heap.size[0] = i + 1
    while i > 0:
        up = (i - 1) // 2
        if not (time < heap.time[up] or (time == heap.time[up] and key < heap.key[up])):
            break
        heap.time[i], heap.key[i], heap.what[i] = heap.time[up], heap.key[up], heap.what[up]
        i = up
    heap.time[i], heap.key[i], heap.what[i] = time, key, what


@inlined
def pop(heap: Heap) -> int:
    top, size = heap.what[0], heap.size[0] - 1
    heap.size[0] = size
    time, key, what = heap.time[size], heap.key[size], heap.what[size]
    i = 0
    while 2 * i + 1 < size:
        low = 2 * i + 1
        if low + 1 < size and (
            heap.time[low + 1] < heap.time[low]
            or (heap.time[low + 1] == heap.time[low] and heap.key[low + 1] < heap.key[low])
        ):
            low += 1
        if time < heap.time[low] or (time == heap.time[low] and key < heap.key[low]):
            break
        heap.time[i], heap.key[i], heap.what[i] = heap.time[low], heap.key[low], heap.what[low]
        i = low
    if size > 0:
        heap.time[i], heap.key[i], heap.what[i] = time, key, what
    return top
