"""What every operator costs: seconds per device kind, and the optimiser's bytes per parameter byte, alpha.

Costs at any number of samples follow from two sizes of micro-batches, and several sizes timed in turn:

    seconds of an operator at n samples = (a + b n) f(n)     a, b: through what two sizes took
                                                             f: what all of n samples took beside others
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from heapq import nlargest
from math import ceil
from typing import Any

import numpy as np

from netsplit.cluster.catalogue import Rates
from netsplit.cluster.cluster import Device
from netsplit.errors import ConfigError
from netsplit.graph.arguments import storage_bytes, storage_of
from netsplit.graph.ir import Graph
from netsplit.settings import OffloadName

__all__ = [
    "ALL_OF_IT", "HOST_S_PER_BYTE", "Costs", "DeviceCosts", "NodeBytes", "NodeSeconds", "Offload",
    "OptimizerScratch", "PartCosts", "SizeSeconds", "StepScratch", "beside", "between", "offloaded",
    "saved_bytes", "together",
]  # fmt: skip

ALL_OF_IT = 1.0
"""`DeviceCosts.copy_s_per_byte` of a device that computes nothing while a transfer lasts."""

HOST_S_PER_BYTE = 1 / 12e9
"""Default between a device and pinned memory of its host: what 16 lanes of PCIe 3.0 carry."""


@dataclass(frozen=True)
class NodeSeconds:
    """Forward and backward seconds of one node at the graph's own (micro-)batch size.

    `weight_s` is the part of `backward_s` that ``Backward(part="weight")`` can put off.
    """

    forward_s: float
    backward_s: float
    weight_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s

    def scaled(self, speed: float) -> NodeSeconds:
        """The costs on a device that is `speed` times as fast."""
        return NodeSeconds(self.forward_s / speed, self.backward_s / speed, self.weight_s / speed)


@dataclass(frozen=True)
class NodeBytes:
    """Bytes that one node allocates while it runs, beyond what its graph tells.

    `forward` is beside inputs and outputs, with what its backward will read; `backward` beside what the
    forward saved and the gradients that come and go.
    """

    forward: int = 0
    backward: int = 0


@dataclass(frozen=True)
class PartCosts:
    """Measured costs of one operator that a rewrite has made."""

    seconds: NodeSeconds
    transient: NodeBytes = NodeBytes()


@dataclass(frozen=True)
class StepScratch:
    """What an optimiser's step allocates, in bytes per byte of a parameter; by default one tensor as
    large."""

    own: float = 1.0  # of the parameter it is at
    before: float = 0.0  # of the one before, which is still there
    every: float = 0.0  # of all at once

    def nbytes(self, sizes: Iterable[int]) -> int:
        """The most bytes, with parameters of these bytes in any order."""
        largest, second, *_ = (*nlargest(2, given := list(sizes)), 0, 0)
        more, less = max(self.own, self.before), min(self.own, self.before)
        return ceil(more * largest + less * second + self.every * sum(given))


@dataclass(frozen=True)
class OptimizerScratch:
    """Scratch memory of one optimiser's step."""

    on_cpu: StepScratch = StepScratch()
    on_accelerator: StepScratch = StepScratch()


_OFFLOADS: dict[tuple[bool, bool], OffloadName] = {
    (False, False): "none", (True, False): "optimizer", (False, True): "activations", (True, True): "both",
}  # fmt: skip


@dataclass(frozen=True)
class Offload:
    """What lies in the host's memory while a device does not compute with it."""

    optimizer: bool = False  # moments, between steps
    activations: bool = False  # what autograd saves within a segment, from its forward to its backward

    @classmethod
    def of(cls, name: OffloadName) -> Offload:
        return cls(*next(both for both, each in _OFFLOADS.items() if each == name))

    @property
    def name(self) -> OffloadName:
        return _OFFLOADS[self.optimizer, self.activations]

    def __bool__(self) -> bool:
        return self.optimizer or self.activations


