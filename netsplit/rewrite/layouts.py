"""How a graph's tensors lie in memory, found by running nodes one at a time on tensors without data.

    layouts of what a node reads ──► the node on stand-ins ──► layouts of its outputs, what its backward keeps

Strides, which decide whether a view can be taken, are not in a graph: they are found once, and handed on to
the graphs that are made of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import Tensor

from netsplit.graph.analyse import kept_for_backward, storage_id
from netsplit.graph.arguments import decoded, renamed, storage_of
from netsplit.graph.ir import CALL, INITIALIZER, Graph, Initializer, Node, Variable, once_of
from netsplit.graph.operators import autocast_of, mode_of, resolve
from netsplit.graph.recording.record import Watched
from netsplit.graph.recording.stand_ins import StandInMode

__all__ = [
    "MemoryLayout", "NodeRun", "StandInRuns", "keep_layouts", "keep_runs", "layouts_of", "stand_in_run",
]  # fmt: skip

_KEY, _RUNS = "rewrite.layouts", "rewrite.runs"

_Held: TypeAlias = tuple[tuple[int, ...], str, bool]  # shape, dtype, requires_grad


@dataclass(frozen=True)
class MemoryLayout:
    """How one tensor lies in memory; `root` names the memory (see `storage_of`)."""

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
    views: frozenset[str] = frozenset()  # outputs that autograd takes for views, if only of its own
    saves: bool = False  # anything, if only weights


def layouts_of(graph: Graph) -> dict[str, MemoryLayout]:
    """The layout of every variable; the graph's nodes are run the first time only."""
    if _KEY not in graph.derived:
        runs = StandInRuns(graph)
        layouts = {k: _plain(graph, variable) for k, variable in graph.variables.items()}
        for node in graph:
            run = _tried(runs, node, layouts)
            for k, layout in run.outputs.items() if run is not None else ():
                if (layout.shape, layout.dtype) == (layouts[k].shape, layouts[k].dtype):
                    layouts[k] = replace(layouts[k], stride=layout.stride)
        graph.derived[_KEY] = layouts
    return dict(graph.derived[_KEY])


@once_of
def _runs_of(graph: Graph) -> StandInRuns:
    return StandInRuns(graph)


@once_of
def stand_in_run(graph: Graph, name: str) -> NodeRun | None:
    """What running a node shows; None of Python code, and of operators that need values."""
    node = graph.nodes[name]
    return _tried(_runs_of(graph), node, {k: _plain(graph, graph.variables[k]) for k in node.inputs})


def _tried(runs: StandInRuns, node: Node, layouts: Mapping[str, MemoryLayout]) -> NodeRun | None:
    if node.op.startswith(CALL):
        return None
    try:
        return runs.run(node, layouts)
    except Exception:  # torch's own of any kind, where sizes depend on values
        return None


def keep_layouts(graph: Graph, layouts: Mapping[str, MemoryLayout], before: Graph) -> None:
    """Hand known layouts, and runs of operators, on to a graph that was made of another."""
    graph.derived[_KEY] = {
        k: replace(layouts[k], carries=variable.requires_grad, root=storage_of(graph, k))
        for k, variable in graph.variables.items()
    }
    keep_runs(graph, before)


def keep_runs(graph: Graph, before: Graph) -> None:
    """Do not run again what ran in the graph that this one was made of."""
    graph.derived[_RUNS] = before.derived.setdefault(_RUNS, {})


def _plain(graph: Graph, variable: Variable) -> MemoryLayout:
    root = storage_of(graph, variable.name)
    strides = tuple(0 if d in variable.repeated else step for d, step in enumerate(variable.strides))
    return MemoryLayout(variable.shape, strides, variable.dtype, variable.requires_grad, root)


@dataclass(frozen=True, eq=False)
class _Alike:
    """A call under neutral names: calls with the same `key` do the same.

    `own`: the names of its variables, and of their memory, by the neutral ones.
    """

    given: Node
    layouts: dict[str, MemoryLayout]
    initializers: dict[str, _Held]
    outputs: tuple[str, ...]
    own: dict[str, str]

    @classmethod
    def of(
        cls, node: Node, layouts: Mapping[str, MemoryLayout], initializers: Mapping[str, Initializer]
    ) -> _Alike:
        inputs = {k: f"x{i}" for i, k in enumerate(node.inputs)}
        outputs = {k: f"y{j}" for j, k in enumerate(node.outputs) if k}
        held = {f"w{i}": initializers[k] for i, k in enumerate(node.initializers)}
        roots = outputs | {INITIALIZER + init.name: INITIALIZER + name for name, init in held.items()}
        for k in node.inputs:
            roots.setdefault(layouts[k].root, f"m{len(roots)}")
        return cls(
            node,
            {name: replace(layouts[k], root=roots[layouts[k].root]) for k, name in inputs.items()},
            {name: (init.shape, init.dtype, init.requires_grad) for name, init in held.items()},
            tuple(outputs.get(k, "") for k in node.outputs),
            {name: k for names in (roots, inputs) for k, name in names.items()},
        )

    @cached_property
    def arguments(self) -> dict[str, Any]:
        names = {("var", self.own[name]): ("var", name) for name in self.layouts}
        names |= {
            ("init", k): ("init", name)
            for k, name in zip(self.given.initializers, self.initializers, strict=True)
        }
        return renamed(self.given, names)

    @property
    def key(self) -> Hashable:
        node = self.given
        mode = node.no_grad, node.autocast
        given = tuple(self.layouts.values()), tuple(self.initializers.values())
        return node.op, repr(self.arguments), mode, given, self.outputs

    @property
    def node(self) -> Node:
        inputs, held = tuple(self.layouts), tuple(self.initializers)
        return replace(self.given, inputs=inputs, outputs=self.outputs, initializers=held, **self.arguments)

    def named(self, run: NodeRun) -> NodeRun:
        """What running the node showed, under the call's own names."""
        own = self.own
        outputs = {own[name]: replace(layout, root=own[layout.root]) for name, layout in run.outputs.items()}
        views = frozenset(own[name] for name in run.views)
        saved = tuple(own[name] for name in run.saved)
        return NodeRun(outputs, saved, run.saved_bytes, views, run.saves)


