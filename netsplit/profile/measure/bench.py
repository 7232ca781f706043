"""One node, run alone and timed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from netsplit.graph.arguments import Reference, decoded, read_by
from netsplit.graph.autocast import autocast_of
from netsplit.graph.ir import CALL, Graph, Node
from netsplit.graph.module import path_of_tensor
from netsplit.graph.operators import mode_of, operator_of, written_references
from netsplit.profile.measure.clock import Clock, Lap
from netsplit.profile.measure.live_values import LiveValues, returned_tensors
from netsplit.profile.measure.memory_meter import MemoryMeter

__all__ = ["ForwardResult", "NodeBench", "random_like"]


@dataclass
class ForwardResult:
    """What a forward leaves for its backward."""

    leaves: dict[Reference, Tensor]
    outputs: dict[str, Tensor]


@dataclass
class NodeBench:
    """How to run a node alone, and the laps of its runs; `backward` is empty where it has none."""

    graph: Graph
    node: Node
    clock: Clock
    needs_backward: bool
    module: nn.Module  # holds the initializers under the names that generated code looks up
    forward: list[Lap] = field(default_factory=list)
    backward: list[Lap] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.read = tuple(dict.fromkeys(read_by(self.node)))
        self.written = set(written_references(self.graph, self.node))
        self.look_up = [attrgetter(path_of_tensor(name)) for name in self.node.initializers]
        if self.node.op.startswith(CALL):
            call = operator_of(self.graph, self.node)
            self.operator: Callable[[Any], Any] = lambda _: call
        else:
            self.operator = attrgetter(f"ops.{self.node.op}")

    def run_forward(self, live: LiveValues, meter: MemoryMeter | None = None) -> ForwardResult:
        """The operator, timed and looked up as generated code does, or metered; on leaves, and on a copy of a
        leaf that it writes.
        """
        leaves = {reference: live.leaf(reference) for reference in self.read}
        given = {r: t.clone() if t.requires_grad and r in self.written else t for r, t in leaves.items()}
        device = self.clock.device
        args, kwargs = decoded(self.node, lambda *reference: given[reference], device)
        if meter is not None:
            meter.count(given.values())
            meter.restart()
        watched = meter or nullcontext()
        with torch.enable_grad(), autocast_of(self.graph, device), mode_of(self.node, device), watched:
            start = self.clock.now()
            if meter is None:
                for look_up in self.look_up:
                    look_up(self.module)
            result = self.operator(torch)(*args, **kwargs)
            end = self.clock.now()
        self.forward.append((start, end))
        outputs = dict(zip(self.node.outputs, returned_tensors(result), strict=False))
        live.adopt(self.node, outputs if all(given[r] is leaves[r] for r in leaves) else None)
        if not self.needs_backward:
            return ForwardResult({}, {})
        return ForwardResult(
            {r: t for r, t in leaves.items() if t.requires_grad},
            {k: t for k, t in outputs.items() if k and t.requires_grad},
        )

    def run_backward(self, context: ForwardResult, gradients: dict[str, Tensor]) -> None:
        """Pass `gradients` of the outputs back to the inputs; random ones where none has come.

        An input's gradient is added to the part that its later readers have left, as autograd does.
        """
        if not context.outputs:
            return
        outputs, leaves = list(context.outputs.values()), list(context.leaves.values())
        seeds = [gradients.pop(k) if k in gradients else random_like(t) for k, t in context.outputs.items()]
        parts = [gradients.get(name) if tag == "var" else None for tag, name in context.leaves]
        start = self.clock.now()
        grads = torch.autograd.grad(outputs, leaves, seeds, allow_unused=True)
        sums = [g if p is None else p if g is None else p + g for g, p in zip(grads, parts, strict=True)]
        end = self.clock.now()
        self.backward.append((start, end))
        for (tag, name), gradient in zip(context.leaves, sums, strict=True):
            if tag == "var" and gradient is not None:
                gradients[name] = gradient


def random_like(tensor: Tensor) -> Tensor:
    """A gradient for a tensor whose true one is not known."""
    return torch.empty_like(tensor).uniform_(-1.0, 1.0)