@dataclass(frozen=True)
class DeviceCosts:
    """Seconds of everything that a device of one kind does. The defaults disturb nothing and take no time."""

    nodes: dict[str, NodeSeconds]
    step_s_per_byte: float = 0.0
    """Seconds of the optimiser's step, per byte of parameter."""
    instruction_s: float = 0.0
    """Overhead of each instruction."""
    message_s: float | None = None
    """What a Send or a Recv takes on the device; None: `instruction_s`."""
    contention: float = 1.0
    """How many times slower a computation is while another device of its host computes, at least 1; waiting
    for a processor comes on top (`slowdown`)."""
    copy_s_per_byte: float = 0.0
    """Seconds by which a transferred byte slows a computation at either end."""
    accumulate_s_per_byte: float = 0.0
    """Per byte of parameter, of adding a gradient to that of an earlier micro-batch."""
    transients: Mapping[str, NodeBytes] = field(default_factory=dict)
    """Bytes by node, for those that have any."""
    parts: Mapping[str, PartCosts] = field(default_factory=dict, repr=False)
    """Measured costs of operators that rewrites make, by `operator_keys.operator_key`."""
    host_s_per_byte: float = HOST_S_PER_BYTE
    """Between the device's memory and its host's, either way, for what is offloaded."""
    rates: Rates | None = field(default=None, repr=False)
    """By which seconds were predicted; None: they were measured, or given."""
    unsure: bool = False
    """Measurements of `contention` and `message_s` were unclear."""

    @property
    def message_overhead_s(self) -> float:
        return self.instruction_s if self.message_s is None else self.message_s

    def slowdown(self, computing: int, processors: float | None) -> float:
        """How many times longer a computation takes while several devices of its host compute.

            4 devices on 2 processors     computing   1     2     3     4
                                                      1     c    1.5 c  2 c

        Args:
            computing: devices of the host, this one counted, each with one thread.
            processors: that they take turns on; None: enough for all.
        """
        turns = 1.0 if processors is None else max(computing / max(processors, 1.0), 1.0)
        return turns * self.contention if computing > 1 else turns

    def scaled(self, speed: float) -> DeviceCosts:
        """Those of a device that is `speed` times as fast; `contention` and `host_s_per_byte` stay."""
        return replace(
            self,
            nodes={name: each.scaled(speed) for name, each in self.nodes.items()},
            parts={
                key: replace(each, seconds=each.seconds.scaled(speed)) for key, each in self.parts.items()
            },
            step_s_per_byte=self.step_s_per_byte / speed,
            instruction_s=self.instruction_s / speed,
            message_s=None if self.message_s is None else self.message_s / speed,
            copy_s_per_byte=self.copy_s_per_byte / speed,
            accumulate_s_per_byte=self.accumulate_s_per_byte / speed,
            rates=None if self.rates is None else self.rates.at(speed, self.rates.name),
        )


