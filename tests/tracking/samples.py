"""Small hand-made inputs, and one graph of cells as large as the default experiment's."""

from __future__ import annotations

from collections.abc import Mapping

from netsplit.graph.ir import Graph, Initializer, Node, Variable
from netsplit.placement.placement import Placement, SolverReport
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.simulate.timeline import Event, Timeline
from netsplit.tracking.table import ComparisonRow


def timeline(scale: float = 1.0) -> Timeline:
    """Two micro-batches through two devices."""
    events = []
    for i in range(2):
        start = 0.004 * i
        events += [
            Event("cpu:0", "forward", "segment 0", i, start, start + 0.004),
            Event("cpu:0", "send", "x", i, start + 0.004, start + 0.005, peer="cpu:1", nbytes=4096),
            Event("cpu:1", "wait", "x", i, start + 0.0035, start + 0.005, peer="cpu:0"),
            Event("cpu:1", "forward", "segment 1", i, start + 0.005, start + 0.0074),
        ]
    events.append(Event("cpu:1", "backward", "segment 1", 1, 0.012, 0.016))
    events.append(Event("cpu:1", "step", "step", -1, 0.016, 0.017))
    scaled = [
        Event(e.device, e.kind, e.name, e.microbatch, scale * e.start_s, scale * e.end_s, e.peer, e.nbytes)
        for e in events
    ]
    return Timeline(tuple(scaled), scale * 0.017, {"cpu:0": 1000, "cpu:1": 2000})


def graph_of_operators(edges: Mapping[str, tuple[str, ...]], modules: Mapping[str, tuple[str, str]]) -> Graph:
    """A graph from node -> its predecessors, and node -> (operator kind, module)."""
    consumers: dict[str, list[str]] = {name: [] for name in edges}
    for name, before in edges.items():
        for other in before:
            consumers[other].append(name)
    variables = {
        f"v_{name}": Variable(f"v_{name}", "float32", (8, 16), name, tuple(users), True)
        for name, users in consumers.items()
    }
    nodes: dict[str, Node] = {}
    initializers: dict[str, Initializer] = {}
    for name, before in edges.items():
        kind, module = modules[name]
        owned = (f"{name}.weight",) if kind == "conv2d" else ()
        initializers |= {key: Initializer(key, "float32", (64,), True, True) for key in owned}
        inputs = tuple(f"v_{other}" for other in before)
        op = f"aten.{kind}.default"
        nodes[name] = Node(name, op, inputs, (f"v_{name}",), owned, module=module, saved=inputs)
    return Graph(nodes, variables, (), (f"v_{name}",), initializers)


def cells_graph(cells: int = 10) -> Graph:
    """Cells that feed the next two, each of 5 branches relu-conv-bn x2, their sums and a concatenation."""
    edges: dict[str, tuple[str, ...]] = {"stem": ()}
    modules = {"stem": ("conv2d", "stem")}
    previous = before = "stem"
    for c in range(cells):
        sums: list[str] = []
        for b in range(5):
            last = previous if b % 2 else before
            for step, kind in enumerate(("relu", "conv2d", "batch_norm") * 2):
                name = f"c{c}_b{b}_{step}"
                edges[name] = (last,)
                modules[name] = (kind, f"cells.{c}.operations.{b}.{step}")
                last = name
            edges[f"c{c}_add{b}"] = tuple(dict.fromkeys((last, sums[-1] if sums else previous)))
            modules[f"c{c}_add{b}"] = ("add", f"cells.{c}")
            sums.append(f"c{c}_add{b}")
        edges[f"c{c}_cat"] = (sums[-2], sums[-1])
        modules[f"c{c}_cat"] = ("cat", f"cells.{c}")
        before, previous = previous, f"c{c}_cat"
    return graph_of_operators(edges, modules)


def halves(graph: Graph) -> Placement:
    """The first half of the nodes on cpu:0, the others on cpu:1."""
    device_of = {name: f"cpu:{int(2 * i >= len(graph))}" for name, i in graph.position.items()}
    return Placement("halves", device_of, dict(graph.position), SolverReport("heuristic", 0.1))


def uneven_costs(graph: Graph) -> Costs:
    seconds = {name: NodeSeconds(1e-4 * (1 + i % 5), 2e-4) for name, i in graph.position.items()}
    return Costs({"cpu": DeviceCosts(seconds)}, 2)


def rows() -> list[ComparisonRow]:
    """One optimal method, one heuristic, one failed, one without a limit."""
    devices = {"cpu:0": 203, "cpu:1": 219}
    mib = 2**20
    return [
        ComparisonRow(
            "netsplit", "optimal", 0.1234, 0.0, 12.345, 0.2, 0.25, 128.04, 0.9375,
            {"cpu:0": 38 * mib, "cpu:1": 40 * mib}, {"cpu:0": 39 * mib, "cpu:1": 41 * mib},
            {"cpu:0": 48 * mib, "cpu:1": 48 * mib}, devices, 0.1234, optimises="one pass",
        ),
        ComparisonRow(
            "m_topo", "heuristic", solve_s=0.01, predicted_s=0.31, measured_s=0.3, throughput=106.7,
            score=0.9361, metric="accuracy", nodes={"cpu:0": 300, "cpu:1": 122}, loss=0.1301,
        ),
        ComparisonRow(
            "m_sct", "failed", error="cpu:1 lacks 12,345,678 bytes; raise [cluster] capacity_bytes."
        ),
        ComparisonRow("single", "heuristic", measured_s=0.45, throughput=71.0, nodes={"cpu:0": 422}),
    ]  # fmt: skip
