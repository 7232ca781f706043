"""The predicting interpreter: the instructions the runtime executes, in time instead of tensors.

A program becomes arrays, which `carry_out` runs; its notes become a timeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import NoReturn, TypeAlias

import numpy as np

from netsplit.cluster.cluster import Cluster
from netsplit.compiled import Floats, Ints, packed_rows
from netsplit.errors import ConfigError
from netsplit.profile.costs import Costs, NodeBytes, Offload, StepScratch
from netsplit.program.check import check_progress
from netsplit.program.instructions import Backward, Collective, Program, Recv, Segment, Send
from netsplit.simulate.carry_out import carry_out_noted
from netsplit.simulate.lifetimes.device_memory import DeviceMemory
from netsplit.simulate.lifetimes.segment import OfSize, own_bytes, segment_memory
from netsplit.simulate.lifetimes.storages import MemoryProfile
from netsplit.simulate.tasks import (
    COMPUTES,
    WAITS,
    DeviceSeconds,
    Key,
    Message,
    Notes,
    ProgramArrays,
    ProgramTasks,
    Task,
    missing_link,
    reduce_bytes,
    reduce_seconds,
    times_round,
)  # fmt: skip
from netsplit.simulate.timeline import GRADIENT_OF, Event, Timeline

__all__ = ["Run", "costed_profiles", "memory_profile", "predicted_peak_bytes", "simulate", "with_peaks"]


def simulate(program: Program, cluster: Cluster, costs: Costs, peaks: bool = True) -> Timeline:
    """Predicted timeline of one iteration in seconds, with the peak bytes of every device.

    Args:
        peaks: False leaves the bytes out, which are most of the work.

    An instruction first costs its device `instruction_s` of its kind (a Send or Recv `message_s`); a
    computation then waits for what it reads and lasts the sum of its operators' seconds, longer where
    `contention` or `copy_s_per_byte` of their kinds say so (`carry_out`). The iteration ends when all
    devices have finished and all their sends are over.

    Raises:
        DeadlockError: the program cannot complete (never so for what `compile_program` returns).
        NetSplitError: an operator without a measured cost, or a transfer without a link.
    """
    run = Run(program, cluster, costs)
    timeline = Timeline(run.events, run.iteration_s)
    return with_peaks(timeline, program, cluster, costs) if peaks else timeline


def with_peaks(timeline: Timeline, program: Program, cluster: Cluster, costs: Costs) -> Timeline:
    profiles = costed_profiles(program, cluster, costs)
    alive = {device: each.peak_bytes for device, each in profiles.items()}
    hosts = {device: each.host_bytes for device, each in profiles.items()} if costs.offload else {}
    return replace(timeline, peak_bytes=alive, host_bytes=hosts)


class Run:
    """One simulated iteration of a program; raises as `simulate`."""

    def __init__(self, program: Program, cluster: Cluster, costs: Costs) -> None:
        self.program = program
        self.messages = _Messages(program, cluster)
        of = {device.name: device for device in cluster.devices}
        devices = [of[name] for name in program.devices]
        own = DeviceSeconds.of(devices, cluster.nics, costs)
        tasks = ProgramTasks(program, cluster, costs)
        self.tasks: list[Task] = []  # of all devices
        work = self._work(tasks)
        self.notes = Notes.of(len(self.tasks) + len(work.tag) + len(work.waits))
        clock, at, arrived, self.noted = carry_out_noted(work, own, self.notes)
        self.clock, self.arrived = clock.tolist(), arrived.tolist()
        if at.tolist() != work.first[1:].tolist() or min(self.arrived, default=0.0) < 0:
            _stand_still(program)

    @property
    def iteration_s(self) -> float:
        return max((*self.clock, *self.arrived), default=0.0)

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """Events by time. Every device waits for its last send, as the executor does."""
        events = [*self._noted(), *self._last_waits()]
        return tuple(sorted(events, key=lambda event: (event.start_s, event.end_s, event.device)))

    def _work(self, tasks: ProgramTasks) -> ProgramArrays:
        messages, arrival = self.messages, self.messages.arrival
        first, overhead_s, meets = [0], list[float](), list[int]()
        waits, wait_from = list[int](), [0]
        for name in self.program.devices:
            for task in tasks.of[name]:
                self.tasks.append(task)
                meets.append(-1 if task.message is None else messages.of[task.message.tag])
                overhead_s.append(task.overhead_s)
                for key in task.keys:
                    if key not in arrival:
                        _stand_still(self.program)
                    waits.append(arrival[key])
                wait_from.append(len(waits))
            first.append(len(meets))
        handed, missing = messages.handed(tasks.handed_on)
        source, target, moving_s, moved, ends = np.array(messages.rows, float).reshape(-1, 5).T.copy()
        return ProgramArrays(
            _ints(first), np.array(overhead_s, float), np.array([task.seconds for task in self.tasks], float),
            _ints(meets), _ints(waits), _ints(wait_from[:-1]), _ints(wait_from[1:]), np.arange(len(source)),
            _ints(ends) + _ints(missing), packed_rows(handed) if any(handed) else _ints(()), _ints(source),
            _ints(target), moving_s, moved, packed_rows(messages.groups), packed_rows(messages.rings),
        )  # fmt: skip

    def _noted(self) -> Iterator[Event]:
        names, own = self.program.devices, self.messages
        for kind, d, n, start_s, end_s in zip(
            *(each[: self.noted].tolist() for each in self.notes), strict=True
        ):
            if kind == COMPUTES:
                task = self.tasks[n]
                assert task.kind is not None
                yield Event(names[d], task.kind, task.name, task.microbatch, start_s, end_s)
                continue
            message, received, nbytes = own.each[n]
            if kind == WAITS:
                yield _wait(names[d], received, start_s, end_s)
            elif isinstance(message, Collective):
                for name in (each for each in message.devices if each in own.rank):
                    yield Event(name, "reduce", str(message), -1, start_s, end_s, nbytes=nbytes)
            else:
                what = f"{GRADIENT_OF}{message.source}" if message.gradient else message.source
                yield Event(names[d], "send", what, message.microbatch, start_s, end_s, message.peer, nbytes)

    def _last_waits(self) -> Iterator[Event]:
        for d, name in enumerate(self.program.devices):
            clock = self.clock[d]
            own = [ins for ins in self.program.instructions[name] if isinstance(ins, Send | Collective)]
            for message in sorted(own, key=lambda ins: isinstance(ins, Collective)):
                end = self.arrived[self.messages.of[message.tag]]
                if end > clock:
                    yield _wait(name, message, clock, end)
                    clock = end


class _Messages:
    """A program's messages by tag, as rows of `ProgramArrays`."""

    def __init__(self, program: Program, cluster: Cluster) -> None:
        self.rank = {name: d for d, name in enumerate(program.devices)}
        self.of: dict[int, int] = {}  # tag -> number
        self.arrival: dict[Key, int] = {}
        self.each: list[tuple[Send | Collective, Message, int]] = []  # what its receiver has of it; its bytes
        self.rows: list[tuple[float, ...]] = []  # `ProgramArrays.source` to `nbytes`, and how many meet
        self.groups: list[list[int]] = []
        self.rings: list[list[int]] = []
        sent: dict[int, Send | Collective] = {}
        received: dict[int, Recv] = {}
        for each in program.instructions.values():
            for ins in each:
                if isinstance(ins, Recv):
                    received[ins.tag] = ins
                elif isinstance(ins, Send | Collective):
                    sent[ins.tag] = ins
        for tag in sorted(sent):
            message = sent[tag]
            if isinstance(message, Collective):
                self._add_sum(message, program, cluster)
            elif tag in received:
                self._add_transfer(message, received[tag], program, cluster)
            else:
                _stand_still(program)
        if not received.keys() <= sent.keys():
            _stand_still(program)

    def _add_transfer(self, send: Send, recv: Recv, program: Program, cluster: Cluster) -> None:
        link = recv.peer, send.peer
        if link not in cluster.links:
            raise ConfigError(missing_link(*link))
        p, q, nbytes = self.rank[recv.peer], self.rank[send.peer], program.graph.variables[send.source].nbytes
        self.of[send.tag] = self.arrival[recv.variable, recv.microbatch, recv.gradient] = len(self.each)
        self.each.append((send, recv, nbytes))
        self.rows.append((p, q, cluster.links[link].seconds(nbytes), nbytes, 2))

    def _add_sum(self, reduce: Collective, program: Program, cluster: Cluster) -> None:
        self.of[reduce.tag] = len(self.each)
        here = [name for name in reduce.devices if name in self.rank]
        self.arrival.update({(reduce.tag, name): len(self.each) for name in here})
        nbytes, ring = reduce_bytes(program, reduce), cluster.ring(reduce.devices)
        moved = times_round(reduce) * (len(ring) - 1) / len(ring) * nbytes if ring else 0.0
        seconds = reduce_seconds(program, cluster, reduce)
        self.each.append((reduce, reduce, nbytes))
        self.rows.append((-1 - len(self.groups), -1, seconds, moved, len(here)))
        self.groups.append([self.rank[name] for name in here])
        self.rings.append([self.rank[p] * len(self.rank) + self.rank[q] for p, q in ring])

    def handed(self, handed_on: Mapping[int, Sequence[Key]]) -> tuple[list[list[int]], list[int]]:
        """Messages that hand each message on; how many each hands on."""
        handed: list[list[int]] = [[] for _ in self.each]
        missing = [0] * len(handed)
        for tag, keys in handed_on.items():
            missing[self.of[tag]] = len(keys)
            for key in keys:
                handed[self.arrival[key]].append(self.of[tag])
        return handed, missing


