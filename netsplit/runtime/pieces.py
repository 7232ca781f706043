"""One segment as a module: its weights of any version, and its forward computed once more.

compute(inputs) ─► outputs            with autograd, or
compute_without_keeping(inputs) ─► outputs, written buffers ─► again(inputs, buffers) ─► outputs with autograd
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor, fx, nn

from netsplit.graph.ir import CALL, Graph
from netsplit.graph.module import NODE, copies_as_captured, find_at_once, place_of_tensor, rebuild
from netsplit.graph.operators import written_initializers, written_storages
from netsplit.graph.random_draws import node_draws
from netsplit.graph.recording.whole import FunctionCall, ModuleCall
from netsplit.graph.storage import storage_of
from netsplit.program.instructions import Backward, Program, Segment
from netsplit.runtime.compiled import compiled_call
from netsplit.runtime.offload.saved_tensors import leaving_between

__all__ = ["DevicePieces", "Piece"]


class Piece:
    """A segment's operators on one device.

    Args:
        tensors: the initializers by name.
        deferrable: weights' gradients can be put off (see `graph.deferral`).
        backend: of `torch.compile`. What runs Python, draws what it computes again, writes into what it reads
            or puts gradients off is not compiled: such a segment's calls mean more than their operators.
        offload: what it saves leaves for the host.
        kept: nodes whose results are kept where the segment is computed again.
    """

    def __init__(
        self,
        graph: Graph,
        segment: Segment,
        tensors: Mapping[str, Tensor],
        device: torch.device,
        deferrable: bool = False,
        backend: str | None = None,
        offload: bool = False,
        kept: Collection[str] = (),
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
            kept=kept,
        )
        self.keeps = not {*kept}.isdisjoint(segment.nodes)
        if offload:
            leaving_between(self.module)
        used = {k for node in nodes for k in node.initializers}
        self.trainable = tuple(k for k in tensors if k in used and isinstance(tensors[k], nn.Parameter))
        roots = {root for node in nodes for root in written_storages(graph, node)}
        self.written_buffers = tuple(sorted(used & written_initializers(graph, nodes).keys()))
        self.written_inputs = frozenset(k for k in segment.inputs if storage_of(graph, k) in roots)
        self.calls = any(isinstance(graph.calls.get(node.op), ModuleCall | FunctionCall) for node in nodes)
        drawing = {node.name: node for node in nodes if node_draws(node)}
        self.draws = bool(drawing)
        self.places = {k: place_of_tensor(self.module, k) for k in (*self.trainable, *self.written_buffers)}
        copying = any(copies_as_captured(graph, node) for node in nodes)
        whole = any(node.checkpoint or node.op.startswith(CALL) for node in drawing.values())
        plain = not (self.calls or whole or self.written_inputs or deferrable or copying or self.keeps)
        self.usual: Callable[..., tuple[Tensor, ...]] = self.module.forward
        if backend is not None and plain:
            apart = [call for call in self.module.graph.nodes if call.meta.get(NODE) in drawing]
            self.usual = compiled_call(self.module, backend, apart)
        else:
            find_at_once(self.module)
        self.run = self.usual  # or the module, watched, where a value that is not finite is looked for

    def compute(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(zip(self.segment.outputs, self.run(*inputs.values()), strict=True))

    def compute_without_keeping(
        self, inputs: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Outputs without autograd, and the buffers that the segment writes as they were, for `again`."""
        buffers = {k: self.tensors[k].clone() for k in self.written_buffers}
        given = {k: t.clone() if k in self.written_inputs else t for k, t in inputs.items()}
        with torch.set_grad_enabled(self.calls):  # Python code that stays whole would see that there is none
            results = self.compute(given)
        return {k: t.detach() for k, t in results.items()}, buffers

    def again(self, inputs: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same outputs with autograd; buffers are left as they are."""
        self._bind(buffers)
        try:
            return self.compute(inputs)
        finally:
            self._bind({k: self.tensors[k] for k in buffers})

    @property
    def bound(self) -> list[Tensor]:
        """The weights that it computes with now."""
        return [getattr(module, leaf) for module, leaf in self.places.values()]

    def bind(self, leaves: Mapping[str, Tensor]) -> None:
        """Compute with these weights from now on."""
        self._bind({k: leaves[k] for k in self.trainable})

    def _bind(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            module, leaf = self.places[name]
            store = module._parameters if leaf in module._parameters else module._buffers
            store[leaf] = tensor  # type: ignore[assignment]
            if leaf in module.__dict__:
                module.__dict__[leaf] = tensor


class DevicePieces:
    """A device's segments as pieces.

    Those whose backwards come in two parts have another piece for that, as its calls cost more; and with a
    last micro-batch of fewer samples there is one more piece of each.
    """

    def __init__(
        self,
        program: Program,
        device: str,
        segments: Mapping[int, Segment],
        tensors: Mapping[str, Tensor],
        torch_device: torch.device,
        backend: str | None = None,
        offload: bool = False,
    ) -> None:
        self.offload = offload
        self.segments, self.tensors, self.device = segments, tensors, torch_device
        self.backend = None if program.asynchronous else backend  # where weights have several versions
        self.kept = program.kept_results
        self.last = None if program.tail is None else program.microbatches - 1
        self.split = {
            (ins.segment, ins.microbatch)
            for ins in program.instructions[device]
            if isinstance(ins, Backward) and ins.part == "input"
        }
        splitting = {s for s, _ in self.split}
        self.whole = self._pieces(program.graph, set(segments))
        self.deferrable = self._pieces(program.graph, splitting, deferrable=True)
        self.tail: dict[int, Piece] = {}
        if program.tail is not None:
            last = {s for s in splitting if (s, self.last) in self.split}
            self.tail = self._pieces(program.tail, set(segments) - last)
            self.tail |= self._pieces(program.tail, last, deferrable=True)

    @property
    def written(self) -> set[str]:
        """The initializers that forwards here write, as statistics."""
        every = (*self.whole.values(), *self.deferrable.values(), *self.tail.values())
        return {k for piece in every for k in piece.written_buffers}

    def trains(self, s: int) -> bool:
        """Whether a segment has parameters."""
        return bool(self.whole[s].trainable)

    def piece(self, s: int, i: int) -> Piece:
        """What computes micro-batch i of segment s."""
        if i == self.last:
            return self.tail[s]
        return self.deferrable[s] if (s, i) in self.split else self.whole[s]

    def _pieces(self, graph: Graph, segments: set[int], deferrable: bool = False) -> dict[int, Piece]:
        return {
            s: Piece(
                graph,
                self.segments[s],
                self.tensors,
                self.device,
                deferrable,
                self.backend,
                self.offload,
                self.kept,
            )
            for s in sorted(segments)
        }
