"""Consecutive nodes of a graph as one piece, forward and backward, as the segment that they would be.

`take_turns` times micro-batches of several sizes round after round, so that changes of the machine's speed
affect all alike.
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

from netsplit.graph.ir import Graph
from netsplit.graph.module import path_of_tensor, rebuild
from netsplit.graph.operators import autocast_of
from netsplit.profile.measure.bench import LiveValues, random_like
from netsplit.profile.measure.clock import Clock, Lap, worker_conditions

__all__ = ["SizedStep", "Stretch", "Timed", "borders", "take_turns", "windows"]

log = logging.getLogger(__name__)

ROUNDS = 5  # after one that is not counted
FEWEST = 2
ENOUGH_S = 8.0  # of rounds, from which none is added to the fewest


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
