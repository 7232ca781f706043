"""How many instructions the simulator predicts in a second: `python -m benchmarks.simulator`.

Chains of segments over four devices under gpipe and 1f1b, with 1,000, 10,000 and 50,000 instructions: once
where nothing disturbs a computation, and once where computations slow one another and transfers take their
time. Predicted bytes are part of what is timed. The time is the shortest of `--rounds`.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import replace

from netsplit.cluster.cluster import Cluster, Device, Link
from netsplit.graph.ir import Graph, Initializer, Node, Variable
from netsplit.placement.placement import Placement
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program import compile_program
from netsplit.program.instructions import Program
from netsplit.program.schedules import GPipe, OneFOneB, Schedule
from netsplit.simulate import simulate

SIZES = (1_000, 10_000, 50_000)
DEVICES, SEGMENTS, NODES = 4, 8, 64
_PER_MICROBATCH = 2 * SEGMENTS + 4 * (SEGMENTS - 1)  # forwards and backwards, both ends of transfers each way


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    graph, cluster = chain(NODES), cluster_of(DEVICES)
    print(f"{'schedule':10} {'instructions':>12} {'seconds':>9} {'per second':>11} {'disturbed':>10}")
    for schedule_of in (GPipe, OneFOneB):
        for size in SIZES:
            schedule = schedule_of(max(size // _PER_MICROBATCH, 1))
            program = compiled(graph, cluster, schedule)
            count = sum(map(len, program.instructions.values()))
            calm, disturbed = (
                best_s(program, cluster, costs_of(graph, each), options.rounds) for each in (False, True)
            )
            print(f"{schedule.name:10} {count:12,} {calm:9.3f} {count / calm:11,.0f} {disturbed:9.3f}s")


def chain(nodes: int) -> Graph:
    """Each node reads the one before it and has a parameter."""
    names = [f"n{i}" for i in range(nodes)]
    variables = {"x": Variable("x", "float32", (16,), None, (names[0],))}
    for name, reader in zip(names, [*names[1:], None], strict=True):
        readers = () if reader is None else (reader,)
        variables[f"k_{name}"] = Variable(f"k_{name}", "float32", (1024,), name, readers, requires_grad=True)
    inputs = ["x", *(f"k_{name}" for name in names)]
    chained = {
        name: Node(name, "bench.operator.default", (k,), (f"k_{name}",), (f"w_{name}",), saved=(k,))
        for name, k in zip(names, inputs, strict=False)
    }
    weights = {f"w_{name}": Initializer(f"w_{name}", "float32", (256,), True, True) for name in names}
    return Graph(chained, variables, ("x",), (f"k_{names[-1]}",), weights)


def cluster_of(devices: int) -> Cluster:
    names = [f"cpu:{rank}" for rank in range(devices)]
    links = {(p, q): Link(2e-5, 1e-9) for p in names for q in names if p != q}
    return Cluster("bench", tuple(Device(name, "cpu", 2**40, host="bench") for name in names), links)


def costs_of(graph: Graph, disturbed: bool) -> Costs:
    rng = random.Random(0)
    seconds = {name: NodeSeconds(1e-3 * rng.random(), 2e-3 * rng.random()) for name in graph.nodes}
    costs = DeviceCosts(seconds, 1e-9, 5e-5)
    return Costs({"cpu": replace(costs, contention=1.1, copy_s_per_byte=1e-10) if disturbed else costs}, 3)


def compiled(graph: Graph, cluster: Cluster, schedule: Schedule) -> Program:
    """The chain in equal pieces, by turns on all devices."""
    names = [device.name for device in cluster.devices]
    device_of = {
        name: names[i * SEGMENTS // len(graph.nodes) % len(names)] for i, name in enumerate(graph.nodes)
    }
    return compile_program(graph, Placement.given(device_of, graph.position), cluster, schedule)


def best_s(program: Program, cluster: Cluster, costs: Costs, rounds: int) -> float:
    """Shortest time of a prediction, in seconds."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        simulate(program, cluster, costs)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


if __name__ == "__main__":
    main()