class StandInRuns:
    """Runs nodes on tensors without data, once for all that are alike, in one mode that knows operators."""

    def __init__(self, graph: Graph) -> None:
        self.initializers = graph.initializers
        self.graph = graph
        self.mode = StandInMode()
        self.grad = any(variable.requires_grad for variable in graph.variables.values())
        self._known: dict[Hashable, NodeRun] = graph.derived.setdefault(_RUNS, {})

    def run(self, node: Node, layouts: Mapping[str, MemoryLayout]) -> NodeRun:
        """Runs a node whose operator is torch's.

        Raises:
            Exception: whatever the operator raises on such arguments.
        """
        alike = _Alike.of(node, layouts, self.initializers)
        key = alike.key, self.grad, self.graph.autocast, torch.get_default_dtype()
        run = self._known.get(key)
        if run is None:
            run = self._known[key] = self._run(alike.node, alike.layouts, alike.initializers)
        return alike.named(run)

    def _run(
        self, node: Node, layouts: Mapping[str, MemoryLayout], initializers: Mapping[str, _Held]
    ) -> NodeRun:
        with self.mode, torch.set_grad_enabled(self.grad):
            given = {("var", k): _stand_in(layouts[k]) for k in node.inputs}
            given |= {("init", k): _initializer(initializers[k]) for k in node.initializers}
            kept: list[Tensor] = []
            args, kwargs = decoded(node, lambda tag, k: given[tag, k], "cpu")
            with autocast_of(self.graph, "cpu"), mode_of(node, "cpu"), Watched(kept):
                result = resolve(node.op)(*args, **kwargs)
        results = [result] if isinstance(result, Tensor) else list(result)
        roots = {
            storage_id(t): layouts[k].root if tag == "var" else INITIALIZER + k
            for (tag, k), t in given.items()
        }
        outputs: dict[str, MemoryLayout] = {}
        tensors = {k: t for k, t in zip(node.outputs, results, strict=True) if k and isinstance(t, Tensor)}
        for k, tensor in tensors.items():
            root = roots.setdefault(storage_id(tensor), k)
            dtype = str(tensor.dtype).removeprefix("torch.")
            outputs[k] = MemoryLayout(
                tuple(tensor.shape), tuple(tensor.stride()), dtype, tensor.requires_grad, root
            )
        # Inputs that are views of one tensor have memory of their own here: each stands for the last of them.
        local = {k: given["var", k] for k in node.inputs} | tensors
        own = {storage_id(given["init", k]) for k in node.initializers}
        names, nbytes = kept_for_backward(kept, local, own)
        last = {(outputs.get(k) or layouts[k]).root: k for k in local}
        saved = tuple(dict.fromkeys(last[(outputs.get(k) or layouts[k]).root] for k in names))
        views = frozenset(k for k, tensor in tensors.items() if tensor._is_view())
        return NodeRun(outputs, saved, nbytes, views, bool(kept))


def _initializer(init: _Held) -> Tensor:
    shape, dtype, requires_grad = init
    tensor = torch.empty(shape, dtype=getattr(torch, dtype), device="cpu")
    return tensor.requires_grad_(requires_grad)


def _stand_in(layout: MemoryLayout) -> Tensor:
    dtype: Any = getattr(torch, layout.dtype)
    if not layout.carries:
        return torch.empty_strided(layout.shape, layout.stride, dtype=dtype, device="cpu")
    reach = 1 + sum((n - 1) * s for n, s in zip(layout.shape, layout.stride, strict=True))
    memory = torch.empty(reach if 0 not in layout.shape else 0, dtype=dtype, device="cpu")
    # No leaf, which an operator in place would refuse; nor a view of one.
    return memory.requires_grad_().clone().as_strided(layout.shape, layout.stride)
