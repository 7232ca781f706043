"""Measured forward and backward seconds of every node.

    frontier ──► window of nodes, forward one by one ──► contexts ──► backward one by one, in reverse
       ▲                 each timed  │                                each timed, on the gradients
       └─────── outputs, detached ◄──┘                                of the nodes behind it

The graph is walked many times and each walk runs every node once, in the order and among the neighbours
of a real step: a node repeated on the spot finds its data in the caches and its branches predicted,
and comes out a quarter too fast. A walk goes window by window, so that a model too big for a device can
be profiled on it: alive are the values that later nodes read, and one window's autograd contexts.

Source: NetSplit thesis, section 4.4, which hooks a model that runs as a whole, and so needs a bootstrap
placement for a big one; windows do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from netsplit.graph.ir import Graph, Node
from netsplit.graph.operators import resolve
from netsplit.graph.rebuild import rebuild
from netsplit.graph.template import decode, references
from netsplit.profile.costs import NodeSeconds

__all__ = ["profile_compute"]

SMALLEST_S = 2e-7  # no call of an operator or of the autograd engine is cheaper than this
PROBE_EVERY = 8  # nodes between two measurements of what a call of the autograd engine costs
CHAIN = 64  # trivial nodes whose backward tells the engine's cost per node

Reference = tuple[str, str]  # ("var" | "init", name)
Lap = tuple[Any, Any]  # start and end, as the clock marks them


def profile_compute(
    graph: Graph,
    batch: tuple[Tensor, ...],
    values: Mapping[str, Tensor],
    torch_device: str,
    *,
    repeats: int = 5,
    warmup: int = 1,
    rounds: int = 2,
    threads: int = 1,
    window_bytes: int = 2**28,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, NodeSeconds]:
    """Seconds of every node's forward and backward, the median over `repeats` and `rounds`.

    Forward includes what generated code does around the call: it looks up the operator and the node's
    initializers. Backward leaves out the fixed cost of a call of the autograd engine, which a segment
    pays once for all its nodes; that cost is measured on a trivial node, all along the walk. A node
    with no gradient to pass back has 0 backward.

    Args:
        graph: a training step, at the (micro-)batch size that the seconds are for.
        batch: the graph's input variables, in order.
        values: the initializers; read only.
        torch_device: where to run, as for `torch.device`.
        repeats: timed walks over the graph in one round.
        warmup: untimed walks before them.
        rounds: how often that is done.
        threads: CPU threads of an operator, as the worker has.
        window_bytes: what the nodes that run forward before they run backward may keep alive, beside
            gradients; more than the caches hold, less than the device has free.
        progress: called with (runs of nodes done, runs in all).
    """
    if repeats < 1 or warmup < 0 or rounds < 1:
        raise ValueError(f"repeats={repeats}, warmup={warmup}, rounds={rounds}: give at least 1, 0 and 1.")
    device = torch.device(torch_device)
    clock = _Clock(device)
    needed, module = _needing_backward(graph), rebuild(graph, values)
    benches = {node.name: _Bench(graph, node, clock, node.name in needed, module) for node in graph}
    windows = [[benches[name] for name in window] for window in _windows(graph, window_bytes)]
    walks, done = rounds * (warmup + repeats), 0
    with _quiet(device, threads):
        engine = _EngineProbe(clock)
        for _ in range(walks):
            frontier = _Frontier(graph, batch, values, device)
            for window in windows:
                _run(window, frontier, engine)
                done += len(window)
                if progress is not None:
                    progress(done, walks * len(graph))
        engine_s = engine.seconds()
    timed = [walk for walk in range(walks) if walk % (warmup + repeats) >= warmup]
    return {name: bench.seconds(timed, engine_s) for name, bench in benches.items()}


def _run(window: list[_Bench], frontier: _Frontier, engine: _EngineProbe) -> None:
    contexts = [bench.run_forward(frontier) for bench in window]
    gradients: dict[str, Tensor] = {}
    for i, bench in enumerate(reversed(window)):
        bench.run_backward(contexts.pop(), gradients)
        if i % PROBE_EVERY == 0:
            engine.probe()


class _Clock:
    """Marks moments: the processor's time, or events in the stream of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.now: Callable[[], Any] = time.perf_counter if device.type != "cuda" else self._event

    def _event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def seconds(self, laps: list[Lap]) -> list[float]:
        if self.device.type != "cuda":
            return [end - start for start, end in laps]
        torch.cuda.synchronize(self.device)
        return [start.elapsed_time(end) / 1e3 for start, end in laps]


