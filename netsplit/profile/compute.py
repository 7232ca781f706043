"""Measured forward and backward seconds of every node.

    frontier ─┬► window of nodes as one segment, forward and backward: timed, on copies
       ▲      └► the same nodes one by one: forward, timed ──► contexts ──► backward in reverse, timed
       └────────────── outputs, detached ◄──┘                               on the gradients behind it

The graph is walked many times and each walk runs every node once, in the order and among the neighbours
of a real step: a node repeated on the spot finds its data in the caches and its branches predicted, and
came out a quarter too fast. Timed alone, a node pays for a call of its own, which costs tens of
microseconds in backward; the nodes' seconds are fitted to the window's. A walk goes window by window, so
that a model too big for a device can be profiled on it: alive are the values that later nodes read, and
one window's autograd contexts.

Source: NetSplit thesis, section 4.4, which hooks a model that runs as a whole, and so needs a bootstrap
placement for a big one; windows do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from netsplit.graph.ir import Graph
from netsplit.graph.module import rebuild
from netsplit.profile.bench import NodeBench
from netsplit.profile.clock import Clock, engine_call_seconds, worker_conditions
from netsplit.profile.costs import NodeSeconds
from netsplit.profile.frontier import Frontier
from netsplit.profile.window import Window, windows

__all__ = ["profile_compute"]


def profile_compute(
    graph: Graph,
    batch: tuple[Tensor, ...],
    values: Mapping[str, Tensor],
    torch_device: torch.device | str,
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
    pays once for all its nodes. A node that passes no gradient back has 0 backward.

    Args:
        graph: a training step, at the (micro-)batch size that the seconds are for.
        batch: the graph's input variables, in order.
        values: the initializers; read only.
        torch_device: where to run, as for `torch.device`.
        repeats: timed walks over the graph in one round.
        warmup: untimed walks before them.
        rounds: how often that is done.
        threads: CPU threads of an operator, as the worker has.
        window_bytes: what nodes that run forward before they run backward may keep alive, beside
            gradients: more than the caches hold, less than the device has free.
        progress: called with (runs of nodes done, runs in all).
    """
    if repeats < 1 or warmup < 0 or rounds < 1:
        raise ValueError(f"repeats={repeats}, warmup={warmup}, rounds={rounds}: give at least 1, 0 and 1.")
    device = torch.device(torch_device)
    clock = Clock(device, threads)
    parts = _windows(graph, values, clock, window_bytes)
    walks, done = rounds * (warmup + repeats), 0
    with worker_conditions(device, threads):
        engine_call_s = engine_call_seconds(clock)
        for _ in range(walks):
            frontier = Frontier(graph, batch, values, device)
            for window in parts:
                window.run(frontier)
                done += len(window.benches)
                if progress is not None:
                    progress(done, walks * len(graph))
    timed = [walk for walk in range(walks) if walk % (warmup + repeats) >= warmup]
    seconds: dict[str, NodeSeconds] = {}
    for window in parts:
        seconds |= window.seconds(timed, engine_call_s)
    return seconds


def _windows(graph: Graph, values: Mapping[str, Tensor], clock: Clock, window_bytes: int) -> list[Window]:
    carrying, module = graph.carrying, rebuild(graph, values)
    benches = {
        node.name: NodeBench(node, clock, any(k in carrying for k in node.outputs), module) for node in graph
    }
    return [
        Window(graph, [benches[name] for name in names], values, carrying, clock)
        for names in windows(graph, window_bytes)
    ]