@dataclass(frozen=True)
class Costs:
    """What every node costs on every device kind.

    `alpha` is the bytes of training state per byte of parameter: the parameter, its gradient and
    the optimiser's moments (SGD 2, momentum 3, Adam 4; thesis, section 5.2.2).
    """

    devices: dict[str, DeviceCosts]  # by device kind
    alpha: int
    variable_copies: int | None = None
    """How often a variable's bytes count on a device that touches it, in (5-18). None: the micro-batches
    in flight, and one gradient. A graph file may state otherwise (0: a node's bytes include its output)."""
    predicted: bool = False  # by `profile.predict`, from the graph alone; else measured, or as a file says
    offload: Offload = Offload()
    """What is kept on the host; the seconds include its copies (`offloaded`)."""
    scratch: OptimizerScratch = OptimizerScratch()
    controller_s: float = 0.0
    """Seconds of an iteration beside what devices do: sending a batch, receiving its loss."""

    @property
    def device_alpha(self) -> int:
        """`alpha` of what stays on the device between steps."""
        return min(self.alpha, 2) if self.offload.optimizer else self.alpha

    def of(self, kind: str) -> DeviceCosts:
        """The costs of a device kind; empty where there are none, so that it can compute no node."""
        return self.devices.get(kind, DeviceCosts({}))

    def transients(self, devices: Iterable[Device]) -> dict[str, Mapping[str, NodeBytes]]:
        """What the nodes of every device allocate for themselves."""
        return {device.name: self.of(device.kind).transients for device in devices}

    def step_scratch(self, devices: Iterable[Device]) -> dict[str, StepScratch]:
        """What the optimiser's step allocates for itself on every device."""

        def on(device: Device) -> StepScratch:
            described = self.of(device.kind).rates is not None
            on_cpu = device.torch_device.startswith("cpu") and not described
            return self.scratch.on_cpu if on_cpu else self.scratch.on_accelerator

        return {device.name: on(device) for device in devices}

    def slowdowns(self, devices: Sequence[Device]) -> dict[str, tuple[float, ...]]:
        """`DeviceCosts.slowdown` of every device while 0, 1, ... all devices of its host compute."""
        mates = Counter(device.memory_host for device in devices)

        def row(device: Device) -> tuple[float, ...]:
            if device.memory_host is None:
                return 1.0, 1.0
            costs, counts = self.of(device.kind), range(mates[device.memory_host] + 1)
            return tuple(costs.slowdown(computing, device.processors) for computing in counts)

        return {device.name: row(device) for device in devices}

    def forward_s(self, node: str, kind: str) -> float:
        return self.devices[kind].nodes[node].forward_s

    def backward_s(self, node: str, kind: str) -> float:
        return self.devices[kind].nodes[node].backward_s

    def total_s(self, node: str, kind: str) -> float:
        return self.devices[kind].nodes[node].total_s

    def copies(self, in_flight: int) -> int:
        """How often a variable counts in (5-18): once per micro-batch in flight and for its gradient."""
        return in_flight + 1 if self.variable_copies is None else self.variable_copies

    def with_device(self, kind: str, **changes: Any) -> Costs:
        """Costs with fields of one kind's record changed."""
        return replace(self, devices=self.devices | {kind: replace(self.devices[kind], **changes)})

    def without_backward(self) -> Costs:
        """Costs whose backwards take no time."""
        devices = {
            kind: replace(each, nodes={v: NodeSeconds(s.forward_s, 0.0) for v, s in each.nodes.items()})
            for kind, each in self.devices.items()
        }
        return replace(self, devices=devices)

    def without_overlap(self) -> Costs:
        """Costs of devices that compute nothing during a transfer."""
        devices = {kind: replace(each, copy_s_per_byte=ALL_OF_IT) for kind, each in self.devices.items()}
        return replace(self, devices=devices)


def offloaded(costs: Costs, graph: Graph, name: OffloadName) -> Costs:
    """The costs with `name` kept in the host's memory; the same object for "none".

    Moments come and go in every step. What a node is the first to save leaves in its forward, and returns in
    the backward of the last that saved it. Copies do not overlap computations.

    Raises:
        ConfigError: the costs include another offload already.
    """
    asked = Offload.of(name)
    if asked == costs.offload or not (asked or costs.offload):
        return costs
    if costs.offload:
        raise ConfigError(f"offload is {name}, but the costs already include another offload: leave it out.")
    kinds = costs.devices.items()
    devices = {kind: _with_copies(each, graph, asked, costs.alpha) for kind, each in kinds}
    return replace(costs, devices=devices, offload=asked)


def _with_copies(costs: DeviceCosts, graph: Graph, asked: Offload, alpha: int) -> DeviceCosts:
    nodes, step_s = costs.nodes, costs.step_s_per_byte
    if asked.optimizer:
        step_s += 2 * max(alpha - 2, 0) * costs.host_s_per_byte
    if asked.activations:
        out, back = saved_bytes(graph)
        nodes = {
            name: NodeSeconds(
                each.forward_s + out.get(name, 0) * costs.host_s_per_byte,
                each.backward_s + back.get(name, 0) * costs.host_s_per_byte,
                each.weight_s,
            )
            for name, each in nodes.items()
        }
    return replace(costs, nodes=nodes, step_s_per_byte=step_s)