def _backward(
    clock: _Clock,
    outputs: list[Tensor],
    leaves: list[Tensor],
    seeds: list[Tensor],
    parts: list[Tensor | None],
) -> tuple[Lap, list[Tensor | None]]:
    """One timed backward: the gradients of `leaves`, each added to its `parts` from later readers."""
    start = clock.now()
    found = torch.autograd.grad(outputs, leaves, seeds, allow_unused=True)
    sums = [
        g if part is None else part if g is None else part + g for g, part in zip(found, parts, strict=True)
    ]
    end = clock.now()
    return (start, end), sums


class _EngineProbe:
    """What one call of the autograd engine costs beyond the nodes that it runs.

    A trivial node's backward is measured all along a walk, where code and data are as cold as they are
    for a real node; the cost of the trivial node itself is the slope over a chain of them.
    """

    def __init__(self, clock: _Clock) -> None:
        self.clock = clock
        self.leaf = torch.ones(1, device=clock.device, requires_grad=True)
        self.one = torch.ones(1, device=clock.device)
        self.laps: list[Lap] = []

    def probe(self) -> None:
        self.laps.append(self._lap(1))

    def seconds(self) -> float:
        short, long = (
            median(self.clock.seconds([self._lap(length) for _ in range(40)])[10:])
            for length in (1, 1 + CHAIN)
        )
        return max(median(self.clock.seconds(self.laps)) - (long - short) / CHAIN, 0.0)

    def _lap(self, length: int) -> Lap:
        output = self.leaf
        for _ in range(length):
            output = output.view(1)
        ends = [get_gradient_edge(output)], [get_gradient_edge(self.leaf)]
        return _backward(self.clock, *ends, [self.one], [None])[0]


class _Frontier:
    """The values that nodes still to come read: variables, and initializers on the device."""

    def __init__(
        self, graph: Graph, batch: tuple[Tensor, ...], values: Mapping[str, Tensor], device: torch.device
    ) -> None:
        self.graph = graph
        self.values = values
        self.device = device
        self.tensors: dict[Reference, Tensor] = {}
        self.last_reader = {reference: node.name for node in graph for reference in _read_by(node)}
        for name, tensor in zip(graph.input_variables, batch, strict=True):
            self.tensors["var", name] = tensor.detach().to(device, copy=True)

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
            args, kwargs = _arguments(node, self.__getitem__, self.device)
            with torch.no_grad():
                outputs = dict(zip(node.outputs, _as_tuple(resolve(node.op)(*args, **kwargs)), strict=False))
        for k, output in outputs.items():
            if ("var", k) in self.last_reader:
                self.tensors["var", k] = output.detach()
        for reference in _read_by(node):
            if self.last_reader[reference] == node.name:
                self.tensors.pop(reference, None)


class _Source(torch.autograd.Function):
    """A value as some earlier node's output: what reads it keeps it alive only if its backward needs it."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, value: Tensor) -> Tensor:
        return value.view_as(value)


@dataclass
class _Context:
    """What a node's forward leaves for its backward: where to start, and where to collect gradients."""

    outputs: dict[str, GradientEdge]
    inputs: dict[Reference, GradientEdge]


