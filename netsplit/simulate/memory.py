"""Predicted peak bytes of every device, from the lifetimes of tensors over its instructions.

Mirrors what the executor holds, storage by storage:

    all the time     parameters, buffers, the optimiser's moments, the batch; buffers that forwards write once
                     more, as they were, where the iteration can be taken back
    Forward          its inputs; inside, what operators return until its last use
    … to Backward    what autograd saved; the segment's inputs and outputs that carry a gradient; of one that
                     is computed again its inputs, and the buffers that it writes, as they were
    … to the end     in training a copy of the loss, and how many of its targets count
    Backward         gradients, from operator to operator; saved tensors go as they are used
    … its weight part  what convolutions and products read, and the gradients of their outputs
    … to Step        gradients of parameters; weights of older versions while a micro-batch is on them
    Reduce           the gradients once more, in one vector, until the next Reduce or the Step
    Send             the tensor, until the next computation is over; a small one until something arrives
                     that was made from it (`program.acknowledge`)
    Recv             the buffer, from the instruction on

Views and in-place results take no bytes of their own. What an operator allocates for itself counts while it
runs, as far as it was measured. Bytes are those of one iteration after the first.

Of what is offloaded (`Offload`) moments are here a bucket at a time, in a Step, and what autograd saved
within a segment in its backward, storage by storage; both are counted on the host else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import ceil
from types import MappingProxyType
from typing import TypeAlias

from netsplit.graph.deferral.deferrable import deferrable_nodes
from netsplit.graph.ir import Graph, once_of
from netsplit.graph.storage import storage_bytes
from netsplit.profile.costs import NodeBytes, Offload, StepScratch
from netsplit.program.check import Arrivals
from netsplit.program.instructions import Backward, Instruction, Program, Segment
from netsplit.simulate.lifetimes.device_memory import DeviceMemory
from netsplit.simulate.lifetimes.segment_memory import OfSize, SegmentMemory
from netsplit.simulate.lifetimes.storages import MemoryProfile

__all__ = ["MemoryProfile", "SegmentShapes", "memory_profile", "predicted_peak_bytes"]

Transients: TypeAlias = Mapping[str, Mapping[str, NodeBytes]]  # device -> node -> bytes

Scratch: TypeAlias = Mapping[str, StepScratch]

NOTHING = Offload()
_NO_TRANSIENTS: Mapping[str, NodeBytes] = MappingProxyType({})


def predicted_peak_bytes(
    program: Program,
    alpha: int,
    transients: Transients | None = None,
    offload: Offload = NOTHING,
    scratch: Scratch | None = None,
) -> dict[str, int]:
    """Device -> largest number of bytes alive at once in one iteration after the first.

    Args:
        alpha: bytes of training state per byte of parameter (`Costs.alpha`); 2 means no moments.
        transients: of every device, what its nodes allocate for themselves (`Costs.transients`).
        offload: what lies in the host's memory (`Costs.offload`).
        scratch: of every device, what the optimiser's step allocates for itself (`Costs.step_scratch`).
    """
    profiles = memory_profile(program, alpha, transients, offload, scratch)
    return {device: profile.peak_bytes for device, profile in profiles.items()}


def memory_profile(
    program: Program,
    alpha: int,
    transients: Transients | None = None,
    offload: Offload = NOTHING,
    scratch: Scratch | None = None,
) -> dict[str, MemoryProfile]:
    """Device -> when its bytes peak and what they are; arguments as of `predicted_peak_bytes`."""
    transients, arrivals = transients or {}, Arrivals.of(program)
    segments: dict[str, list[Segment]] = {device: [] for device in program.devices}
    for segment in program.segments:
        for device in segment.replicas or (segment.device,):
            segments[device].append(segment)
    usual = SegmentShapes(program.graph, program.training)
    last = usual
    if program.tail is not None:
        part = Fraction(program.tail.batch_size, program.graph.batch_size)
        last = SegmentShapes(program.tail, program.training, part)
    profiles = {}
    for device in program.devices:
        known = transients.get(device, _NO_TRANSIENTS)
        split = _split(program.instructions[device])
        sizes = [_of_size(each, segments[device], split, known, offload) for each in (usual, last)]
        step = (scratch or {}).get(device, StepScratch())
        alive = DeviceMemory(program, device, alpha, sizes[0], sizes[1], offload, arrivals, step)
        profiles[device] = alive.run()
    return profiles


def _of_size(
    shapes: SegmentShapes,
    segments: Sequence[Segment],
    split: Collection[int],
    transients: Mapping[str, NodeBytes],
    offload: Offload,
) -> OfSize:
    made = {s.index: shapes.of(s, s.index in split, transients, offload.activations) for s in segments}
    return OfSize(shapes.graph, shapes.own, made)


def _split(instructions: Sequence[Instruction]) -> set[int]:
    """Segments whose backwards are in two parts."""
    return {ins.segment for ins in instructions if isinstance(ins, Backward) and ins.part == "weight"}


@dataclass(frozen=True)
class SegmentShapes:
    """The bytes inside segments of one placed graph, made once for all programs that have the same ones.

    Args:
        part: of the samples that transients are known of, to which they are taken to be in proportion.
    """

    graph: Graph
    training: bool
    part: Fraction = Fraction(1)

    @cached_property
    def own(self) -> dict[str, int]:
        """See `storage_bytes`."""
        return storage_bytes(self.graph)

    def of(
        self, segment: Segment, split: bool, transients: Mapping[str, NodeBytes], offloaded: bool
    ) -> SegmentMemory:
        """One for all replicas of a kind, and for all programs: its walks are the same.

        Args:
            split: whether its backwards are in two parts.
            transients: of its device's kind.
        """
        known = _shapes_of(self.graph)
        wanted = _SegmentAsked(id(transients), self.training, segment, split, offloaded, transients)
        shape = known.get(wanted)
        if shape is None:
            deferred = deferrable_nodes(self.graph, segment.nodes) if split else frozenset[str]()
            own = {name: self._of_part(transients[name]) for name in segment.nodes if name in transients}
            shape = known[wanted] = SegmentMemory(
                self.graph, self.training, segment, self.own, deferred, own, offloaded
            )
        return shape

    def _of_part(self, each: NodeBytes) -> NodeBytes:
        return NodeBytes(ceil(self.part * each.forward), ceil(self.part * each.backward))


@once_of
def _shapes_of(graph: Graph) -> dict[_SegmentAsked, SegmentMemory]:
    return {}


@dataclass(frozen=True)
class _SegmentAsked:
    """What a segment's bytes depend on; transients by identity, and held so that it stays theirs."""

    identity: int
    training: bool
    segment: Segment
    split: bool
    offloaded: bool
    transients: Mapping[str, NodeBytes] = field(compare=False)
