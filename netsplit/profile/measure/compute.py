"""Measured forward and backward seconds of every node, and of whole micro-batches of several sizes in turn.

    live values ─┬► window of nodes as one segment, forward and backward: timed, on copies
         ▲       └► the same nodes one by one: forward, timed ──► contexts ──► backward in reverse, timed
         └─────────────── outputs, detached ◄──┘                               on the gradients behind it

A walk over the graph runs every node once, among the neighbours of a real step: a repeated node would find
its data in the caches. A node alone pays for a call of its own, so the nodes' seconds are fitted to the
window's. Windows also let a model too big for a device be profiled on it. Walks come in rounds; if these
differ too much, more follow. `take_turns` times sizes round after round, so that changes of the machine's
speed affect all alike.

Source: NetSplit thesis, section 4.4.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from netsplit.graph.deferral.deferrable import deferrable_nodes
from netsplit.graph.deferral.deferred import WeightGradients
from netsplit.graph.ir import Graph
from netsplit.graph.module import find_at_once, path_of_tensor, rebuild
from netsplit.graph.operators import autocast_of
from netsplit.profile.costs import NodeSeconds
from netsplit.profile.measure.bench import LiveValues, NodeBench, random_like
from netsplit.profile.measure.clock import Clock, Lap, engine_call_seconds, worker_conditions

__all__ = [
    "Profiler", "SizedStep", "Stretch", "Timed", "Window", "adjusted_to_sum", "borders", "take_turns",
    "walks_to_settle", "windows",
]  # fmt: skip

log = logging.getLogger(__name__)

ROUNDS = 5  # of sizes in turn, after one that is not counted
FEWEST = 2
ENOUGH_S = 8.0  # of rounds, from which none is added to the fewest
DRIFT = 0.08  # of a round's seconds against another's, above which further rounds are measured
MORE_ROUNDS = 2
WARM_S = 0.2  # of untimed walks before a round on a GPU, whose clock rises under load; a walk may take 1 ms
AT_MOST = 0.95  # of a node's backward: its input part is never nothing
SMALLEST_S = 1e-7  # no operator and no backward of one is cheaper than this
MOST_IN_FLIGHT = 4  # with these many micro-batches alive the caches hold none of the first


class Profiler:
    """Measures a graph's nodes on one device, round by round.

    Forward includes looking up the operator and the node's initializers, as generated code does. Backward
    includes freeing what the forward kept, but not the fixed cost of a call of the autograd engine, which a
    segment pays once. A node that passes no gradient back has 0 backward.

    Args:
        graph: a training step, at the (micro-)batch size that the seconds are for.
        batch: the graph's input variables, in order.
        values: the initializers; read only.
        torch_device: where to run, as for `torch.device`.
        repeats: timed walks in one round, after one untimed; on a GPU after `WARM_S` of them.
        window_bytes: what nodes that run forward before they run backward may keep alive: more than the
            caches hold, less than the device has free.
        in_flight: micro-batches that a device computes forward before the first backward.
    """

    def __init__(
        self,
        graph: Graph,
        batch: tuple[Tensor, ...],
        values: Mapping[str, Tensor],
        torch_device: torch.device | str,
        *,
        repeats: int = 5,
        window_bytes: int = 2**28,
        in_flight: int = 1,
    ) -> None:
        if repeats < 1 or in_flight < 1:
            raise ValueError(f"repeats={repeats}, in_flight={in_flight}: give at least 1.")
        self.graph, self.batch, self.values = graph, batch, values
        self.device = torch.device(torch_device)
        self.repeats = repeats
        self.warm_s = WARM_S if self.device.type == "cuda" else 0.0
        self.clock = Clock(self.device)
        in_flight = min(in_flight, MOST_IN_FLIGHT)
        self.windows = self._windows(window_bytes // in_flight, in_flight)
        self.walks = 0
        self.timed: list[int] = []
        self.rounds: list[float] = []  # median seconds of the walks of each
        self.engine_call_s: list[float] = []

    def round(self) -> None:
        """Walk over the graph to warm up, and then `repeats` times."""
        for _ in self.walks_of_round():
            pass

    def walks_of_round(self) -> Iterator[None]:
        """A round, walk by walk, so that callers may report progress."""
        with worker_conditions(self.device):
            self.engine_call_s.append(engine_call_seconds(self.clock))
            took, first, began = list[float](), self.walks, time.perf_counter()
            while len(took) < self.repeats:
                warm = self.walks > first and time.perf_counter() - began >= self.warm_s
                self._walk()
                if took or warm:
                    self.timed.append(self.walks)
                    took.append(sum(window.seconds for window in self.windows))
                self.walks += 1
                yield
            self.rounds.append(median(took))

    def seconds(self) -> dict[str, NodeSeconds]:
        """Seconds of every node: medians over the timed walks of all rounds so far."""
        seconds: dict[str, NodeSeconds] = {}
        for window in self.windows:
            seconds |= window.node_seconds(self.timed, min(self.engine_call_s))
        return seconds

    @property
    def drift(self) -> float:
        """The part by which the slowest round took longer than the fastest."""
        return max(self.rounds) / min(self.rounds) - 1 if self.rounds else 0.0

    def _walk(self) -> None:
        live = LiveValues(self.graph, self.batch, self.values, self.device)
        for window in self.windows:
            window.measure(live)

    def _windows(self, window_bytes: int, in_flight: int) -> list[Window]:
        graph, requires_backward = self.graph, self.graph.requires_backward
        module = rebuild(graph, self.values)
        find_at_once(module)  # as the runtime does
        benches = {
            node.name: NodeBench(
                graph, node, self.clock, any(k in requires_backward for k in node.outputs), module
            )
            for node in graph
        }
        return [
            Window(graph, [benches[name] for name in names], self.values, self.clock, in_flight)
            for names in windows(graph, window_bytes)
        ]


def walks_to_settle(profiler: Profiler) -> Iterator[None]:
    """Measure a few more walks if the machine's speed has changed; warn if it goes on changing."""
    for _ in range(MORE_ROUNDS if len(profiler.rounds) > 1 else 0):
        if profiler.drift <= DRIFT:
            return
        yield from profiler.walks_of_round()
    if profiler.drift > DRIFT:
        log.warning(
            "Operator times on %s changed by %.0f %% during the measurement, so predictions may be off by "
            "as much. Measure again on a quieter machine.",
            profiler.device, 100 * profiler.drift,
        )  # fmt: skip


