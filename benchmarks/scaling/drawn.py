"""Training steps and clusters of any size: what a large model on many devices looks like to a method.

    layered    rows of drawn width, which read the row before and now and then an older one
    blocks     a transformer: the same layer again and again, one tensor of activations beside each

Seconds and bytes are those of half-precision training on accelerators: 60 TFLOP/s that are reached, 1.5 TB/s
of memory. A device holds `ROOM` times its even part of what the whole step needs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from netsplit.cluster.cluster import Cluster, Device, Link, nics_of
from netsplit.graph.ir import Graph, Initializer, Node, Variable
from netsplit.partition.base import Problem
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.profile.memory import static_model
from netsplit.program.schedules import OneFOneB
from netsplit.settings import ObjectiveName

__all__ = ["CLUSTERS", "GRAPHS", "MICROBATCHES", "ROOM", "drawn_problem"]

ROOM = 2.0
MICROBATCHES = 8

_FLOPS, _BYTES_A_SECOND = 60e12, 1.5e12
_LAUNCH_S = 5e-6
_WITHIN, _BETWEEN = Link(8e-6, 1 / 100e9), Link(3e-5, 1 / 12e9)  # a host, and a network
_HOST = 8  # devices
_SLOWER = 2.0  # times the seconds of the other kind
_WIDEST = 48  # nodes of a row
_TOKENS, _HIDDEN, _HEADS = 2048, 2048, 4

Sizes = tuple[float, int, int]  # floating-point operations, bytes of the output, bytes of parameters


@dataclass
class _Drawing:
    """A graph that grows node by node."""

    nodes: dict[str, Node]
    sizes: dict[str, Sizes]
    readers: dict[str, list[str]]

    @classmethod
    def begun(cls) -> _Drawing:
        return cls({}, {}, {"x": []})

    def add(self, op: str, feeders: Sequence[str], size: Sizes) -> str:
        """A node that reads what `feeders` make ("": the input); its name."""
        name = f"{op}_{len(self.nodes)}"
        reads = tuple(dict.fromkeys(f"k_{u}" if u else "x" for u in feeders))
        weights = (f"w_{name}",) if size[2] else ()
        self.nodes[name] = Node(name, f"drawn.{op}.default", reads, (f"k_{name}",), weights, saved=reads)
        for k in reads:
            self.readers[k].append(name)
        self.readers[f"k_{name}"] = []
        self.sizes[name] = size
        return name

    def graph(self) -> Graph:
        """The outputs that nobody reads are those of the graph."""
        variables = {"x": Variable("x", "uint8", (_TOKENS * _HIDDEN,), None, tuple(self.readers["x"]))}
        for name, (_, nbytes, _) in self.sizes.items():
            k = f"k_{name}"
            variables[k] = Variable(k, "uint8", (nbytes,), name, tuple(self.readers[k]), requires_grad=True)
        weights = {
            f"w_{name}": Initializer(f"w_{name}", "uint8", (held,), True, True)
            for name, (_, _, held) in self.sizes.items()
            if held
        }
        last = tuple(k for k, readers in self.readers.items() if not readers)
        return Graph(self.nodes, variables, ("x",), last, weights)


def _layered(count: int, seed: int) -> _Drawing:
    """Rows beside one another: what there is to gain lies in doing them at once."""
    draw, drawing = random.Random(seed), _Drawing.begun()
    older: list[str] = []
    row: list[str] = [drawing.add("stem", [""], _drawn_size(draw))]
    while len(drawing.nodes) < count - 1:
        width = min(draw.randint(4, _WIDEST), count - 1 - len(drawing.nodes))
        following = []
        for i in range(width):
            feeders = draw.sample(row, min(len(row), draw.randint(1, 3)))
            feeders += row[i::width]  # so that each is read
            if older and draw.random() < 0.1:
                feeders.append(draw.choice(older))
            following.append(drawing.add("cell", feeders, _drawn_size(draw)))
        older, row = row, following
    drawing.add("loss", row, (1e6, 4, 0))
    return drawing


def _drawn_size(draw: random.Random) -> Sizes:
    flops = 10 ** draw.uniform(9.5, 11.5)
    held = int(10 ** draw.uniform(6, 7.5)) if draw.random() < 0.5 else 0
    return flops, int(10 ** draw.uniform(5.5, 7)), held


def _blocks(count: int, seed: int) -> _Drawing:
    """Layers of `_layer` as often as they go in, between an embedding and a loss."""
    drawing, wide = _Drawing.begun(), 2 * _TOKENS * _HIDDEN
    stream = drawing.add("embedding", [""], (0.0, wide, 2 * 32000 * _HIDDEN))
    while True:
        before = len(drawing.nodes)
        stream = _layer(drawing, stream)
        if 2 * len(drawing.nodes) - before + 1 > count:
            break
    while len(drawing.nodes) < count - 1:
        stream = drawing.add("norm", [stream], (0.0, wide, 4 * _HIDDEN))
    drawing.add("loss", [stream], (2.0 * _TOKENS * _HIDDEN * 32000, 4, 0))
    return drawing


def _layer(drawing: _Drawing, stream: str) -> str:
    """A transformer's, with a chain for each head; answers the node whose output the next one reads."""
    wide, square = 2 * _TOKENS * _HIDDEN, 2 * _HIDDEN * _HIDDEN
    matmul = 2.0 * _TOKENS * _HIDDEN * _HIDDEN
    normed = drawing.add("norm", [stream], (0.0, wide, 4 * _HIDDEN))
    heads = []
    for _ in range(_HEADS):
        q, k, v = (
            drawing.add("linear", [normed], (matmul / _HEADS, wide // _HEADS, square // _HEADS))
            for _ in range(3)
        )
        scores = drawing.add("scores", [q, k], (matmul / _HEADS, 2 * _TOKENS * _TOKENS, 0))
        weighted = drawing.add("softmax", [scores], (0.0, 2 * _TOKENS * _TOKENS, 0))
        heads.append(drawing.add("mix", [weighted, v], (matmul / _HEADS, wide // _HEADS, 0)))
    joined = drawing.add("cat", heads, (0.0, wide, 0))
    projected = drawing.add("linear", [joined], (matmul, wide, square))
    added = drawing.add("add", [stream, projected], (0.0, wide, 0))
    normed = drawing.add("norm", [added], (0.0, wide, 4 * _HIDDEN))
    up = drawing.add("linear", [normed], (4 * matmul, 4 * wide, 4 * square))
    active = drawing.add("gelu", [up], (0.0, 4 * wide, 0))
    down = drawing.add("linear", [active], (4 * matmul, wide, 4 * square))
    return drawing.add("add", [added, down], (0.0, wide, 0))


GRAPHS: dict[str, Callable[[int, int], _Drawing]] = {"layered": _layered, "blocks": _blocks}
"""Drawings of graphs of so many nodes, by a seed."""


def _uniform(i: int, j: int) -> Link:
    return _WITHIN


def _by_host(i: int, j: int) -> Link:
    return _WITHIN if i // _HOST == j // _HOST else _BETWEEN


CLUSTERS: dict[str, tuple[int, Callable[[int, int], Link]]] = {
    "uniform": (1, _uniform),
    "two_kinds": (2, _uniform),
    "hosts": (1, _by_host),
}
"""Kinds of devices in equal parts, and the link of each pair."""


def drawn_problem(
    graph: str,
    cluster: str,
    nodes: int,
    devices: int,
    objective: ObjectiveName,
    time_limit_s: float | None,
    seed: int = 0,
) -> Problem:
    """One of `GRAPHS` on one of `CLUSTERS`; ``simulated`` is 1F1B with `MICROBATCHES` micro-batches."""
    drawing = GRAPHS[graph](nodes, seed)
    kinds, link_of = CLUSTERS[cluster]
    names = ["fast" if kind == 0 else "slow" for kind in range(kinds)]
    costs = Costs({name: _costs(drawing, _SLOWER**kind) for kind, name in enumerate(names)}, alpha=4)
    workload = Workload(f"{graph} of {nodes}", drawing.graph(), costs)
    schedule = OneFOneB(MICROBATCHES) if objective == "simulated" else None
    in_flight = 1 if schedule is None else schedule.in_flight(devices)
    memory = static_model(workload.graph, costs.alpha, costs.copies(in_flight))
    largest = max(memory.load([name]).nbytes for name in workload.graph.nodes)
    capacity = int(ROOM * memory.total_bytes / devices) + largest
    of_all = [f"d{i}" for i in range(devices)]
    links = {(of_all[i], of_all[j]): link_of(i, j) for i in range(devices) for j in range(devices) if i != j}
    placed = tuple(
        Device(name, names[i * kinds // devices], capacity, "cuda") for i, name in enumerate(of_all)
    )
    hosts = {f"host{i}": of_all[i : i + _HOST] for i in range(0, devices, _HOST)}
    nics = nics_of(hosts, links) if cluster == "hosts" else ()
    return workload.problem(
        Cluster(f"{cluster} of {devices}", placed, links, nics=nics),
        objective,
        schedule=schedule,
        time_limit_s=time_limit_s,
        seed=seed,
    )


def _costs(drawing: _Drawing, slower: float) -> DeviceCosts:
    """A backward takes twice a forward; what computes nothing moves its bytes."""
    seconds = {}
    for name, (flops, nbytes, _) in drawing.sizes.items():
        forward_s = slower * (_LAUNCH_S + flops / _FLOPS + 2 * nbytes / _BYTES_A_SECOND)
        seconds[name] = NodeSeconds(forward_s, 2 * forward_s)
    return DeviceCosts(seconds, 1e-11 * slower, 1e-5 * slower)
