"""What a device does, one instruction at a time, and the program of all devices.

Index letters: `i` micro-batch, `p, q` devices, `k` variables, `s` segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Literal, TypeAlias

from netsplit.graph.ir import TRANSFER, Graph, Initializer, Region
from netsplit.placement.exchange import Exchange
from netsplit.placement.placement import device_in_turn
from netsplit.placement.sharding import Bundle, Slice, largest_slices, slices_of

__all__ = [
    "Backward",
    "BackwardPart",
    "Collective",
    "Forward",
    "Gather",
    "Instruction",
    "Program",
    "Recv",
    "Reduce",
    "Reduction",
    "Scatter",
    "Segment",
    "Send",
    "Step",
    "copies_of",
    "origin",
]

BackwardPart = Literal["whole", "input", "weight"]
"""``input``: gradients of inputs, and of parameters whose gradient cannot be put off; ``weight``: all other
parameters' gradients (Qi et al., Zero Bubble, ICLR 2024, section 2)."""

Reduction = Literal["gradients", "norm"]


@dataclass(frozen=True)
class Segment:
    """A convex run of nodes on one device: computed in one piece, forward and backward.

    `device` is the first of `replicas`, which take the micro-batches by `turns`; most often the only one.
    """

    index: int
    device: str
    nodes: tuple[str, ...]  # in graph order
    inputs: tuple[str, ...]  # variables from outside the segment
    outputs: tuple[str, ...]  # variables read outside the segment
    replicas: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()  # empty without replicas

    def on(self, i: int) -> str:
        return device_in_turn(self.turns or (self.device,), i)


@dataclass(frozen=True)
class Forward:
    """`recompute`: keep the inputs alone, and compute once more before the backward.

    `version` is how many of the iteration's optimiser steps the weights have seen that it uses.
    """

    segment: int
    microbatch: int
    recompute: bool = False
    version: int = 0

    def __str__(self) -> str:
        return f"forward of segment {self.segment}, micro-batch {self.microbatch}"


@dataclass(frozen=True)
class Backward:
    """On the weights that the forward used; `update` is the number of the Step that takes its gradients."""

    segment: int
    microbatch: int
    part: BackwardPart = "whole"
    update: int = 0

    def __str__(self) -> str:
        kind = {"whole": "backward", "input": "input backward", "weight": "weight backward"}[self.part]
        return f"{kind} of segment {self.segment}, micro-batch {self.microbatch}"


@dataclass(frozen=True)
class _Transfer:
    variable: str  # the transfer node's output, "k@q"
    source: str  # the variable k it copies
    microbatch: int
    peer: str  # the other device
    gradient: bool  # False: the value from p to q; True: its gradient from q to p
    tag: int  # unique in the program; rises along the program's one global order
    via: str = ""  # the copy "k@p" that is handed on; empty: k itself

    @property
    def read(self) -> str:
        """What the sender has: the variable, or the copy that it hands on."""
        return self.via or self.source

    @property
    def what(self) -> str:
        kind = "the gradient of " if self.gradient else ""
        return f"{kind}variable '{self.source}' of micro-batch {self.microbatch}"


@dataclass(frozen=True)
class Send(_Transfer):
    """Start sending; the device goes on at once, even if what it hands on has not arrived."""

    def __str__(self) -> str:
        return f"send of {self.what} to {self.peer}"


@dataclass(frozen=True)
class Recv(_Transfer):
    """Prepare to receive; the instruction that needs the tensor waits for it."""

    def __str__(self) -> str:
        return f"receive of {self.what} from {self.peer}"


_SHOWN = 16  # devices of a sum, at most, that are named


@dataclass(frozen=True)
class Collective:
    """What several devices do together; all `devices` have this instruction."""

    devices: tuple[str, ...]
    tag: int  # unique in the program, among Sends too
    number: int = 0  # of the Step

    @property
    def among(self) -> str:
        """Its devices, in a few words where there are many."""
        if len(self.devices) <= _SHOWN:
            return ", ".join(self.devices)
        return f"{self.devices[0]} to {self.devices[-1]}, {len(self.devices)} in all"


