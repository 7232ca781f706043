"""One segment as a module: its weights of any version, and its forward computed once more.

compute(inputs) ─► outputs            with autograd, or
compute(inputs, keep=False) ─► outputs, Snapshot ─► again(snapshot) ─► outputs with autograd
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from netsplit.graph.ir import INITIALIZER, Graph
from netsplit.graph.module import place_of_tensor, rebuild
from netsplit.graph.operators import written_references
from netsplit.graph.random_draws import node_draws
from netsplit.graph.storage import storage_of
from netsplit.program.instructions import Segment

__all__ = ["Piece", "Snapshot"]


@dataclass
class Snapshot:
    """What computing a segment once more needs to come out the same."""

    buffers: dict[str, Tensor]  # those that the segment writes, as they were


class Piece:
    """A segment's operators on one device.

    Args:
        tensors: the initializers by name.
        deferrable: weights' gradients can be put off (see `graph.deferred`).
    """

    def __init__(
        self,
        graph: Graph,
        segment: Segment,
        tensors: Mapping[str, Tensor],
        device: torch.device,
        deferrable: bool = False,
    ) -> None:
        self.segment = segment
        self.device = device
        self.tensors = tensors
        nodes = [graph.nodes[name] for name in segment.nodes]
        self.module: fx.GraphModule = rebuild(
            graph,
            tensors,
            nodes=segment.nodes,
            inputs=segment.inputs,
            outputs=segment.outputs,
            device=device,
            deferrable=deferrable,
        )
        used = {k for node in nodes for k in node.initializers}
        self.trainable = tuple(k for k in tensors if k in used and isinstance(tensors[k], nn.Parameter))
        roots = {
            storage_of(graph, name) if tag == "var" else INITIALIZER + name
            for node in nodes
            for tag, name in written_references(graph, node)
        }
        self.written_buffers = tuple(sorted(k for k in used if INITIALIZER + k in roots))
        self.written_inputs = frozenset(k for k in segment.inputs if storage_of(graph, k) in roots)
        self.draws = any(node_draws(node) for node in nodes)
        self.places = {k: self._place(k) for k in (*self.trainable, *self.written_buffers)}

    def compute(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(zip(self.segment.outputs, self.module(*inputs.values()), strict=True))

    def compute_without_keeping(self, inputs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Snapshot]:
        """Outputs without autograd, and what `again` needs beside the inputs."""
        snapshot = Snapshot({k: self.tensors[k].clone() for k in self.written_buffers})
        given = {k: t.clone() if k in self.written_inputs else t for k, t in inputs.items()}
        with torch.no_grad():
            return self.compute(given), snapshot

    def again(self, inputs: Mapping[str, Tensor], snapshot: Snapshot) -> dict[str, Tensor]:
        """The same outputs with autograd; buffers are left as they are."""
        self._bind(snapshot.buffers)
        try:
            return self.compute(inputs)
        finally:
            self._bind({k: self.tensors[k] for k in snapshot.buffers})

    def bind(self, leaves: Mapping[str, Tensor]) -> None:
        """Compute with these weights from now on."""
        self._bind({k: leaves[k] for k in self.trainable})

    def _bind(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            module, leaf = self.places[name]
            store = module._parameters if leaf in module._parameters else module._buffers
            store[leaf] = tensor  # type: ignore[assignment]

    def _place(self, name: str) -> tuple[nn.Module, str]:
        return place_of_tensor(self.module, name)
