"""No placement of small graphs needs less than the bounds; some need no more."""

from __future__ import annotations

from collections import Counter
from itertools import product

from benchmarks.memory.bounds import bound_of_any, bound_of_pipelines
from netsplit.graph.ir import Graph, Initializer, Node, Variable
from netsplit.program import GPipe, Schedule
from netsplit.program.schedules import ZBH1, OneFOneB
from netsplit.simulate import predicted_peak_bytes
from tests.builders import compile_placed, cpus
from tests.cover import covering

ALPHA = 3
SCHEDULES: dict[str, Schedule] = {"gpipe": GPipe(4), "1f1b": OneFOneB(4), "zb_h1": ZBH1(4)}


def graph_of(reads: dict[str, str], saved: dict[str, int], weight: int = 10) -> Graph:
    """`reads`: of each node those before it, a letter each, or x; the last is the loss. A node saves `saved`
    bytes of its own and, as `k_a` of 8 bytes, what its first feeder made."""
    readers = {k: tuple(v for v, before in reads.items() if k in before) for k in ("x", *reads)}
    nodes = {
        name: Node(
            name,
            "test.operator.default",
            tuple("x" if u == "x" else f"k_{u}" for u in before),
            (f"k_{name}",),
            initializers=(f"w_{name}",),
            saved=() if before[0] == "x" else (f"k_{before[0]}",),
            saved_bytes=saved[name],
        )
        for name, before in reads.items()
    }
    variables = {"x": Variable("x", "uint8", (5,), None, readers["x"])}
    for name in reads:
        variables[f"k_{name}"] = Variable(f"k_{name}", "uint8", (8,), name, readers[name], requires_grad=True)
    weights = {f"w_{name}": Initializer(f"w_{name}", "uint8", (weight,), True, True) for name in reads}
    return Graph(nodes, variables, ("x",), (f"k_{list(reads)[-1]}",), weights)


GRAPHS = {
    "chain": graph_of(dict(zip("abcdef", "xabcde", strict=True)), dict.fromkeys("abcdef", 100)),
    "uneven chain": graph_of(
        dict(zip("abcdef", "xabcde", strict=True)), {"a": 10, "b": 500, "c": 0, "d": 90, "e": 300, "f": 40}
    ),
    "heavy weights": graph_of(dict(zip("abcde", "xabcd", strict=True)), dict.fromkeys("abcde", 60), 400),
    "diamond": graph_of(
        {"a": "x", "b": "a", "c": "a", "d": "a", "e": "bcd", "f": "e"}, dict.fromkeys("abcdef", 100)
    ),
    "residual": graph_of(
        {"a": "x", "b": "a", "c": "ba", "d": "c", "e": "dc", "f": "e"}, dict.fromkeys("abcdef", 100)
    ),
    "spokes": graph_of(
        {"a": "x", "b": "x", "c": "a", "d": "b", "e": "cd"}, {"a": 1, "b": 1, "c": 300, "d": 300, "e": 300}
    ),
}


def needs(graph: Graph, schedule: Schedule, devices: int) -> list[tuple[int, bool]]:
    """The fullest device's bytes under every placement, and whether each device has one segment."""
    each = []
    for where in product(range(devices), repeat=len(graph)):
        device_of = {name: f"cpu:{rank}" for name, rank in zip(graph.nodes, where, strict=True)}
        program = compile_placed(graph, device_of, graph.position, cpus(devices), schedule)
        visits = Counter(segment.device for segment in program.segments)
        most = max(predicted_peak_bytes(program, ALPHA).values())
        each.append((most, max(visits.values()) == 1))
    return each


@covering(name=GRAPHS, schedule=SCHEDULES, devices=[2])
def test_no_placement_needs_less(name: str, schedule: str, devices: int) -> None:
    graph, asked = GRAPHS[name], SCHEDULES[schedule]
    every = needs(graph, asked, devices)
    any_plan = bound_of_any(graph, asked, ALPHA, devices)
    assert min(most for most, _ in every) >= any_plan
    if schedule != "gpipe":
        pipelines = bound_of_pipelines(graph, asked, ALPHA, devices)
        least = min(most for most, once in every if once)
        assert least >= pipelines >= any_plan
