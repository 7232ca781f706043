"""One node, run alone and timed, on the values alive at its place of a walk over the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from netsplit.graph.arguments import Reference, decoded, read_by
from netsplit.graph.ir import CALL, Graph, Node
from netsplit.graph.module import path_of_tensor
from netsplit.graph.operators import autocast_of, in_its_mode, mode_of, operator_of, written_references
from netsplit.profile.measure.clock import Clock, Lap
from netsplit.profile.measure.memory_meter import MemoryMeter

__all__ = ["ForwardResult", "LiveValues", "NodeBench", "random_like"]


class LiveValues:
    """The values that nodes still to come read: variables, and initializers on the device."""

    def __init__(
        self, graph: Graph, batch: tuple[Tensor, ...], values: Mapping[str, Tensor], device: torch.device
    ) -> None:
        self.graph = graph
        self.values = values
        self.device = device
        self.tensors: dict[Reference, Tensor] = {}
        self.last_reader = {reference: node.name for node in graph for reference in read_by(node)}
        for name, tensor in zip(graph.input_variables, batch, strict=True):
            self.tensors["var", name] = tensor.detach().to(device, copy=True)

    def leaf(self, reference: Reference) -> Tensor:
        """The value as a leaf of an autograd graph of its own, which shares the value's storage."""
        tag, name = reference
        known = self.graph.variables[name] if tag == "var" else self.graph.initializers[name]
        return self[reference].detach().requires_grad_(known.requires_grad)

    def __getitem__(self, reference: Reference) -> Tensor:
        if reference not in self.tensors:
            assert reference[0] == "init", reference
            self.tensors[reference] = self._initializer(reference[1])
        return self.tensors[reference]

    def _initializer(self, name: str) -> Tensor:
        """Buffers are copied, as operators write them; parameters only where the device is another."""
        return self.values[name].detach().to(self.device, copy=not self.graph.initializers[name].is_parameter)

    def adopt(self, node: Node, outputs: Mapping[str, Tensor] | None) -> None:
        """Take a node's outputs, and forget what no later node reads.

        None: the node wrote a copy; it is run again on the values themselves, so that their views see the
        write.
        """
        if outputs is None:
            args, kwargs = decoded(node, lambda *reference: self[reference], self.device)
            with torch.no_grad(), autocast_of(self.graph, self.device):
                operator = in_its_mode(node, operator_of(self.graph, node), self.device)
                outputs = dict(zip(node.outputs, _returned(operator(*args, **kwargs)), strict=False))
        self.hand_on([node.name], outputs)

    def hand_on(self, names: Sequence[str], outputs: Mapping[str, Tensor]) -> None:
        """Take these nodes' outputs unchanged, and forget what no later node reads."""
        for k, output in outputs.items():
            if ("var", k) in self.last_reader:
                self.tensors["var", k] = output.detach()
        for name in names:
            for reference in read_by(self.graph.nodes[name]):
                if self.last_reader[reference] == name:
                    self.tensors.pop(reference, None)


def _returned(result: Any) -> tuple[Any, ...]:
    """What an operator returned: one tensor, several, or nothing."""
    return (result,) if isinstance(result, Tensor) else tuple(result or ())


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
        """The operator on leaves, timed and looked up as generated code does, or metered; what it writes is
        copied."""
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
        outputs = dict(zip(self.node.outputs, _returned(result), strict=False))
        live.adopt(self.node, outputs if all(given[r] is leaves[r] for r in leaves) else None)
        if not self.needs_backward:
            return ForwardResult({}, {})
        return ForwardResult(
            {r: t for r, t in leaves.items() if t.requires_grad},
            {k: t for k, t in outputs.items() if k and t.requires_grad},
        )

    def run_backward(self, context: ForwardResult, gradients: dict[str, Tensor]) -> None:
        """Pass `gradients` of the outputs back to the inputs; random ones where none has come.

        An input's gradient is added to that of its later readers, as autograd does.
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
    """A random gradient for a tensor."""
    return torch.empty_like(tensor).uniform_(-1.0, 1.0)
