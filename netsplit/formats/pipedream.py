"""PipeDream's `graph.txt` (github msr-fiddle/pipedream, graph/graph.py): a profiled model, layer by layer.

One line a node, one tab-indented line an edge::

    node4 -- Conv2d(64, 128) -- forward_compute_time=1.370, backward_compute_time=2.930,
        activation_size=60211200.0, parameter_size=221184.0 [-- stage_id=0]
    <tab>node4 -- node5

Milliseconds and bytes. As in PipeDream's planner, `Input` nodes cost no time (data loading was measured
there), and sinks that only pick an item of a result (`__getitem__`) are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from netsplit.errors import NetSplitError
from netsplit.formats.text import ProfiledTask, checked_number, task_graph, topological
from netsplit.partition.objectives import StageTime
from netsplit.planning.workload import ACCELERATOR, Workload
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds

__all__ = ["INPUT", "Inputs", "read_pipedream"]

Inputs = Literal["free", "profiled"]

INPUT = "Input"
"""`Node.op` of loaded data, to which no gradient goes back."""

ALPHA = 2  # the file knows no optimiser: a parameter and its gradient
UNIT_S = 1e-3

_NODE = re.compile(
    r"(?P<id>\S+) -- (?:(?P<description>.*) -- )?"
    r"forward_compute_time=(?P<forward>[^,]*), *backward_compute_time=(?P<backward>[^,]*), *"
    r"activation_size=(?P<activation>\[[^\]]*\]|[^,]*), *parameter_size=(?P<parameters>[^,\s]*)"
    r"(?: -- stage_id=(?P<stage>\S+))?\s*"
)
_READS = (
    "id -- description -- forward_compute_time=..., backward_compute_time=..., activation_size=..., "
    "parameter_size=..."
)
_EDGE = re.compile(r"\s+(?P<source>\S+) -- (?P<target>\S+)\s*")


@dataclass(frozen=True)
class _Line:
    """One node as the file gives it: milliseconds and bytes."""

    description: str
    forward: float
    backward: float
    activation: int
    parameters: int

    @property
    def is_input(self) -> bool:
        return self.description.startswith("Input")

    @property
    def operator(self) -> str:
        """``Conv2d`` of ``Conv2d(3, 64, kernel_size=(3, 3))``."""
        return self.description.partition("(")[0].strip().replace(".", "_") or "node"


def read_pipedream(text: str, where: str, name: str, inputs: Inputs = "free") -> Workload:
    """The workload of a `graph.txt`.

    Every node makes one variable of its `activation_size` (a bracketed list is summed), and holds one
    initializer of its `parameter_size`. Gradients go back along every edge except to `Input` nodes.

    Args:
        where: the file, for errors.
        inputs: ``free`` as in PipeDream's planner; ``profiled`` keeps the seconds of `Input` nodes, as in
            Baechi's published runs.

    Raises:
        NetSplitError: the first line that is wrong.
    """
    lines, edges = _parse(text, where)
    read = {u for u, _ in edges}
    dropped = {v for v, e in lines.items() if e.description.startswith("__getitem__") and v not in read}
    lines = {node: line for node, line in lines.items() if node not in dropped}
    edges = {ends: line for ends, line in edges.items() if ends[1] not in dropped}
    if not lines:
        raise NetSplitError(f"{where}: the file has no node that computes.")
    places = {e: f"{where}, line {n}" for e, n in edges.items()}
    order = topological(list(lines), list(edges), places, where, breadth_first=True)
    tasks = {
        node: ProfiledTask(
            INPUT if line.is_input else line.operator,
            line.description,
            line.activation,
            line.parameters,
            differentiable=not line.is_input,
        )
        for node, line in lines.items()
    }
    graph = task_graph(order, list(edges), tasks)
    seconds = {
        node: NodeSeconds(0.0, 0.0)
        if lines[node].is_input and inputs == "free"
        else NodeSeconds(lines[node].forward * UNIT_S, lines[node].backward * UNIT_S)
        for node in order
    }
    remarks = []
    if dropped:
        remarks.append(f"removed {len(dropped)} unread items (__getitem__): {', '.join(sorted(dropped))}")
    loading = sum(line.forward + line.backward for line in lines.values() if line.is_input)
    if loading and inputs == "free":
        remarks.append(f"{loading:g} ms of data loading at Input nodes are ignored")
    return Workload(
        name=name,
        graph=graph,
        costs=Costs({ACCELERATOR: DeviceCosts(seconds)}, ALPHA),
        unit="ms",
        unit_s=UNIT_S,
        period=StageTime(),
        remarks=tuple(remarks),
    )


def _parse(text: str, where: str) -> tuple[dict[str, _Line], dict[tuple[str, str], int]]:
    """Nodes by id, and edges with their line numbers."""
    lines: dict[str, _Line] = {}
    edges: dict[tuple[str, str], int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        place = f"{where}, line {number}"
        if not line.strip():
            continue
        if line[0].isspace():
            edge = _EDGE.fullmatch(line)
            if edge is None:
                raise NetSplitError(f"{place}: not an edge: write '<tab>node1 -- node2'.")
            edges.setdefault((edge["source"], edge["target"]), number)
            continue
        node = _NODE.fullmatch(line)
        if node is None:
            raise NetSplitError(f"{place}: not a node: write '{_READS}'.")
        if node["id"] in lines:
            raise NetSplitError(f"{place}: node '{node['id']}' appears twice.")
        lines[node["id"]] = _Line(
            description=(node["description"] or "").strip(),
            forward=checked_number(node["forward"], "forward_compute_time", place),
            backward=checked_number(node["backward"], "backward_compute_time", place),
            activation=_activation(node["activation"], place),
            parameters=round(checked_number(node["parameters"], "parameter_size", place)),
        )
    for ends, number in edges.items():
        for end in ends:
            if end not in lines:
                raise NetSplitError(
                    f"{where}, line {number}: the edge names '{end}', which is not a node of the file."
                )
    return lines, edges


def _activation(text: str, place: str) -> int:
    items = text.strip("[] ").split(";") if text.startswith("[") else [text]
    return round(
        sum(
            checked_number(item.strip(), "activation_size", place)
            for item in items
            if item.strip() or len(items) == 1
        )
    )
