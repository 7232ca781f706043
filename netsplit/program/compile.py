"""From a placed graph and a schedule to a program.

    graph + placement ──► insert_transfers ──► cut_segments ──► one walk over schedule order ──► check

The walk emits a transfer's Send and Recv together, right after the computation that makes the
tensor. All devices' lists therefore agree with one global order of transfers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from netsplit.cluster.cluster import Cluster
from netsplit.graph.ir import TRANSFER, Graph
from netsplit.program.check import check_progress
from netsplit.program.instructions import Backward, Forward, Instruction, Program, Recv, Segment, Send, Step
from netsplit.program.schedules import Schedule
from netsplit.program.segments import cut_segments
from netsplit.program.transfers import insert_transfers

__all__ = ["compile_program"]


def compile_program(
    graph: Graph,
    device_of: Mapping[str, str],
    priority: Mapping[str, int],
    cluster: Cluster,
    schedule: Schedule,
    training: bool = True,
) -> Program:
    """Compile; without `training` the program has forwards only.

    Raises:
        DeadlockError: the instructions would wait in a circle (see `check_progress`).
    """
    placed, devices = insert_transfers(graph, device_of)
    segments = cut_segments(placed, devices, priority, schedule.fine_segments)
    walk = _Walk(placed, devices, segments, tuple(device.name for device in cluster.devices))
    for phase, s, i in schedule.forwards(walk.feeders):
        assert phase == "forward"
        walk.forward(s, i)
    if training:
        for _, s, i in schedule.backwards(walk.feeders):
            walk.backward(s, i)
        walk.step()
    program = Program(
        graph=placed,
        device_of=devices,
        devices=walk.names,
        segments=segments,
        instructions={name: tuple(each) for name, each in walk.lists.items()},
        order=tuple(walk.order),
        microbatches=schedule.microbatches,
        training=training,
    )
    check_progress(program)
    return program


class _Walk:
    def __init__(
        self,
        graph: Graph,
        device_of: Mapping[str, str],
        segments: tuple[Segment, ...],
        names: tuple[str, ...],
    ) -> None:
        self.graph = graph
        self.device_of = device_of
        self.segments = segments
        self.names = names
        self.lists: dict[str, list[Instruction]] = {name: [] for name in names}
        self.order: list[str] = []
        self.tag = 0
        self.maker = {k: s.index for s in segments for k in s.outputs}
        self.feeders = [
            sorted({self.maker[k] for k in map(self._source, s.inputs) if k in self.maker}) for s in segments
        ]
        self.trained = {s.index for s in segments if any(k in graph.carrying for k in s.outputs)}
        self.left: dict[tuple[str, int], int] = {}  # backwards still to come that read "k@q"

    def forward(self, s: int, i: int) -> None:
        segment = self.segments[s]
        self._emit(segment.device, Forward(s, i))
        for k in segment.outputs:
            for copy in self._copies(k):
                self._transfer(copy, k, i, segment.device, self.device_of[copy], gradient=False)

    def backward(self, s: int, i: int) -> None:
        if s not in self.trained:
            return
        segment = self.segments[s]
        self._emit(segment.device, Backward(s, i))
        for k in segment.inputs:
            source = self._source(k)
            if source == k or k not in self.graph.carrying:
                continue
            left = self.left.setdefault((k, i), self._backward_readers(k)) - 1
            self.left[k, i] = left
            if left == 0:
                home = self.segments[self.maker[source]].device
                self._transfer(k, source, i, segment.device, home, gradient=True)

    def step(self) -> None:
        for name in self.names:
            if any(self.segments[s].device == name for s in self.trained):
                self._emit(name, Step())

    def _transfer(self, copy: str, k: str, i: int, p: str, q: str, *, gradient: bool) -> None:
        shared: dict[str, Any] = {"variable": copy, "source": k, "microbatch": i, "gradient": gradient}
        self._emit(p, Send(peer=q, tag=self.tag, **shared))
        self._emit(q, Recv(peer=p, tag=self.tag, **shared))
        self.tag += 1

    def _emit(self, device: str, instruction: Instruction) -> None:
        self.lists[device].append(instruction)
        self.order.append(device)

    def _copies(self, k: str) -> list[str]:
        """Transfer outputs "k@q" of a variable, in the rank order of q."""
        copies = [v for v in self.graph.variables[k].consumers if self.graph.nodes[v].op == TRANSFER]
        return sorted(copies, key=lambda copy: self.names.index(self.device_of[copy]))

    def _source(self, k: str) -> str:
        producer = self.graph.variables[k].producer
        if producer is not None and self.graph.nodes[producer].op == TRANSFER:
            return self.graph.nodes[producer].inputs[0]
        return k

    def _backward_readers(self, k: str) -> int:
        return sum(k in segment.inputs and segment.index in self.trained for segment in self.segments)