def _wait(device: str, message: Message, start_s: float, end_s: float) -> Event:
    if isinstance(message, Collective):
        return Event(device, "wait", str(message), -1, start_s, end_s, message.among)
    return Event(device, "wait", message.what, message.microbatch, start_s, end_s, message.peer)


def _stand_still(program: Program) -> NoReturn:
    check_progress(program)
    raise AssertionError("the simulator is stuck in a program that was proved to complete")


def _ints(values: Sequence[float] | Floats) -> Ints:
    return np.array(values, np.int64)


Transients: TypeAlias = Mapping[str, Mapping[str, NodeBytes]]  # device -> node -> bytes

_NOTHING = Offload()
_NO_TRANSIENTS: Mapping[str, NodeBytes] = MappingProxyType({})


def costed_profiles(program: Program, cluster: Cluster, costs: Costs) -> dict[str, MemoryProfile]:
    """`memory_profile` with the costs' knowledge of the cluster."""
    transients, scratch = costs.transients(cluster.devices), costs.step_scratch(cluster.devices)
    return memory_profile(program, costs.alpha, transients, costs.offload, scratch)


def predicted_peak_bytes(
    program: Program, alpha: int, transients: Transients | None = None
) -> dict[str, int]:
    """Device -> peak bytes of an iteration after the first."""
    profiles = memory_profile(program, alpha, transients)
    return {device: profile.peak_bytes for device, profile in profiles.items()}