class Stretch:
    """Runs its nodes together, on copies, and keeps the laps.

    It computes `in_flight` micro-batches forward before their backwards, as a schedule does, so that a
    backward finds its tensors outside the caches.
    """

    def __init__(
        self, graph: Graph, names: Sequence[str], values: Mapping[str, Tensor], clock: Clock, in_flight: int
    ) -> None:
        self.graph, self.names, self.values = graph, names, values
        self.clock, self.in_flight = clock, in_flight
        self.inputs, self.outputs = borders(graph, names)
        self.initializers = list(dict.fromkeys(k for name in names for k in graph.nodes[name].initializers))
        self.timed = Timed(self.module(deferrable=False), clock)
        self.forward = self.timed.laps
        self.backward: list[Lap] = []

    def module(self, *, deferrable: bool) -> nn.Module:
        return rebuild(
            self.graph,
            self.values,
            nodes=self.names,
            inputs=self.inputs,
            outputs=self.outputs,
            device=self.clock.device,
            deferrable=deferrable,
        )

    def copies(self, live: LiveValues) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Copies of all that the nodes could write, so that the live values stay as they are."""
        inputs = tuple(live.leaf(("var", k)) for k in self.inputs)
        tensors = {f"module.{path_of_tensor(k)}": live.leaf(("init", k)) for k in self.initializers}
        return inputs, {k: t if t.requires_grad else t.clone() for k, t in tensors.items()}

    def run(self, inputs: tuple[Tensor, ...], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """All micro-batches in flight; the outputs of the last of them, detached."""
        ends: list[list[Tensor]] = []
        last: tuple[Tensor, ...] = ()
        with torch.enable_grad():
            for _ in range(self.in_flight):
                results = self.results(self.timed, inputs, tensors)
                last = tuple(t.detach() for t in results)
                ends.append(self.ends(results))
                del results
        for of_one in ends:
            if of_one:
                seeds = [random_like(t) for t in of_one]
                start = self.clock.now()
                torch.autograd.backward(of_one, seeds)
                of_one.clear()  # what the forward kept is let go in a backward's time
                self.backward.append((start, self.clock.now()))
        return dict(zip(self.outputs, last, strict=True))

    def results(
        self, module: nn.Module, inputs: tuple[Tensor, ...], tensors: dict[str, Tensor]
    ) -> tuple[Tensor, ...]:
        """Results on copies of inputs, of a module called `module` in another, as `copies` names tensors."""
        cloned = tuple(t.clone() for t in inputs)
        with autocast_of(self.graph, self.clock.device):
            results: tuple[Tensor, ...] = functional_call(module, tensors, cloned)
        return results

    def ends(self, results: tuple[Tensor, ...]) -> list[Tensor]:
        """The tensors where a backward begins."""
        asked = self.graph.requires_backward
        return [t for k, t in zip(self.outputs, results, strict=True) if k in asked]

    @property
    def seconds(self) -> float:
        """Seconds of the last micro-batches in flight together, forward and backward."""
        n = self.in_flight
        return sum(self.clock.seconds(self.forward[-n:])) + sum(self.clock.seconds(self.backward[-n:]))


class Timed(nn.Module):
    """A module whose forward is timed without what surrounds it."""

    def __init__(self, module: nn.Module, clock: Clock) -> None:
        super().__init__()
        self.module = module
        self.clock = clock
        self.laps: list[Lap] = []

    def forward(self, *inputs: Tensor) -> Any:
        start = self.clock.now()
        results = self.module.forward(*inputs)
        self.laps.append((start, self.clock.now()))
        return results


class Window(Stretch):
    """A stretch that also runs its nodes alone, all forward and then all backward."""

    def __init__(
        self,
        graph: Graph,
        benches: list[NodeBench],
        values: Mapping[str, Tensor],
        clock: Clock,
        in_flight: int = 1,
    ) -> None:
        names = [bench.node.name for bench in benches]
        super().__init__(graph, names, values, clock, in_flight)
        self.benches = benches
        self.deferrable = deferrable_nodes(graph, names)
        self.deferring = Timed(self.module(deferrable=True), clock) if self.deferrable else None
        self.parts: list[tuple[Lap, Lap]] = []  # of backwards in two

    def measure(self, live: LiveValues) -> None:
        """Once together, once with the backward in two parts, and once one by one."""
        inputs, tensors = self.copies(live)
        self.run(inputs, tensors)
        if self.deferring is not None:
            self._run_split(self.ends(self.results(self.deferring, inputs, tensors)))
        contexts = [bench.run_forward(live) for bench in self.benches]
        gradients: dict[str, Tensor] = {}
        for bench in reversed(self.benches):
            bench.run_backward(contexts.pop(), gradients)

    def node_seconds(self, timed: list[int], engine_call_s: float) -> dict[str, NodeSeconds]:
        """Seconds of each node: its median alone, scaled so that the nodes add up to the whole window."""
        forward = {b.node.name: self._median(b.forward, timed) for b in self.benches}
        backward = {b.node.name: self._median(b.backward, timed) for b in self.benches if b.backward}
        forward = adjusted_to_sum(forward, self._together(self.forward, timed))
        weights: dict[str, float] = {}
        if backward:
            backward = adjusted_to_sum(backward, self._together(self.backward, timed) - engine_call_s)
            weights = self._weight_seconds(timed, backward)
        return {
            name: NodeSeconds(forward_s, backward.get(name, 0.0), weights.get(name, 0.0))
            for name, forward_s in forward.items()
        }

    def _run_split(self, ends: list[Tensor]) -> None:
        """Backward in two parts from `ends`."""
        if not ends:
            return
        queue = WeightGradients()
        seeds = [random_like(t) for t in ends]
        start = self.clock.now()
        with queue.collect():
            torch.autograd.backward(ends, seeds)
        middle = self.clock.now()
        queue.run()
        self.parts.append(((start, middle), (middle, self.clock.now())))

    def _weight_seconds(self, timed: list[int], backward: Mapping[str, float]) -> dict[str, float]:
        """Seconds of every deferrable node's `backward` that can be put off: the window's fraction of the
        weight part, spread over its nodes as their backwards took."""
        if not self.parts:
            return {}
        chosen = [self.parts[walk] for walk in timed]
        first, second = (median(self.clock.seconds([pair[i] for pair in chosen])) for i in (0, 1))
        wanted = second / max(first + second, 1e-12) * sum(backward.values())
        own = {name: backward[name] for name in self.deferrable if name in backward}
        part = min(wanted / max(sum(own.values()), 1e-12), AT_MOST)
        return {name: part * seconds for name, seconds in own.items()}

    def _median(self, laps: list[Lap], timed: list[int]) -> float:
        return max(median(self.clock.seconds([laps[walk] for walk in timed])), SMALLEST_S)

    def _together(self, laps: list[Lap], timed: list[int]) -> float:
        """Median over walks of the mean over the micro-batches of a walk."""
        n = self.in_flight
        means = [sum(self.clock.seconds(laps[walk * n : (walk + 1) * n])) / n for walk in timed]
        return max(median(means), SMALLEST_S)


def adjusted_to_sum(alone: Mapping[str, float], together: float) -> dict[str, float]:
    """Seconds of nodes measured `alone`, changed to add up to what they take `together`.

    Every node alone pays for a call of its own, so an excess is taken off evenly, down to `SMALLEST_S`; a
    lack is spread in proportion.
    """
    total = sum(alone.values())
    if total <= together:
        return {name: seconds * together / total for name, seconds in alone.items()}

    def less(each_s: float) -> dict[str, float]:
        return {name: max(seconds - each_s, SMALLEST_S) for name, seconds in alone.items()}

    most = max(alone.values())
    if sum(less(most).values()) >= together:
        return less(most)
    from scipy.optimize import brentq  # half a second to load, which only a measurement needs

    return less(brentq(lambda each_s: sum(less(each_s).values()) - together, 0.0, most, xtol=1e-15))


def windows(graph: Graph, window_bytes: int) -> Iterator[list[str]]:
    """The nodes in order, cut into runs that keep at most `window_bytes`; no unit is cut."""
    last = {name: max(graph.position[n] for n in unit) for unit in graph.units for name in unit}
    window: list[str] = []
    used, uncut = 0, -1
    for node in graph:
        own = node.saved_bytes + sum(graph.variables[k].nbytes for k in node.outputs if k)
        own += sum(graph.initializers[k].nbytes for k in node.initializers)
        if window and used + own > window_bytes and graph.position[node.name] > uncut:
            yield window
            window, used = [], 0
        window.append(node.name)
        used += own
        uncut = max(uncut, last.get(node.name, -1))
    if window:
        yield window


def borders(graph: Graph, nodes: Sequence[str]) -> tuple[list[str], list[str]]:
    """Variables that the nodes read from outside, and those of theirs that are read outside."""
    inside = set(nodes)
    produced = [k for name in nodes for k in graph.nodes[name].outputs if k]
    read = dict.fromkeys(k for name in nodes for k in graph.nodes[name].inputs)
    inputs = [k for k in read if graph.variables[k].producer not in inside]
    outputs = [
        k
        for k in produced
        if k in graph.output_variables or any(v not in inside for v in graph.variables[k].consumers)
    ]
    return inputs, outputs


@dataclass(frozen=True)
class SizedStep:
    """A graph at one size of micro-batches, the values of its input variables, and how many of them a device
    computes before their backwards."""

    graph: Graph
    batch: tuple[Tensor, ...]
    in_flight: int = 1


def take_turns(
    steps: Sequence[SizedStep],
    values: Mapping[str, Tensor],
    torch_device: torch.device | str,
    window_bytes: int = 2**28,
) -> dict[int, float]:
    """Seconds of one micro-batch, forward and backward, by its samples: medians over rounds of all sizes.

    A size for which a CUDA device has too little memory is left out.

    Args:
        values: the initializers; read only.
        window_bytes: as of `Profiler`.
    """
    device = torch.device(torch_device)
    clock, began = Clock(device), time.perf_counter()
    stretches = {
        step.graph.batch_size: [
            Stretch(step.graph, names, values, clock, step.in_flight)
            for names in windows(step.graph, window_bytes // step.in_flight)
        ]
        for step in steps
    }
    took: dict[int, list[float]] = {size: [] for size in stretches}
    with worker_conditions(device):
        for done in range(1 + ROUNDS):
            for step in steps:
                size = step.graph.batch_size
                if size in took:
                    try:
                        took[size].append(_walk(step, stretches[size], values, device))
                    except torch.OutOfMemoryError:
                        log.info("%s has too little memory for %d samples at once.", device, size)
                        del took[size]
            if done >= FEWEST and time.perf_counter() - began > ENOUGH_S:
                break
    return {size: median(each[1:]) for size, each in took.items()}


def _walk(
    step: SizedStep, stretches: Sequence[Stretch], values: Mapping[str, Tensor], device: torch.device
) -> float:
    """Seconds of a micro-batch; what a stretch gives is what the next ones read."""
    live = LiveValues(step.graph, step.batch, values, device)
    for stretch in stretches:
        live.hand_on(stretch.names, stretch.run(*stretch.copies(live)))
    return sum(stretch.seconds for stretch in stretches) / step.in_flight
