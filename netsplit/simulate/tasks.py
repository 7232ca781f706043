"""What each device has to do, instruction by instruction, with the seconds of each: the simulator's input.

Devices, tasks and messages are given to compiled functions as arrays.

Forward                ─► forward                     waits for the copies it reads
Backward               ─► [recompute] ─► backward     waits for gradients of its outputs from elsewhere
Backward(part weight)  ─► weight
Send, Recv, Reduce     ─► both ends, or all of the group, meet; a Send that hands on goes once that is there
Step                   ─► step                        waits for the sums that were started before it
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from netsplit.cluster.cluster import Cluster, Device, Nic
from netsplit.compiled import Floats, Ints, Packed, inlined, inner
from netsplit.errors import ConfigError
from netsplit.graph.ir import Graph
from netsplit.profile.costs import Costs
from netsplit.program.check import needs
from netsplit.program.instructions import (
    Backward,
    Collective,
    Forward,
    Gather,
    Program,
    Recv,
    Reduce,
    Scatter,
    Segment,
    Send,
    Step,
)
from netsplit.program.segments import SegmentSeconds, segment_seconds
from netsplit.program.transfers import bundles_used
from netsplit.simulate.timeline import EventKind

__all__ = [
    "COMPUTES", "MOVES", "WAITS", "DeviceSeconds", "Heap", "Key", "Message", "Notes", "ProgramArrays",
    "ProgramTasks", "Task", "heap_of", "pop", "push", "reduce_bytes", "reduce_seconds", "times_round",
]  # fmt: skip

Message: TypeAlias = Send | Recv | Collective
Key: TypeAlias = tuple[str, int, bool] | tuple[int, str]
"""What a task waits for: (variable, micro-batch, gradient?) of a transfer, (tag, device) of a sum."""


class Task(NamedTuple):
    """One computation, or one end of a transfer or sum."""

    overhead_s: float
    keys: tuple[Key, ...]  # that it waits for
    kind: EventKind | None  # None: a message
    name: str
    microbatch: int
    seconds: float
    message: Message | None


class ProgramTasks:
    """The tasks of every device of a program, in order; raises NetSplitError for an unmeasured operator."""

    def __init__(self, program: Program, cluster: Cluster, costs: Costs) -> None:
        self.program = program
        self.costs = costs
        self.kinds = {device.name: device.kind for device in cluster.devices}
        self.seconds = segment_seconds(
            program.graph, program.segments, costs, self.kinds, program.kept_results
        )
        self.reads, self.gradients = _needed(program)
        handing_on = _handing_on(program.graph, program.lasting)
        self.trainable = [_trainable_bytes(program, each, handing_on) for each in program.segments]
        self.summed = _summed_bytes(program)
        self.names = [f"segment {s.index}" for s in program.segments]
        self.again = {
            (ins.segment, ins.microbatch)
            for each in program.instructions.values()
            for ins in each
            if isinstance(ins, Forward) and ins.recompute
        }
        self.handed_on: dict[int, tuple[tuple[str, int, bool], ...]] = {
            ins.tag: keys
            for device, each in program.instructions.items()
            for ins in each
            if isinstance(ins, Send) and (keys := program.handed_on(ins, device))
        }
        """Tag of a Send -> what must have come to its device before."""
        self.of = {name: list(self._of(name)) for name in program.devices}

    def _of(self, device: str) -> Iterator[Task]:
        costs, seconds = self.costs.of(self.kinds[device]), self.seconds[self.kinds[device]]
        overhead_s, message_s = costs.instruction_s, costs.message_overhead_s
        step_s = sum(init.nbytes for init in self.program.stepped(device)) * costs.step_s_per_byte
        adding_s = costs.accumulate_s_per_byte
        added: set[tuple[int, int]] = set()  # (segment, step) with a gradient
        summed: set[int] = set()  # segments that have one of what lasts
        sums: list[Key] = []  # started and not yet waited for
        reading, _ = bundles_used(self.program, device)
        gathering: dict[int, Key] = {}  # by bundle
        for ins in self.program.instructions[device]:
            if isinstance(ins, Forward):
                reads, i = self.reads[ins.segment], ins.microbatch
                keys: tuple[Key, ...] = tuple((k, self.program.sent_with(k, device, i), False) for k in reads)
                keys += _taken(gathering, reading.get(ins.segment, ()))
                name = self.names[ins.segment]
                yield Task(
                    overhead_s, keys, "forward", name, ins.microbatch, seconds.forward[ins.segment], None
                )
            elif isinstance(ins, Backward):
                more_s = 0.0
                if adding_s and ins.part != "input":
                    if (ins.segment, ins.update) in added:
                        more_s = adding_s * self.trainable[ins.segment]
                    added.add((ins.segment, ins.update))
                if adding_s and ins.part != "weight" and (nbytes := self.summed.get((ins.segment, device))):
                    more_s += adding_s * nbytes if ins.segment in summed else 0.0
                    summed.add(ins.segment)
                whole = () if ins.part == "weight" else _taken(gathering, reading.get(ins.segment, ()))
                yield from self._backward(ins, overhead_s, seconds, more_s, whole)
            elif isinstance(ins, Step):
                yield Task(overhead_s, tuple(sums), "step", str(ins), -1, step_s, None)
                sums = []
            elif isinstance(ins, Gather):
                last = self.program.bundles[ins.bundle].level != "parameters"  # one after another, at the end
                earlier = _taken(gathering, tuple(gathering) if last else (ins.bundle,))
                yield Task(overhead_s, earlier, None, "", -1, 0.0, ins)
                gathering[ins.bundle] = (ins.tag, device)
            elif isinstance(ins, Collective):
                yield Task(overhead_s, tuple(sums), None, "", -1, 0.0, ins)
                sums = [(ins.tag, device)]
            else:
                yield Task(message_s, (), None, "", ins.microbatch, 0.0, ins)

    def _backward(
        self, ins: Backward, overhead_s: float, seconds: SegmentSeconds, more_s: float, whole: tuple[Key, ...]
    ) -> Iterator[Task]:
        s, i, name = ins.segment, ins.microbatch, self.names[ins.segment]
        if ins.part == "weight":
            yield Task(overhead_s, (), "weight", name, i, seconds.weight[s] + more_s, None)
            return
        if (s, i) in self.again:
            yield Task(overhead_s, whole, "recompute", name, i, seconds.again[s], None)
            overhead_s, whole = 0.0, ()
        keys: tuple[Key, ...] = tuple(
            (k, i, True) for k in self.gradients[s] if self.program.gives_back(k, i)
        )
        own_s = seconds.backward[s]
        if ins.part == "input":
            own_s = max(own_s - seconds.weight[s], 0.0)
        yield Task(overhead_s, keys + whole, "backward", name, i, own_s + more_s, None)


def _taken(gathering: dict[int, Key], bundles: tuple[int, ...]) -> tuple[Key, ...]:
    return tuple(gathering.pop(b) for b in bundles if b in gathering)


def reduce_bytes(program: Program, reduce: Collective) -> int:
    """Bytes of a sum or gathering; 0 for a norm, a single number."""
    if not isinstance(reduce, Reduce):
        assert isinstance(reduce, Gather | Scatter)
        return len(reduce.devices) * program.most_of_bundle[reduce.bundle][isinstance(reduce, Scatter)]
    if reduce.kind == "norm":
        return 0
    return sum(program.graph.initializers[k].nbytes for k in program.summed(reduce.devices))


def reduce_seconds(program: Program, cluster: Cluster, reduce: Collective) -> float:
    """See `Cluster.ring_seconds`; raises ConfigError for a missing link."""
    for p, q in cluster.ring(reduce.devices):
        if (p, q) not in cluster.links:
            raise ConfigError(missing_link(p, q))
    return cluster.ring_seconds(reduce_bytes(program, reduce), reduce.devices, times_round(reduce))


def times_round(reduce: Collective) -> int:
    """How often each part of a sum or gathering goes round the ring."""
    return 2 if isinstance(reduce, Reduce) else 1


def missing_link(source: str, target: str) -> str:
    return (
        f"the cluster has no link from {source} to {target}, which the program uses: "
        "give it in the cluster file, or probe the links."
    )


def _trainable_bytes(program: Program, segment: Segment, handing_on: Collection[str]) -> int:
    """Bytes of parameters to whose gradients a backward adds, without those added elsewhere."""
    graph = program.graph
    used = {k for name in segment.nodes if name not in handing_on for k in graph.nodes[name].initializers}
    return sum(graph.initializers[k].nbytes for k in used if graph.initializers[k].requires_grad)


def _handing_on(graph: Graph, lasting: Collection[str]) -> set[str]:
    handing: set[str] = set()
    for node in reversed(list(graph)) if lasting else ():
        readers = [v for k in node.outputs if k for v in graph.variables[k].consumers]
        if readers and all(v in lasting or v in handing for v in readers):
            handing.add(node.name)
    return handing


def _summed_bytes(program: Program) -> dict[tuple[int, str], int]:
    """(segment, device) -> bytes of lasting variables' gradients that its backward adds to earlier ones."""
    summed: dict[tuple[int, str], int] = {}
    known: set[tuple[str, str]] = set()
    for segment in program.segments if program.lasting else ():
        for k in segment.inputs:
            if k in program.lasting and k in program.graph.requires_backward:
                for device in segment.replicas or (segment.device,):
                    if (k, device) not in known:
                        known.add((k, device))
                        nbytes = program.graph.variables[k].nbytes
                        summed[segment.index, device] = summed.get((segment.index, device), 0) + nbytes
    return summed


def _needed(program: Program) -> tuple[list[list[str]], list[list[str]]]:
    """The transfers that each segment's Forward and Backward wait for."""
    planned = {
        ins.variable
        for each in program.instructions.values()
        for ins in each
        if isinstance(ins, Recv) and ins.gradient
    }
    every = range(program.microbatches if program.lasting else 1)
    forward = [[k for k, _, _ in needs(program, Forward(s.index, 0))] for s in program.segments]
    backward = [
        list(
            dict.fromkeys(
                k for i in every for k, _, _ in needs(program, Backward(s.index, i)) if k in planned
            )
        )
        for s in program.segments
    ]
    return forward, backward


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
    """Tasks of the devices, and the messages between them: transfers, sums, gatherings.

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
