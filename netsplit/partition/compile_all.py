"""All that numba compiles, compiled once: run when NetSplit is installed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import inf

from netsplit.cluster.cluster import Cluster, Device, Link
from netsplit.graph.ir import Graph, Node, Variable
from netsplit.layout import Layout, Mesh
from netsplit.partition.base import Latency, Problem
from netsplit.partition.engines.search import Search
from netsplit.partition.methods.auto.auto import Auto
from netsplit.partition.methods.exact.netsplit_exact import NetSplitExact
from netsplit.partition.methods.list_schedulers import Heft
from netsplit.partition.methods.unity.choices import Machines
from netsplit.partition.methods.unity.movement import Movement
from netsplit.partition.objectives import MaxLoad
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program import GPipe
from netsplit.simulate.simulator import Simulator

__all__ = ["compile_all", "load_kernels"]


def _small_problem() -> Problem:
    names = ("a", "b", "c")
    variables = {
        "x": Variable("x", "uint8", (1,), "a", ("b",)),
        "y": Variable("y", "uint8", (1,), "b", ("c",)),
        "z": Variable("z", "uint8", (1,), "c", ()),
    }
    ends = {"a": ((), ("x",)), "b": (("x",), ("y",)), "c": (("y",), ("z",))}
    graph = Graph({v: Node(v, "none", *ends[v]) for v in names}, variables, (), ("z",), {})
    devices = tuple(Device(name, "any", 4) for name in ("p", "q"))
    links = {("p", "q"): Link(0.1, 0.1), ("q", "p"): Link(0.1, 0.1)}
    costs = Costs({"any": DeviceCosts(dict.fromkeys(names, NodeSeconds(1.0, 0.0)))}, alpha=1)
    return Problem(graph, costs, Cluster("small", devices, links), time_limit_s=60.0)


@cache
def load_kernels() -> None:
    """Load or compile the inner loops before a decision looks at the clock. Once a process."""
    problem = _small_problem()
    Heft().partition(problem)
    Search(problem, 1, inf, (), "").compile()


def compile_all() -> None:
    """Compile what is compiled, so that no later plan waits for it: half a minute, once an installation."""
    problem = _small_problem()
    NetSplitExact().partition(problem)
    Simulator(problem.graph, problem.cluster, problem.costs, GPipe(1))(Heft().partition(problem))
    halves = [Layout(Mesh((0, 1), (2,)), "S0")]
    Movement(Machines.of(problem), problem.costs).seconds(halves, halves, (2,), 1, True)
    for objective in (Latency(), MaxLoad(), MaxLoad(contiguous=True)):
        Auto(starts=1).partition(replace(problem, objective=objective))