def memory_profile(
    program: Program,
    alpha: int,
    transients: Transients | None = None,
    offload: Offload = _NOTHING,
    scratch: Mapping[str, StepScratch] | None = None,
) -> dict[str, MemoryProfile]:
    """Device -> its peak bytes and what they consist of.

    `alpha` is as `Costs.alpha`, 2 without moments; `transients`, `offload` and `scratch` as in `Costs`.
    """
    profiles, graphs = {}, [(program.graph, Fraction(1))]
    if program.tail is not None:
        graphs.append((program.tail, Fraction(program.tail.batch_size, program.graph.batch_size)))
    segments: dict[str, list[Segment]] = {device: [] for device in program.devices}
    for segment in program.segments:
        for device in segment.replicas or (segment.device,):
            segments[device].append(segment)
    for device in program.devices:
        ins = program.instructions[device]
        split = {each.segment for each in ins if isinstance(each, Backward) and each.part == "weight"}
        known = (transients or {}).get(device, _NO_TRANSIENTS)
        sizes = []
        for graph, part in graphs:
            made = {
                each.index: segment_memory(
                    graph,
                    program.training,
                    each,
                    each.index in split,
                    known,
                    offload.activations,
                    part,
                    program.kept_results.intersection(each.nodes),
                )
                for each in segments[device]
            }
            sizes.append(OfSize(graph, own_bytes(graph), made))
        step = (scratch or {}).get(device, StepScratch())
        profiles[device] = DeviceMemory(program, device, alpha, sizes[0], sizes[-1], offload, step).run()
    return profiles
