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

from collections.abc import Hashable, Mapping
from fractions import Fraction
from math import ceil
from types import MappingProxyType
from typing import TypeAlias

from netsplit.cluster.cluster import Cluster
from netsplit.graph.deferral.deferrable import deferrable_nodes
from netsplit.graph.ir import Graph, once_of
from netsplit.graph.storage import storage_bytes
from netsplit.profile.costs import Costs, NodeBytes, Offload, StepScratch
from netsplit.program.check import Arrivals
from netsplit.program.instructions import Backward, Program, Segment
from netsplit.simulate.lifetimes.device_memory import DeviceMemory
from netsplit.simulate.lifetimes.segment import OfSize, SegmentMemory
from netsplit.simulate.lifetimes.storages import MemoryProfile

__all__ = ["MemoryProfile", "costed_profiles", "memory_profile", "predicted_peak_bytes"]

Transients: TypeAlias = Mapping[str, Mapping[str, NodeBytes]]  # device -> node -> bytes

NOTHING = Offload()
_NO_TRANSIENTS: Mapping[str, NodeBytes] = MappingProxyType({})


def costed_profiles(program: Program, cluster: Cluster, costs: Costs) -> dict[str, MemoryProfile]:
    """`memory_profile` with all that costs know of a cluster's devices."""
    transients, scratch = costs.transients(cluster.devices), costs.step_scratch(cluster.devices)
    return memory_profile(program, costs.alpha, transients, costs.offload, scratch)


def predicted_peak_bytes(
    program: Program, alpha: int, transients: Transients | None = None
) -> dict[str, int]:
    """Device -> largest number of bytes alive at once in one iteration after the first."""
    profiles = memory_profile(program, alpha, transients)
    return {device: profile.peak_bytes for device, profile in profiles.items()}


def memory_profile(
    program: Program,
    alpha: int,
    transients: Transients | None = None,
    offload: Offload = NOTHING,
    scratch: Mapping[str, StepScratch] | None = None,
) -> dict[str, MemoryProfile]:
    """Device -> when its bytes peak and what they are.

    Args:
        alpha: bytes of training state per byte of parameter (`Costs.alpha`); 2 means no moments.
        transients: of every device, what its nodes allocate for themselves (`Costs.transients`).
        offload: what lies in the host's memory (`Costs.offload`).
        scratch: of every device, what the optimiser's step allocates for itself (`Costs.step_scratch`).
    """
    arrivals, profiles, graphs = Arrivals.of(program), {}, [(program.graph, Fraction(1))]
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
                each.index: _segment(
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
            sizes.append(OfSize(graph, _own_bytes(graph), made))
        step = (scratch or {}).get(device, StepScratch())
        profiles[device] = DeviceMemory(
            program, device, alpha, sizes[0], sizes[-1], offload, arrivals, step
        ).run()
    return profiles


@once_of
def _own_bytes(graph: Graph) -> dict[str, int]:
    return storage_bytes(graph)


@once_of
def _segments_of(graph: Graph) -> dict[Hashable, tuple[SegmentMemory, Mapping[str, NodeBytes]]]:
    return {}


def _segment(
    graph: Graph,
    training: bool,
    segment: Segment,
    split: bool,
    transients: Mapping[str, NodeBytes],
    offloaded: bool,
    part: Fraction,
    kept: frozenset[str],
) -> SegmentMemory:
    """One for all replicas of a kind, and for all programs: its walks are the same.

    Args:
        split: whether its backwards are in two parts.
        transients: of its device's kind; told by identity, and held so that it stays theirs.
        part: of the samples that these are known of, to which they are taken to be in proportion.
        kept: nodes whose results stay where it is computed again.
    """
    known, key = _segments_of(graph), (id(transients), training, segment, split, offloaded, kept)
    if key not in known:
        deferred = deferrable_nodes(graph, segment.nodes) if split else frozenset[str]()
        own = {
            name: NodeBytes(ceil(part * each.forward), ceil(part * each.backward))
            for name in segment.nodes
            if (each := transients.get(name))
        }
        made = SegmentMemory(graph, training, segment, _own_bytes(graph), deferred, own, offloaded, kept)
        known[key] = made, transients
    return known[key][0]
