"""Functions compiled by numba, for modules that are imported lazily: numba takes a second to load."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

__all__ = ["compile_all", "compiled", "inlined", "inner"]

compiled: Any = njit(cache=True, nogil=True, no_cfunc_wrapper=True)
"""Compiled at the first call, kept on disk, and run without the interpreter's lock."""

inner: Any = njit(cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""For what compiled functions alone call: nothing is compiled for calls from Python."""

inlined: Any = njit(cache=True, nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)
"""As `inner`, for small work in every turn of a loop: passing tuples of arrays on would take as long."""


def compile_all() -> None:
    """Compile what is compiled, so that no later plan waits for it: half a minute, once an installation."""
    from dataclasses import replace

    from netsplit.cluster.cluster import Cluster, Device, Link
    from netsplit.graph.ir import Graph, Node, Variable
    from netsplit.partition.base import Latency, Problem
    from netsplit.partition.common.instance import Instance
    from netsplit.partition.engines.kernels import Step
    from netsplit.partition.max_load.frontier import Frontier
    from netsplit.partition.max_load.model import Hypergraph
    from netsplit.partition.methods.auto.auto import Auto
    from netsplit.partition.methods.exact.enumeration import best_order, least_s
    from netsplit.partition.methods.exact.netsplit_exact import NetSplitExact
    from netsplit.partition.objectives import MaxLoad
    from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds

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
    problem = Problem(graph, costs, Cluster("small", devices, links), time_limit_s=60.0)
    NetSplitExact().partition(problem)
    tried, arrays = np.array([0, 1, 0]), Step(Instance.of(problem)).arrays
    least_s(tried, arrays)
    best_order(tried, np.array([0, 1, 2]), arrays, 100.0)
    for objective in (Latency(), MaxLoad(), MaxLoad(contiguous=True)):
        Auto(starts=1).partition(replace(problem, objective=objective))
    model = Hypergraph.of(Instance.of(problem))
    frontier = Frontier.of(model, 0, np.arange(model.count))
    assert frontier is not None
    frontier.most(np.ones(model.count), 2.0, 0.0, 100)