@dataclass(frozen=True)
class Gather(Collective):
    """Start to gather a bundle's parameters from their slices; what computes with them waits for it."""

    bundle: int = -1

    def __str__(self) -> str:
        return f"gathering of bundle {self.bundle} on {self.among}"


@dataclass(frozen=True)
class Scatter(Collective):
    """Start to sum a bundle's gradients, each slice on its device; this or the next step waits for it."""

    bundle: int = -1

    def __str__(self) -> str:
        return f"sum of bundle {self.bundle}'s gradients in slices over {self.among}"


@dataclass(frozen=True, kw_only=True)
class Reduce(Collective):
    """Start a sum over `devices`; the Step that follows waits for it.

    ``gradients``: of the parameters that these devices hold, and no others (`Program.summed`). ``norm``: the
    squares of all gradients, for clipping and to find overflow; it comes after the gradients' own sums.
    """

    kind: Reduction

    def __str__(self) -> str:
        what = "gradients" if self.kind == "gradients" else "the gradients' norm"
        return f"sum of {what} over {self.among}"


@dataclass(frozen=True)
class Step:
    """The optimiser's step on the device's own parameters; `number` counts them within the iteration.

    `fraction` is the part of the summed gradients that it takes: below 1 where they are to be a mean.
    """

    number: int = 0
    fraction: float = 1.0

    def __str__(self) -> str:
        return "optimiser step" if self.number == 0 else f"optimiser step {self.number}"


Instruction: TypeAlias = Forward | Backward | Send | Recv | Reduce | Gather | Scatter | Step


