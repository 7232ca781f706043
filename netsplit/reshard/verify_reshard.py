"""Checks a plan slowly and plainly; shares no code with what makes one.

every device of the destination gets each element of its piece once, and nothing else
who sends elements has them from the beginning, or got them by the hops that it waits for
a NIC, and a device inside its host, sends one thing at a time and receives one thing at a time
    between two devices one message follows another
a hop takes what its bytes take, and begins after what it waits for
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import pairwise
from math import prod

import numpy as np

from netsplit.errors import ReshardError
from netsplit.layout import Box, DeviceName, Layout
from netsplit.reshard.hops import Hop
from netsplit.reshard.plan import ReshardPlan

__all__ = ["verify_reshard"]

_CLOSE = 1e-9  # of a plan's seconds: what sums of floats may differ by


def verify_reshard(plan: ReshardPlan) -> None:
    """Refuse a plan that does not do what it says.

    Raises:
        ReshardError: the first thing that is wrong with it.
    """
    for wrong in (*_wrong_hops(plan), *_wrong_times(plan), *_wrong_arrivals(plan)):
        raise ReshardError(f"a plan from {plan.source.spec} to {plan.destination.spec} is wrong: {wrong}.")


def _wrong_hops(plan: ReshardPlan) -> Iterator[str]:
    """What is wrong with each hop: its sender lacks the slice, or it does not wait for it."""
    held = {device: _piece(plan.source, device, plan.shape) for device in plan.source.mesh.devices}
    for index, hop in enumerate(plan.hops):
        name = f"hop {index} from {hop.source} to {hop.destination}"
        if not all(0 <= before < index for before in hop.after):
            yield f"{name} waits for a hop that does not come before it"
            continue
        if not 0 <= hop.start < hop.stop <= _size(plan.tasks[hop.task].region):
            yield f"{name} sends no elements of its slice"
        box = held.get(hop.source)
        if box is not None and _inside(plan.tasks[hop.task].region, box):
            continue
        brought = [plan.hops[i] for i in hop.after]
        own = [each for each in brought if each.task == hop.task and each.destination == hop.source]
        reached = hop.start
        for each in sorted(own, key=lambda each: each.start):
            reached = max(reached, each.stop) if each.start <= reached else reached
        if reached < hop.stop:
            yield f"{name} sends what its source does not have"


def _wrong_times(plan: ReshardPlan) -> Iterator[str]:
    net = plan.network
    busy: dict[Hashable, list[tuple[float, float, int]]] = defaultdict(list)
    close = _CLOSE * max((end for _, end in plan.times), default=0.0)
    if len(plan.times) != len(plan.hops):
        yield f"it has {len(plan.hops)} hops but {len(plan.times)} times"
        return
    for index, (hop, (start, end)) in enumerate(zip(plan.hops, plan.times, strict=True)):
        a, b = net.host_of[hop.source], net.host_of[hop.destination]
        nbytes = (hop.stop - hop.start) * plan.itemsize
        latency_s = net.inside_latency_s if a == b else net.nic_latency_s
        passing_s = nbytes * (net.inside[a] if a == b else max(net.nic[a], net.nic[b]))
        if abs(end - start - latency_s - passing_s) > close or start < 0.0:
            yield f"hop {index} lasts {end - start} s, but its bytes take {latency_s + passing_s} s"
        if any(plan.times[before][1] > start + close for before in hop.after):
            yield f"hop {index} begins before what it waits for has ended"
        who = (hop.source, hop.destination) if a == b else (f"NIC of {a}", f"NIC of {b}")
        busy[who[0], "sends"].append((start, start + passing_s, index))
        busy[who[1], "receives"].append((start, start + passing_s, index))
        busy[hop.source, hop.destination].append((start, end, index))
    for nic, spans in busy.items():
        for (_, end, one), (start, _, other) in pairwise(sorted(spans)):
            if end > start + close:
                yield f"hops {one} and {other} overlap: both use {nic}"
    if plan.bound_s > plan.seconds + close:
        yield f"it takes {plan.seconds} s, below the bound of {plan.bound_s} s"


def _wrong_arrivals(plan: ReshardPlan) -> Iterator[str]:
    came: dict[tuple[DeviceName, int], list[Hop]] = defaultdict(list)
    for hop in plan.hops:
        came[hop.destination, hop.task].append(hop)
    boxes: dict[DeviceName, list[Box]] = defaultdict(list)
    for (device, index), hops in came.items():
        spans = sorted((hop.start, hop.stop) for hop in hops)
        ends = [0, *(stop for _, stop in spans)]
        if [start for start, _ in spans] != ends[:-1] or ends[-1] != _size(plan.tasks[index].region):
            yield f"{device} does not get each element of slice {index} once"
        boxes[device].append(plan.tasks[index].region)
    for index, task in enumerate(plan.tasks):
        for device in task.keepers:
            has = device in plan.source.mesh.devices
            if not has or not _inside(task.region, _piece(plan.source, device, plan.shape)):
                yield f"{device} keeps slice {index}, which it does not have"
            boxes[device].append(task.region)
    for device in {*boxes, *plan.destination.mesh.devices}:
        if device not in plan.destination.mesh.devices:
            yield f"{device} gets something, but is not in the destination"
        elif not _tiled(_piece(plan.destination, device, plan.shape), boxes[device]):
            yield f"what {device} gets is not its piece, each element once"


def _tiled(whole: Box, boxes: Sequence[Box]) -> bool:
    """Whether the boxes cover the whole, each place once, and nothing beside it."""
    boxes = [box for box in boxes if _size(box)]
    if not _size(whole):
        return not boxes
    marks = [sorted({*ends, *(end for box in boxes for end in box[d])}) for d, ends in enumerate(whole)]
    count = np.zeros([len(each) - 1 for each in marks], dtype=np.int64)
    for box in boxes:
        count[_cells(box, marks)] += 1
    expected = np.zeros_like(count)
    expected[_cells(whole, marks)] = 1
    return bool((count == expected).all())


def _cells(box: Box, marks: Sequence[Sequence[int]]) -> tuple[slice, ...]:
    return tuple(slice(each.index(a), each.index(b)) for (a, b), each in zip(box, marks, strict=True))


def _piece(layout: Layout, device: DeviceName, shape: Sequence[int]) -> Box:
    """The piece of a device by the specification: an S cuts, axis after axis, as `torch.chunk` does."""
    number = layout.mesh.devices.index(device)
    place: list[int] = []
    for size in reversed(layout.mesh.shape):
        number, rest = divmod(number, size)
        place.insert(0, rest)
    box: list[tuple[int, int]] = []
    sizes = iter(shape)
    for letter in layout.spec:
        if letter in "RS":
            box.append((0, next(sizes)))
        else:
            elements = range(*box.pop())
            n = layout.mesh.shape[int(letter)]
            step = (len(elements) + n - 1) // n
            piece = elements[step * place[int(letter)] :][:step] if step else elements
            box.append((piece.start, piece.stop))
    return tuple(box)


def _inside(inner: Box, outer: Box) -> bool:
    return all(outer[d][0] <= a <= b <= outer[d][1] for d, (a, b) in enumerate(inner))


def _size(box: Iterable[tuple[int, int]]) -> int:
    return prod(b - a for a, b in box)