@dataclass
class _Bench:
    """One node: how to run it alone, and the seconds of its runs."""

    graph: Graph
    node: Node
    clock: _Clock
    needs_backward: bool
    module: nn.Module  # holds the initializers under the names that generated code looks up
    forward: list[Lap] = field(default_factory=list)
    backward: list[Lap] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.read = _read_by(self.node)
        self.written = _written(self.node)
        self.look_up = [attrgetter(name) for name in self.node.initializers]
        self.operator = attrgetter(f"ops.{self.node.op}")
        self.anchor = torch.ones(1, requires_grad=True)

    def run_forward(self, frontier: _Frontier) -> _Context:
        """The operator on its own inputs; on a copy of what it writes, where autograd would not allow it."""
        inputs = {reference: self._input(reference, frontier) for reference in self.read}
        given = {r: t.clone() if t.requires_grad and r in self.written else t for r, t in inputs.items()}
        args, kwargs = _arguments(self.node, given.__getitem__, self.clock.device)
        with torch.enable_grad():
            start = self.clock.now()
            for look_up in self.look_up:
                look_up(self.module)
            result = self.operator(torch)(*args, **kwargs)
            end = self.clock.now()
        self.forward.append((start, end))
        outputs = dict(zip(self.node.outputs, _as_tuple(result), strict=False))
        frontier.adopt(self.node, outputs if all(given[r] is inputs[r] for r in inputs) else None)
        if not self.needs_backward:
            return _Context({}, {})
        return _Context(_edges(outputs), _edges(inputs))

    def run_backward(self, context: _Context, gradients: dict[str, Tensor]) -> None:
        """Pass `gradients` of the node's outputs back to its inputs; random ones where none has come."""
        if not context.outputs:
            return
        seeds = [gradients.pop(k) if k in gradients else self._random_gradient(k) for k in context.outputs]
        parts = [gradients.get(name) if tag == "var" else None for tag, name in context.inputs]
        ends = list(context.outputs.values()), list(context.inputs.values())
        lap, sums = _backward(self.clock, *ends, seeds, parts)
        self.backward.append(lap)
        for (tag, name), gradient in zip(context.inputs, sums, strict=True):
            if tag == "var" and gradient is not None:
                gradients[name] = gradient

    def _input(self, reference: Reference, frontier: _Frontier) -> Tensor:
        tag, name = reference
        value = frontier[reference].detach()
        if tag == "init":
            return value.requires_grad_(self.graph.initializers[name].requires_grad)
        return _Source.apply(self.anchor, value) if self.graph.variables[name].requires_grad else value

    def _random_gradient(self, k: str) -> Tensor:
        variable = self.graph.variables[k]
        gradient = torch.empty(variable.shape, dtype=getattr(torch, variable.dtype), device=self.clock.device)
        return gradient.uniform_(-1.0, 1.0)

    def seconds(self, timed: list[int], engine_s: float) -> NodeSeconds:
        forward, backward = self.clock.seconds(self.forward), self.clock.seconds(self.backward)
        backward_s = max(median(backward[i] for i in timed) - engine_s, SMALLEST_S) if backward else 0.0
        return NodeSeconds(max(median(forward[i] for i in timed), SMALLEST_S), backward_s)


@contextmanager
def _quiet(device: torch.device, threads: int) -> Iterator[None]:
    """One worker's thread count; random numbers of our own, with the process's left as they were."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            yield
    finally:
        torch.set_num_threads(before)


def _needing_backward(graph: Graph) -> set[str]:
    """Nodes through which a gradient can come back from an output of the graph."""
    carrying = {k for k in graph.output_variables if graph.variables[k].requires_grad}
    needed: set[str] = set()
    for node in reversed(list(graph)):
        if any(k in carrying for k in node.outputs):
            needed.add(node.name)
            carrying.update(k for k in node.inputs if graph.variables[k].requires_grad)
    return needed


def _windows(graph: Graph, window_bytes: int) -> Iterator[list[str]]:
    """The nodes in order, cut into runs that keep at most `window_bytes`, or one node."""
    window: list[str] = []
    used = 0
    for node in graph:
        own = node.saved_bytes + sum(graph.variables[k].nbytes for k in node.outputs if k)
        own += sum(graph.initializers[k].nbytes for k in node.initializers)
        if window and used + own > window_bytes:
            yield window
            window, used = [], 0
        window.append(node.name)
        used += own
    if window:
        yield window


def _read_by(node: Node) -> tuple[Reference, ...]:
    return tuple(dict.fromkeys(references([node.args, list(node.kwargs.values())])))


def _written(node: Node) -> set[Reference]:
    """The references that the operator's schema says it writes in place."""
    schema = resolve(node.op)._schema
    given = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | node.kwargs
    return {
        reference
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
        for reference in references(given.get(argument.name))
    }


def _arguments(
    node: Node, tensor: Callable[[Reference], Tensor], device: torch.device
) -> tuple[list[Any], dict[str, Any]]:
    def get(tag: str, name: str) -> Tensor:
        return tensor((tag, name))

    args = decode(node.args, get, device)
    return args, {key: decode(template, get, device) for key, template in node.kwargs.items()}


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result or ())


def _edges(tensors: Mapping[Any, Tensor]) -> dict[Any, GradientEdge]:
    return {key: get_gradient_edge(t) for key, t in tensors.items() if t is not None and t.requires_grad}
