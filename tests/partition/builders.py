"""Small problems for the partitioners' tests: by hand, drawn by hypothesis, or large and seeded."""

import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from netsplit.cluster.cluster import Link
from netsplit.partition import Problem
from netsplit.profile.costs import ALL_OF_IT, Costs, DeviceCosts, NodeSeconds
from netsplit.profile.memory import memory_of
from tests.builders import cluster_of, graph_of


def required_bytes(problem: Problem) -> int:
    graph = problem.graph
    return memory_of(graph, graph.nodes, problem.costs.alpha, problem.copies)


def with_capacities(problem: Problem, capacities: Sequence[int]) -> Problem:
    devices = tuple(
        replace(d, capacity_bytes=c) for d, c in zip(problem.cluster.devices, capacities, strict=True)
    )
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


@st.composite
def problems(
    draw: st.DrawFn, max_nodes: int = 8, max_devices: int = 3, roomy: bool = False, colocate: bool = True
) -> Problem:
    """Random DAGs with inputs, fan-out, weights, colocated sets, two device kinds, uneven links."""
    n = draw(st.integers(1, max_nodes))
    names = [f"n{i}" for i in range(n)]
    tensors: list[tuple[str, int, list[str]]] = [("", draw(st.integers(0, 20)), [names[0]])]
    for i, name in enumerate(names):
        later = names[i + 1 :]
        readers = draw(st.lists(st.sampled_from(later), max_size=3, unique=True)) if later else []
        tensors.append((name, draw(st.integers(0, 50)), sorted(readers, key=names.index)))
    weighted = {name: draw(st.integers(0, 60)) for name in names if draw(st.booleans())}
    pair = draw(st.lists(st.sampled_from(names), min_size=2, max_size=3, unique=True)) if n > 2 else []
    colocated = [sorted(pair, key=names.index)] if colocate and pair and draw(st.booleans()) else []
    graph = graph_of(names, tensors, weighted, colocated)

    seconds = st.floats(0.0, 2.0)
    kinds = ("cpu", "gpu")
    costs = Costs(
        {
            kind: DeviceCosts({name: NodeSeconds(draw(seconds), draw(seconds)) for name in names})
            for kind in kinds
        },
        alpha=draw(st.integers(2, 4)),
    )
    m = draw(st.integers(1, max_devices))
    cluster = cluster_of([0] * m, kinds=[draw(st.sampled_from(kinds)) for _ in range(m)])
    link = st.builds(Link, st.floats(0.0, 0.5), st.floats(0.0, 0.05))
    cluster = cluster.with_links({ends: draw(link) for ends in cluster.links})
    problem = Problem(
        graph, costs, cluster, in_flight=draw(st.integers(1, 2)), seed=draw(st.integers(0, 2**40))
    )
    total = required_bytes(problem)
    fraction = st.just(1.0) if roomy else st.floats(0.3, 1.3)
    return with_capacities(problem, [round(total * draw(fraction)) for _ in range(m)])


def large_problem(nodes: int, devices: int = 3, room: float = 1.3, seed: int = 0) -> Problem:
    """A network-like DAG with about two edges a node; all devices together have `room` x the need."""
    draw = random.Random(seed)
    names = [f"n{i}" for i in range(nodes)]
    readers: dict[str, list[str]] = {name: [] for name in names}
    for i in range(1, nodes):
        for back in {1, draw.randint(2, 6)} if i > 6 else {1}:
            readers[names[i - back]].append(names[i])
    tensors = [("", 1 << 20, [names[0]])]
    tensors += [(name, draw.randint(1 << 10, 1 << 24), reading) for name, reading in readers.items()]
    weights = {name: draw.randint(1 << 10, 1 << 22) for name in names[::3]}
    graph = graph_of(names, tensors, weights)
    each = {name: NodeSeconds(draw.uniform(1e-4, 1e-3), draw.uniform(2e-4, 2e-3)) for name in names}
    problem = Problem(graph, Costs({"cpu": DeviceCosts(each)}, 4), cluster_of([0] * devices, 1e-4, 1e-10))
    return with_capacities(problem, [int(required_bytes(problem) * room / devices)] * devices)


def trained(problem: Problem, fraction: float = 0.8, seed: int = 0) -> Problem:
    """The problem with gradients through a fraction of its variables; where none passes is no backward."""
    draw = random.Random(seed)
    graph = problem.graph
    variables = {
        k: replace(v, requires_grad=v.producer is not None and draw.random() < fraction)
        for k, v in graph.variables.items()
    }
    graph = replace(graph, variables=variables)
    reached = {v for v, node in graph.nodes.items() if graph.requires_backward.intersection(node.outputs)}
    costs = problem.costs
    for kind, each in costs.devices.items():
        seconds = {v: s if v in reached else NodeSeconds(s.forward_s, 0.0) for v, s in each.nodes.items()}
        costs = costs.with_device(kind, nodes=seconds)
    return replace(problem, graph=graph, costs=costs)


def disturbed(problem: Problem, draw: random.Random) -> Problem:
    """With costs in every field, and devices that share hosts and their processors."""
    costs = problem.costs
    for kind in costs.devices:
        costs = costs.with_device(
            kind,
            step_s_per_byte=draw.choice([0.0, 0.01]),
            instruction_s=draw.choice([0.0, 0.03]),
            message_s=draw.choice([None, 0.0, 0.05]),
            contention=draw.choice([1.0, 1.0, 1.7, 3.0]),
            copy_s_per_byte=draw.choice([0.0, 0.0, 0.01, 0.1, ALL_OF_IT]),
            accumulate_s_per_byte=0.01,
        )
    processors = {host: draw.choice([None, None, 0.5, 1.0, 1.5, 2.0]) for host in (None, "a", "b")}
    hosts = [draw.choice([None, "a", "a", "b"]) for _ in problem.cluster.devices]
    devices = tuple(
        replace(d, host=host, processors=processors[host])
        for d, host in zip(problem.cluster.devices, hosts, strict=True)
    )
    return replace(problem, costs=costs, cluster=replace(problem.cluster, devices=devices))
