"""Measured forward and backward seconds of every node.

    live values ─┬► window of nodes as one segment, forward and backward: timed, on copies
         ▲       └► the same nodes one by one: forward, timed ──► contexts ──► backward in reverse, timed
         └─────────────── outputs, detached ◄──┘                               on the gradients behind it

Each walk over the graph runs every node once, among the neighbours of a real step: a node repeated on the
spot finds its data in the caches. Timed alone, a node pays for a call of its own, so the nodes' seconds are
fitted to the window's. A walk goes window by window, so that a model too big for a device can be profiled on
it.

Walks come in rounds. A profile whose rounds differ too much, as the machine's speed changed, goes on for some
more. Source: NetSplit thesis, section 4.4.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from statistics import median

import torch
from torch import Tensor

from netsplit.graph.ir import Graph
from netsplit.graph.module import find_at_once, rebuild
from netsplit.profile.costs import NodeSeconds
from netsplit.profile.measure.bench import NodeBench
from netsplit.profile.measure.clock import Clock, engine_call_seconds, worker_conditions
from netsplit.profile.measure.live_values import LiveValues
from netsplit.profile.measure.stretches.stretch import windows
from netsplit.profile.measure.stretches.window import Window

__all__ = ["Profiler", "settle", "walks_to_settle"]

log = logging.getLogger(__name__)

DRIFT = 0.08  # of a round's seconds against another's, above which further rounds are measured
MORE_ROUNDS = 2
WARM_S = (
    0.2  # of untimed walks before a round on a GPU, which raises its clock under load: a walk may take 1 ms
)
MOST_IN_FLIGHT = 4  # with these many micro-batches alive the caches hold none of the first


class Profiler:
    """Measures a graph's nodes on one device, round by round.

    Forward includes what generated code does around the call: it looks up the operator and the node's
    initializers. Backward includes letting go of what the forward kept, and leaves out the fixed cost of a
    call of the autograd engine, which a segment pays once for all its nodes. A node that passes no gradient
    back has 0 backward.

    Args:
        graph: a training step, at the (micro-)batch size that the seconds are for.
        batch: the graph's input variables, in order.
        values: the initializers; read only.
        torch_device: where to run, as for `torch.device`.
        repeats: timed walks over the graph in one round, after one untimed; on a GPU after more, until they
            have taken `WARM_S`.
        window_bytes: what nodes that run forward before they run backward may keep alive, beside
            gradients: more than the caches hold, less than the device has free.
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
        """A round, walk by walk: whoever takes them may say between them how far it is."""
        with worker_conditions(self.device):
            self.engine_call_s.append(engine_call_seconds(self.clock))
            took, first, began = list[float](), self.walks, time.perf_counter()
            while len(took) < self.repeats:
                warm = self.walks > first and time.perf_counter() - began >= self.warm_s
                self._walk()
                if took or warm:
                    self.timed.append(self.walks)
                    took.append(sum(window.stretch.seconds for window in self.windows))
                self.walks += 1
                yield
            self.rounds.append(median(took))

    def seconds(self) -> dict[str, NodeSeconds]:
        """Seconds of every node: medians over the timed walks of all rounds so far."""
        seconds: dict[str, NodeSeconds] = {}
        for window in self.windows:
            seconds |= window.seconds(self.timed, min(self.engine_call_s))
        return seconds

    @property
    def drift(self) -> float:
        """The part by which the slowest round took longer than the fastest."""
        return max(self.rounds) / min(self.rounds) - 1 if self.rounds else 0.0

    def _walk(self) -> None:
        live = LiveValues(self.graph, self.batch, self.values, self.device)
        for window in self.windows:
            window.run(live)

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
            Window(
                graph,
                [benches[name] for name in names],
                self.values,
                self.clock,
                in_flight,
            )
            for names in windows(graph, window_bytes)
        ]


def settle(profiler: Profiler) -> None:
    """Measure a little more where the machine's speed has changed; say so where it goes on."""
    for _ in walks_to_settle(profiler):
        pass


def walks_to_settle(profiler: Profiler) -> Iterator[None]:
    """`settle`, walk by walk."""
    for _ in range(MORE_ROUNDS if len(profiler.rounds) > 1 else 0):
        if profiler.drift <= DRIFT:
            return
        yield from profiler.walks_of_round()
    if profiler.drift > DRIFT:
        log.warning(
            "Operator times on %s changed by %.0f %% while they were measured, and predictions may be off by "
            "as much. Measure again on a quieter machine.",
            profiler.device, 100 * profiler.drift,
        )  # fmt: skip