def saved_bytes(graph: Graph) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Bytes that leave in every node's forward, and those that return in its backward."""
    own = storage_bytes(graph)
    computed = {storage_of(graph, k) for node in graph for k in node.outputs if k}
    computed -= {storage_of(graph, k) for k in graph.input_variables}
    trained = [node for node in graph if not graph.requires_backward.isdisjoint(node.outputs)]
    first: dict[str, str] = {}
    last: dict[str, str] = {}
    for node in trained:
        for root in {storage_of(graph, k) for k in node.saved} & computed:
            first.setdefault(root, node.name)
            last[root] = node.name
    out, back = ({node.name: node.saved_bytes for node in trained} for _ in range(2))
    for root, name in first.items():
        out[name] += own[root]
        back[last[root]] += own[root]
    return out, back


TINY_S = 1e-12  # no step takes less


SizeSeconds = Mapping[str, Mapping[int, float]]


"""Device kind -> samples -> seconds of a whole micro-batch, forward and backward."""


def together(alone: Costs, known: Costs) -> Costs:
    """Costs of single devices, with contention and overheads as known of another size."""
    devices = {
        kind: replace(
            each,
            contention=(other := known.devices[kind]).contention,
            unsure=other.unsure,
            message_s=other.message_s,
            copy_s_per_byte=other.copy_s_per_byte,
        )
        for kind, each in alone.devices.items()
    }
    return replace(alone, devices=devices)


def between(low: Costs, high: Costs, small: int, large: int, samples: int) -> Costs:
    """Costs at a number of samples, on the line through two sizes, never falling; the rest as at the
    larger."""
    part = (samples - small) / (large - small) if large > small else 1.0

    def at(first: float, last: float) -> float:
        return max(min(first, last), 0.0) if last <= first else max(first + part * (last - first), 0.0)

    def on(few: DeviceCosts, many: DeviceCosts) -> DeviceCosts:
        nodes = {
            name: NodeSeconds(*map(at, astuple(few.nodes[name]), astuple(each)))
            for name, each in many.nodes.items()
        }
        none, transients = NodeBytes(), dict[str, NodeBytes]()
        for name in dict.fromkeys([*many.transients, *few.transients]):
            ends = (astuple(each.transients.get(name, none)) for each in (few, many))
            transients[name] = NodeBytes(*map(round, map(at, *ends)))
        return replace(many, nodes=nodes, transients=transients)

    devices = {kind: on(low.devices[kind], each) for kind, each in high.devices.items()}
    return replace(high, devices=devices)


def beside(line: Costs, usual_line: Costs, took: SizeSeconds, samples: int, usual: int) -> Costs:
    """Costs at a number of samples, scaled to what micro-batches of that size took beside the usual ones.

    Between measured sizes it interpolates; beyond them it scales the nearest by samples.

    Args:
        line, usual_line: costs by two sizes, of that number of samples and of the usual one.
    """

    def paced(kind: str, own: DeviceCosts) -> DeviceCosts:
        known = took.get(kind, {})
        line_s = sum(each.total_s for each in own.nodes.values())
        if usual not in known or len(known) < 2 or not line_s:
            return own
        nearest = min(max(samples, min(known)), max(known))
        at = float(np.interp(nearest, sorted(known), [known[n] for n in sorted(known)])) * samples / nearest
        usual_s = sum(each.total_s for each in usual_line.devices[kind].nodes.values())
        speed = line_s / max(usual_s, TINY_S) * known[usual] / at
        return replace(own, nodes={name: each.scaled(speed) for name, each in own.nodes.items()})

    return replace(line, devices={kind: paced(kind, own) for kind, own in line.devices.items()})
