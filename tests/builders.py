"""Small graphs, clusters and costs by hand."""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from netsplit.cluster.cluster import Cluster, Device, Link, nics_of
from netsplit.graph.ir import Graph, Initializer, Node, Variable
from netsplit.placement.exchange import Exchange
from netsplit.placement.placement import Placement, Shard, SolverReport, Stage
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program import Program, Schedule, compile_program

__all__ = [
    "behind_nics", "chain", "cluster_of", "compile_placed", "costs_of", "cpus", "graph_fed", "graph_of",
    "graph_of_nodes", "linked",
]  # fmt: skip

Tensors = Sequence[tuple[str, int, Sequence[str]]]  # (producer, bytes, consumers)


def graph_of(
    names: Sequence[str],
    tensors: Tensors,
    weights: Mapping[str, int] | None = None,
    colocated: Sequence[Sequence[str]] = (),
    units: Sequence[Sequence[str]] = (),
) -> Graph:
    """A graph with nodes in the given order; a tensor of producer "" is an input of the graph."""
    weights = weights or {}
    variables = {
        f"t{i}": Variable(f"t{i}", "uint8", (nbytes,), producer or None, tuple(consumers))
        for i, (producer, nbytes, consumers) in enumerate(tensors)
    }
    nodes = {
        name: Node(
            name,
            "aten.relu.default",
            inputs=tuple(k for k, v in variables.items() if name in v.consumers),
            outputs=tuple(k for k, v in variables.items() if v.producer == name),
            initializers=(f"w_{name}",) if name in weights else (),
        )
        for name in names
    }
    return Graph(
        nodes=nodes,
        variables=variables,
        input_variables=tuple(k for k, v in variables.items() if v.producer is None),
        output_variables=tuple(k for k, v in variables.items() if not v.consumers),
        initializers={
            f"w_{name}": Initializer(f"w_{name}", "uint8", (n,), True, True) for name, n in weights.items()
        },
        units=tuple(tuple(unit) for unit in units),
        colocated=tuple(tuple(group) for group in colocated),
    )


def graph_fed(feeders: Mapping[str, Sequence[str]], weights: Mapping[str, int] | None = None) -> Graph:
    """Node -> those it reads from; each makes one variable `k_<node>` of 16 bytes, the last the loss."""
    weights = weights or {}
    entries = tuple(name for name, feeds in feeders.items() if not feeds)
    variables = {"x": Variable("x", "float32", (1,), None, entries)}
    nodes = {}
    for name, feeds in feeders.items():
        readers = tuple(v for v, others in feeders.items() if name in others)
        variables[f"k_{name}"] = Variable(f"k_{name}", "float32", (4,), name, readers, requires_grad=True)
        inputs = tuple(f"k_{u}" for u in feeds) or ("x",)
        own = (f"w_{name}",) if name in weights else ()
        nodes[name] = Node(name, "test.operator.default", inputs, (f"k_{name}",), own)
    initializers = {f"w_{n}": Initializer(f"w_{n}", "float32", (w,), True, True) for n, w in weights.items()}
    return Graph(nodes, variables, ("x",), (f"k_{list(feeders)[-1]}",), initializers)


def graph_of_nodes(*nodes: Node) -> Graph:
    """Nodes alone, without the variables between them."""
    return Graph({node.name: node for node in nodes}, {}, (), (), {})


def linked(names: Sequence[str], link: Link, kinds: Sequence[str] | None = None) -> Cluster:
    """Devices of these names, with room for anything, and the same link between any two."""
    kinds = kinds or ["cpu"] * len(names)
    devices = tuple(Device(name, kind, 2**40) for name, kind in zip(names, kinds, strict=True))
    return Cluster("test", devices, {(p, q): link for p in names for q in names if p != q})


