"""How a graph's tensors lie in memory, found by running nodes one at a time on tensors without data.

    layouts of what a node reads ──► the node on stand-ins ──► layouts of its outputs, what its backward keeps

A graph says of its variables which share memory, but not their strides, on which it depends whether a view
can be taken. They are found once for a graph, and handed on to the graphs that are made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher

from netsplit.graph.analyse import kept_for_backward, storage_id
from netsplit.graph.autocast import autocast_of
from netsplit.graph.ir import CALL, INITIALIZER, Graph, Node, Variable
from netsplit.graph.operators import mode_of, resolve
from netsplit.graph.recording.record import Watched
from netsplit.graph.recording.stand_in_mode import StandInMode
from netsplit.graph.storage import storage_of
from netsplit.graph.template import decoded

__all__ = ["MemoryLayout", "NodeRun", "StandInRuns", "keep_layouts", "layouts_of"]

_KEY = "rewrite.layouts"


@dataclass(frozen=True)
class MemoryLayout:
    """Of one tensor; `root` names the memory that it lies in (see `storage_of`)."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    carries: bool  # a gradient
    root: str


@dataclass(frozen=True)
class NodeRun:
    """What running one node showed. `outputs` are by variable."""

    outputs: dict[str, MemoryLayout]
    saved: tuple[str, ...]
    saved_bytes: int


def layouts_of(graph: Graph) -> dict[str, MemoryLayout]:
    """Of every variable; the graph's nodes are run the first time only."""
    if _KEY not in graph.derived:
        runs = StandInRuns(graph)
        layouts = {k: _plain(graph, variable) for k, variable in graph.variables.items()}
        for node in graph:
            for k, layout in _outputs(runs, node, layouts).items():
                variable = graph.variables[k]
                if layout.shape == variable.shape and layout.dtype == variable.dtype:
                    layouts[k] = MemoryLayout(
                        layout.shape,
                        layout.stride,
                        layout.dtype,
                        variable.requires_grad,
                        storage_of(graph, k),
                    )
        graph.derived[_KEY] = layouts
    return dict(graph.derived[_KEY])


def keep_layouts(graph: Graph, layouts: Mapping[str, MemoryLayout]) -> None:
    """What is known of a graph that was made of another."""
    graph.derived[_KEY] = {k: layouts[k] for k in graph.variables}


def _plain(graph: Graph, variable: Variable) -> MemoryLayout:
    stride = torch.empty(variable.shape, device="meta").stride()
    return MemoryLayout(
        variable.shape, stride, variable.dtype, variable.requires_grad, storage_of(graph, variable.name)
    )


def _outputs(runs: StandInRuns, node: Node, layouts: Mapping[str, MemoryLayout]) -> dict[str, MemoryLayout]:
    """Nothing, of what is not run on stand-ins: Python code, and operators that need values."""
    if node.op.startswith(CALL):
        return {}
    try:
        return runs.run(node, layouts).outputs
    except Exception:
        return {}


class StandInRuns:
    """Runs nodes on tensors without data. One mode for all: what it knows of operators is kept."""

    def __init__(self, graph: Graph) -> None:
        self.initializers = graph.initializers
        self.graph = graph
        self.mode = StandInMode()
        self.grad = any(variable.requires_grad for variable in graph.variables.values())

    def run(self, node: Node, layouts: Mapping[str, MemoryLayout]) -> NodeRun:
        """Of a node whose operator is torch's.

        Raises:
            Exception: whatever the operator raises on such arguments.
        """
        with enable_python_dispatcher(), self.mode, torch.set_grad_enabled(self.grad):
            given = {("var", k): _stand_in(layouts[k]) for k in node.inputs}
            given |= {("init", k): self._initializer(k) for k in node.initializers}
            kept: list[Tensor] = []

            def keep(tensor: Tensor) -> Tensor:
                kept.append(tensor)
                return tensor

            args, kwargs = decoded(node, lambda tag, k: given[tag, k], "cpu")
            with autocast_of(self.graph, "cpu"), mode_of(node, "cpu"), Watched(keep, lambda tensor: tensor):
                result = resolve(node.op)(*args, **kwargs)
        results = [result] if isinstance(result, Tensor) else list(result)
        roots = {storage_id(t): self._root(tag, k, layouts) for (tag, k), t in given.items()}
        outputs: dict[str, MemoryLayout] = {}
        tensors = {k: t for k, t in zip(node.outputs, results, strict=True) if k and isinstance(t, Tensor)}
        for k, tensor in tensors.items():
            root = roots.setdefault(storage_id(tensor), k)
            outputs[k] = _layout(tensor, root)
        # Inputs that are views of one tensor have memory of their own here: each stands for the last of them.
        local = {k: given["var", k] for k in node.inputs} | tensors
        own = {storage_id(given["init", k]) for k in node.initializers}
        names, nbytes = kept_for_backward(kept, local, own)
        last = {(outputs.get(k) or layouts[k]).root: k for k in local}
        saved = tuple(dict.fromkeys(last[(outputs.get(k) or layouts[k]).root] for k in names))
        return NodeRun(outputs, saved, nbytes)

    def _root(self, tag: str, k: str, layouts: Mapping[str, MemoryLayout]) -> str:
        return layouts[k].root if tag == "var" else INITIALIZER + k

    def _initializer(self, k: str) -> Tensor:
        init = self.initializers[k]
        made = torch.empty(init.shape, dtype=getattr(torch, init.dtype), device="cpu")
        return made.requires_grad_(init.requires_grad)


def _stand_in(layout: MemoryLayout) -> Tensor:
    dtype: Any = getattr(torch, layout.dtype)
    if not layout.carries:
        return torch.empty_strided(layout.shape, layout.stride, dtype=dtype, device="cpu")
    reach = 1 + sum((n - 1) * s for n, s in zip(layout.shape, layout.stride, strict=True))
    memory = torch.empty(reach if 0 not in layout.shape else 0, dtype=dtype, device="cpu")
    # No leaf, which an operator in place would refuse; nor a view of one.
    return memory.requires_grad_().clone().as_strided(layout.shape, layout.stride)


def _layout(tensor: Tensor, root: str) -> MemoryLayout:
    return MemoryLayout(
        tuple(tensor.shape),
        tuple(tensor.stride()),
        str(tensor.dtype).removeprefix("torch."),
        tensor.requires_grad,
        root,
    )
