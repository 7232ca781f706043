"""What a device does, one instruction at a time, and the program of all devices.

Index letters: `i` micro-batch, `p, q` devices, `k` variables.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from netsplit.graph.ir import Graph

__all__ = ["Backward", "Forward", "Instruction", "Program", "Recv", "Segment", "Send", "Step"]


@dataclass(frozen=True)
class Segment:
    """A convex run of nodes on one device: computed in one piece, forward and backward."""

    index: int
    device: str
    nodes: tuple[str, ...]  # in graph order
    inputs: tuple[str, ...]  # variables from outside the segment
    outputs: tuple[str, ...]  # variables that something outside the segment reads


@dataclass(frozen=True)
class Forward:
    segment: int
    microbatch: int

    def __str__(self) -> str:
        return f"forward of segment {self.segment}, micro-batch {self.microbatch}"


@dataclass(frozen=True)
class Backward:
    segment: int
    microbatch: int

    def __str__(self) -> str:
        return f"backward of segment {self.segment}, micro-batch {self.microbatch}"


@dataclass(frozen=True)
class _Transfer:
    variable: str  # the transfer node's output, "k@q"
    source: str  # the variable k it copies
    microbatch: int
    peer: str  # the other device
    gradient: bool  # False: the value from p to q; True: its gradient from q to p
    tag: int  # unique in the program; rises along the program's one global order

    @property
    def what(self) -> str:
        kind = "the gradient of " if self.gradient else ""
        return f"{kind}variable '{self.source}' of micro-batch {self.microbatch}"


@dataclass(frozen=True)
class Send(_Transfer):
    """Start sending; the device goes on at once."""

    def __str__(self) -> str:
        return f"send of {self.what} to {self.peer}"


@dataclass(frozen=True)
class Recv(_Transfer):
    """Make ready to receive; the instruction that needs the tensor waits for it."""

    def __str__(self) -> str:
        return f"receive of {self.what} from {self.peer}"


@dataclass(frozen=True)
class Step:
    """The optimiser's step on the device's own parameters."""

    def __str__(self) -> str:
        return "optimiser step"


Instruction: TypeAlias = Forward | Backward | Send | Recv | Step


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

    @cached_property
    def feeds(self) -> dict[str, tuple[str, ...]]:
        """Device -> the graph's input variables that its segments read."""
        found: dict[str, dict[str, None]] = {d: {} for d in self.devices}
        inputs = set(self.graph.input_variables)
        for segment in self.segments:
            found[segment.device].update(dict.fromkeys(k for k in segment.inputs if k in inputs))
        return {d: tuple(names) for d, names in found.items()}

    @cached_property
    def initializer_device(self) -> dict[str, str]:
        """Initializer -> the one device that holds it."""
        return {k: self.device_of[node.name] for node in self.graph for k in node.initializers}

    @property
    def transfers(self) -> int:
        """Tensors sent in one iteration."""
        return sum(isinstance(ins, Send) for each in self.instructions.values() for ins in each)

    def show(self) -> str:
        """The program as text, one line an instruction."""
        lines = []
        for segment in self.segments:
            lines.append(
                f"segment {segment.index} on {segment.device}: {len(segment.nodes)} operators, "
                f"{segment.nodes[0]} to {segment.nodes[-1]}"
            )
        for device in self.devices:
            lines.append(f"{device}:")
            lines += [f"  {n:4d} {ins}" for n, ins in enumerate(self.instructions[device])]
        return "\n".join(lines)