@dataclass(frozen=True)
class Program:
    """One list of instructions per device, compiled from a placed graph and a schedule.

    `graph` holds the transfer nodes of the thesis's Algorithm 2; `order` is the one global order that
    all devices' lists agree with: the device of each instruction, one after another.
    """

    graph: Graph
    device_of: dict[str, str]  # transfer nodes included: on the receiving device
    devices: tuple[str, ...]  # in rank order; a device may have nothing to do
    segments: tuple[Segment, ...]
    instructions: dict[str, tuple[Instruction, ...]]
    order: tuple[str, ...]
    microbatches: int
    training: bool
    replicas: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """First replica -> all of them, where a device's segments have more than one."""
    turns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """First replica -> the replica that computes each micro-batch (`device_in_turn`)."""
    exchanges: tuple[Exchange, ...] = ()
    """Exchanges of variables that devices hand on to one another."""
    tail: Graph | None = None
    """The same graph for a smaller last micro-batch."""
    lasting: frozenset[str] = frozenset()
    """Transfer nodes' outputs "k@q" that are the same for all micro-batches: q is sent them once, with its
    first micro-batch; gradients of all of its micro-batches go back with the last one's, as one sum."""
    pooled: frozenset[str] = frozenset()
    """Parts of parameters that a segment reads for others of its device: their gradients of all micro-batches
    are summed until its last backward, which takes the sum."""
    bundles: tuple[Bundle, ...] = ()
    """Bundles of parameters whose states are in slices."""
    kept_results: frozenset[str] = frozenset()
    """Nodes of segments that are computed again, whose results are kept (`graph.remembered`)."""

    @cached_property
    def asynchronous(self) -> bool:
        """Whether devices step within the batch, on means over some micro-batches."""
        steps = (ins for each in self.instructions.values() for ins in each if isinstance(ins, Step))
        return any(ins.number > 0 or ins.fraction != 1.0 for ins in steps)

    def computing(self, device: str) -> int:
        """Number of a device's instructions before its first sum or step."""
        own = self.instructions[device]
        return next((n for n, ins in enumerate(own) if isinstance(ins, Step | Reduce)), len(own))

    @cached_property
    def steps_last(self) -> bool:
        """Whether no device computes after it has stepped."""
        return all(
            isinstance(ins, Step | Reduce | Gather)
            for name, each in self.instructions.items()
            for ins in each[self.computing(name) :]
        )

    @cached_property
    def feeds(self) -> dict[str, tuple[str, ...]]:
        """Device -> the graph's input variables that its segments read."""
        read: dict[str, dict[str, None]] = {d: {} for d in self.devices}
        for segment in self.segments:
            own = dict.fromkeys(k for k in segment.inputs if k in self.graph.input_variables)
            for device in segment.replicas or (segment.device,):
                read[device].update(own)
        return {d: tuple(names) for d, names in read.items()}

    def fed(self, device: str, i: int) -> tuple[str, ...]:
        """Input variables that a device reads of micro-batch i; replicas read only their own."""
        home = next((first for first, each in self.replicas.items() if device in each), device)
        return self.feeds[device] if self.on(home, i) == device else ()

    def on(self, device: str, i: int) -> str:
        """The device that computes micro-batch i of what is placed on `device`."""
        return device_in_turn(self.turns.get(device, (device,)), i)

    def sent_with(self, k: str, device: str, i: int) -> int:
        """The micro-batch with which a device is sent the copy "k@q" that it reads for micro-batch i."""
        return self._first[k, device] if k in self.lasting else i

    def gives_back(self, k: str, i: int) -> bool:
        """Whether the gradient of a copy "k@q", if any, is sent with micro-batch i."""
        return k not in self.lasting or i in self._returned.get((k, None), ())

    def pools_taken(self, device: str) -> frozenset[tuple[str, int]]:
        """(pooled variable, micro-batch whose backward on the device takes the sum of its gradients)."""
        own = self.instructions[device] if self.pooled else ()
        backs = (ins for ins in own if isinstance(ins, Backward) and ins.part != "weight")
        last = {ins.segment: ins.microbatch for ins in backs}
        every = ((k, i) for s, i in last.items() for k in self.segments[s].outputs)
        return frozenset(each for each in every if each[0] in self.pooled)

    def handed_on(self, send: Send, device: str) -> tuple[tuple[str, int, bool], ...]:
        """(variable, micro-batch, gradient?) that a device receives before it can send."""
        if not send.gradient:
            return ((send.via, self.sent_with(send.via, device, send.microbatch), False),) if send.via else ()
        return tuple(
            (copy, i, True)
            for copy in copies_of(self.graph, send.variable)
            for i in self._returned.get((copy, None if copy in self.lasting else send.microbatch), ())
        )

    @cached_property
    def _returned(self) -> dict[tuple[str, int | None], tuple[int, ...]]:
        """(copy, micro-batch or None if it lasts) -> micro-batches with which its gradient is sent."""
        returned: dict[tuple[str, int | None], tuple[int, ...]] = {}
        for each in self.instructions.values():
            for ins in each:
                if isinstance(ins, Send) and ins.gradient:
                    key = ins.variable, None if ins.variable in self.lasting else ins.microbatch
                    returned[key] = (*returned.get(key, ()), ins.microbatch)
        return returned

    @cached_property
    def _first(self) -> dict[tuple[str, str], int]:
        """(lasting copy, device) -> micro-batch with which it arrives."""
        return {
            (ins.variable, device): ins.microbatch
            for device, each in self.instructions.items()
            for ins in each
            if isinstance(ins, Recv) and ins.variable in self.lasting and not ins.gradient
        }

    @cached_property
    def holders(self) -> dict[str, tuple[str, ...]]:
        """Initializer -> devices that hold it, as replicas or for operators that read copies."""
        readers: dict[str, set[str]] = {}
        for node in self.graph:
            for k in node.initializers:
                readers.setdefault(k, set()).add(self.device_of[node.name])
        rank = {device: p for p, device in enumerate(self.devices)}
        return {
            k: tuple(q for p in sorted(homes, key=rank.__getitem__) for q in self.replicas.get(p, (p,)))
            for k, homes in readers.items()
        }

    @cached_property
    def trained(self) -> dict[str, None]:
        """Parameters that the graph reads and trains, in the order of `holders`."""
        return {k: None for k in self.holders if self.graph.initializers[k].requires_grad}

    @cached_property
    def held(self) -> dict[str, tuple[str, ...]]:
        every = self.holders.items()
        return {device: tuple(k for k, devices in every if device in devices) for device in self.devices}

    def copies_on(self, device: str) -> frozenset[str]:
        """Initializers on a device that another device holds first."""
        return frozenset(k for k in self.held[device] if self.holders[k][0] != device)

    def summed(self, devices: Sequence[str]) -> tuple[str, ...]:
        """Parameters whose gradients these devices sum, in the same order everywhere."""
        return self._summed.get(frozenset(devices), ())

    @cached_property
    def _summed(self) -> dict[frozenset[str], tuple[str, ...]]:
        """Devices -> the parameters that exactly these hold."""
        held: dict[frozenset[str], list[str]] = {}
        for k in self.trained:
            held.setdefault(frozenset(self.holders[k]), []).append(k)
        return {devices: tuple(names) for devices, names in held.items()}

    @cached_property
    def slices(self) -> dict[str, tuple[Slice, ...]]:
        """Parameter with sharded states -> its slices, by device."""
        return slices_of(self.graph.initializers, self.bundles)

    @cached_property
    def let_go(self) -> frozenset[str]:
        """Parameters that are whole only while something computes with them."""
        return frozenset(k for each in self.bundles if each.level == "parameters" for k in each.names)

    def stepped(self, device: str) -> tuple[Initializer, ...]:
        """What the device's optimiser steps on: parameters, or its slices of them."""
        every = (self.graph.initializers[k] for k in self.held[device])
        return tuple(own for each in every if each.requires_grad for own in self._own(each, device))

    def kept(self, device: str) -> tuple[Initializer, ...]:
        """Parameters and buffers on the device while nothing is computed."""
        every = (self.graph.initializers[k] for k in self.held[device])
        own = (self._own(each, device) if each.name in self.let_go else (each,) for each in every)
        return tuple(chain.from_iterable(own))

    def _own(self, own: Initializer, device: str) -> tuple[Initializer, ...]:
        slices = self.slices.get(own.name)
        if slices is None:
            return (own,)
        return tuple(replace(own, shape=each.sizes(own)) for each in slices if each.device == device)

    @cached_property
    def most_of_bundle(self) -> tuple[tuple[int, int], ...]:
        return tuple(largest_slices(self.graph.initializers, bundle, self.slices) for bundle in self.bundles)

    @property
    def slice_regions(self) -> dict[str, Region]:
        """Slice -> its region in the model's own parameter."""
        every = ((self.graph.initializers[k], each) for k, own in self.slices.items() for each in own)
        return {each.named(own): each.region(own) for own, each in every}

    @property
    def transfers(self) -> int:
        """Tensors sent in one iteration."""
        return sum(isinstance(ins, Send) for each in self.instructions.values() for ins in each)

    def show(self) -> str:
        lines = [
            f"segment {s.index} on {s.device}: {len(s.nodes)} operators, {s.nodes[0]} to {s.nodes[-1]}"
            for s in self.segments
        ]
        for device in self.devices:
            lines.append(f"{device}:")
            lines += [f"  {n:4d} {ins}" for n, ins in enumerate(self.instructions[device])]
        return "\n".join(lines)


def copies_of(graph: Graph, k: str) -> tuple[str, ...]:
    """Transfer nodes' outputs "k@q" made from `k` itself, which may be such a copy."""
    return tuple(v for v in graph.variables[k].consumers if graph.nodes[v].op == TRANSFER)


def origin(graph: Graph, k: str) -> str:
    """The variable that `k` is, or is a direct or indirect copy of."""
    producer = graph.variables[k].producer
    while producer is not None and graph.nodes[producer].op == TRANSFER:
        k = graph.nodes[producer].inputs[0]
        producer = graph.variables[k].producer
    return k