def cluster_of(
    capacities: Sequence[int],
    latency_s: float = 0.0,
    seconds_per_byte: float = 0.01,
    kinds: Sequence[str] | None = None,
) -> Cluster:
    """Devices "d0", "d1", ... with the same link between any two."""
    cluster = linked([f"d{p}" for p in range(len(capacities))], Link(latency_s, seconds_per_byte), kinds)
    devices = [replace(d, capacity_bytes=c) for d, c in zip(cluster.devices, capacities, strict=True)]
    return replace(cluster, devices=tuple(devices))


def cpus(devices: int, capacity: int = 2**40) -> Cluster:
    """CPU devices of one host, with given links."""
    cluster = linked([f"cpu:{rank}" for rank in range(devices)], Link(1e-5, 1e-9))
    here = tuple(replace(device, capacity_bytes=capacity, host="here") for device in cluster.devices)
    return replace(cluster, name=f"cpu{devices}", devices=here)


def costs_of(
    graph: Graph,
    forward_s: float = 1.0,
    backward_s: float = 2.0,
    alpha: int = 2,
    kinds: Sequence[str] = ("cpu",),
) -> Costs:
    each = DeviceCosts(dict.fromkeys(graph.nodes, NodeSeconds(forward_s, backward_s)))
    return Costs(dict.fromkeys(kinds, each), alpha)


def chain(nbytes: Sequence[int], weights: Mapping[str, int] | None = None, **others: object) -> Graph:
    """n0 -> n1 -> ... with tensors of these bytes between them."""
    names = [f"n{i}" for i in range(len(nbytes) + 1)]
    tensors = [(names[i], size, [names[i + 1]]) for i, size in enumerate(nbytes)]
    return graph_of(names, tensors, weights, **others)  # type: ignore[arg-type]


def behind_nics(cluster: Cluster, draw: random.Random, shared: bool = True) -> Cluster:
    """With some of its devices behind NICs of two hosts, which are as fast as a link through them or faster.

    Args:
        shared: False: the NICs take no time, so that nothing waits for them.
    """
    hosts: dict[str, list[str]] = {}
    for device in cluster.devices:
        if (host := draw.choice(["a", "a", "b", "b", None])) is not None:
            hosts.setdefault(host, []).append(device.name)
    out, into = (draw.choice([1.0, 1.0, 0.5, 0.1]) if shared else 0.0 for _ in range(2))
    nics = tuple(
        replace(nic, out_s_per_byte=nic.out_s_per_byte * out, in_s_per_byte=nic.in_s_per_byte * into)
        for nic in nics_of(hosts, cluster.links)
    )
    return replace(cluster, nics=nics)


def compile_placed(
    graph: Graph,
    device_of: Mapping[str, str],
    priority: Mapping[str, int],
    cluster: Cluster,
    schedule: Schedule,
    training: bool = True,
    replicas: Mapping[str, tuple[str, ...]] | None = None,
    shared_norm: bool = False,
    turns: Mapping[str, tuple[str, ...]] | None = None,
    cuts: Sequence[str] = (),
    recomputed: Collection[str] = (),
    costs: Costs | None = None,
    exchanges: Sequence[Exchange] = (),
    shards: Sequence[Shard] = (),
) -> Program:
    """The program of a placement that is given in pieces.

    Args:
        replicas: first replica -> all of them.
        turns: first replica -> whose turn the micro-batches are.
    """
    stages = []
    for first, devices in (replicas or {}).items():
        nodes = tuple(name for name, home in device_of.items() if home == first)
        stages.append(Stage(nodes, devices, turns=tuple(map(devices.index, (turns or {}).get(first, ())))))
    placement = Placement(
        "given", dict(device_of), dict(priority), SolverReport("heuristic", 0.0), tuple(stages), tuple(cuts),
        frozenset(recomputed), exchanges=tuple(exchanges), shards=tuple(shards),
    )  # fmt: skip
    return compile_program(graph, placement, cluster, schedule, training, shared_norm, costs)
