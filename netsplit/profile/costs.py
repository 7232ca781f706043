"""What every operator costs: seconds per device kind, and the optimiser's bytes per parameter byte."""

from __future__ import annotations

from dataclasses import dataclass, field

from netsplit.profile.memory import copies_alive

__all__ = ["Costs", "NodeSeconds"]


@dataclass(frozen=True)
class NodeSeconds:
    """Forward and backward seconds of one node at the graph's own (micro-)batch size.

    `weight_s` is the part of `backward_s` that can be put off: the gradients of parameters which
    ``Backward(part="weight")`` computes.
    """

    forward_s: float
    backward_s: float
    weight_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class Costs:
    """Seconds of every node on every device kind.

    `alpha` is the bytes of training state per byte of parameter: the parameter, its gradient and
    the optimiser's moments (SGD 2, momentum 3, Adam 4; thesis, section 5.2.2).
    """

    seconds: dict[str, dict[str, NodeSeconds]]  # device kind -> node name -> seconds
    alpha: int
    step_seconds_per_byte: dict[str, float] = field(default_factory=dict)  # device kind -> optimiser step
    instruction_s: dict[str, float] = field(default_factory=dict)  # device kind -> overhead of each
    message_s: dict[str, float] = field(default_factory=dict)
    """Device kind -> seconds that a Send or a Recv takes on the device; missing: `instruction_s`."""
    contention: dict[str, float] = field(default_factory=dict)
    """Device kind -> how many times slower a computation is while another device of its host computes too,
    at least 1; missing: 1."""
    copy_s_per_byte: dict[str, float] = field(default_factory=dict)
    """Device kind -> seconds of computation that a byte on its way takes from either end that computes
    meanwhile, as the threads that copy it share the processors; missing: 0."""
    accumulate_s_per_byte: dict[str, float] = field(default_factory=dict)
    """Device kind -> seconds per byte of parameter of adding a gradient to one that is there, as every
    backward of a segment between two steps does but the first; missing: 0."""
    variable_copies: int | None = None
    """How often a variable's bytes count on a device that touches it, in (5-18). None: the micro-batches
    in flight, and one gradient. A graph file may state otherwise (0: a node's bytes include its output)."""

    def forward_s(self, node: str, kind: str) -> float:
        return self.seconds[kind][node].forward_s

    def backward_s(self, node: str, kind: str) -> float:
        return self.seconds[kind][node].backward_s

    def total_s(self, node: str, kind: str) -> float:
        return self.seconds[kind][node].total_s

    def copies(self, in_flight: int) -> int:
        """How often a variable counts in (5-18) with that many micro-batches in flight."""
        return copies_alive(in_flight) if self.variable_copies is None else self.variable_copies
