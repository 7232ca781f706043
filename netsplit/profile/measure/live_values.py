"""The values alive at one place of a walk over a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from netsplit.graph.arguments import Reference, decoded, read_by
from netsplit.graph.autocast import autocast_of
from netsplit.graph.ir import Graph, Node
from netsplit.graph.operators import in_its_mode, operator_of

__all__ = ["LiveValues", "returned_tensors"]


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

        None: the node wrote a copy. It is run again on the values themselves, so that every variable
        that shares their storage sees the write.
        """
        if outputs is None:
            args, kwargs = decoded(node, lambda *reference: self[reference], self.device)
            with torch.no_grad(), autocast_of(self.graph, self.device):
                operator = in_its_mode(node, operator_of(self.graph, node), self.device)
                outputs = dict(zip(node.outputs, returned_tensors(operator(*args, **kwargs)), strict=False))
        self.hand_on([node.name], outputs)

    def hand_on(self, names: Sequence[str], outputs: Mapping[str, Tensor]) -> None:
        """Take what these nodes made, as it is, and forget what no later node reads."""
        for k, output in outputs.items():
            if ("var", k) in self.last_reader:
                self.tensors["var", k] = output.detach()
        for name in names:
            for reference in read_by(self.graph.nodes[name]):
                if self.last_reader[reference] == name:
                    self.tensors.pop(reference, None)


def returned_tensors(result: Any) -> tuple[Any, ...]:
    """What an operator returned: one tensor, several, or nothing."""
    return (result,) if isinstance(result, Tensor) else tuple(result or ())
