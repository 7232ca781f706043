"""OS-DPOS within capacities: where replicas fit side by side, something is answered, and it fits."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from netsplit.cluster.cluster import Link
from netsplit.graph import Graph, capture
from netsplit.partition import OsDpos, Placement, Problem, SolverReport
from netsplit.partition.base import MemoryRule
from netsplit.partition.common.instance import Instance
from netsplit.partition.common.priority import topological_priority
from netsplit.partition.common.side_by_side import side_by_side
from netsplit.planning.fitting import fitted
from netsplit.planning.needed_bytes import needed_bytes
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program import GPipe, Schedule, SingleBatch
from netsplit.rewrite import replicate
from tests.builders import cluster_of
from tests.examples import tried
from tests.partition.methods.test_os_dpos import Branches, recurrences

quiet = settings(deadline=None, suppress_health_check=list(HealthCheck))
SCHEDULES: tuple[Schedule, ...] = (SingleBatch(), GPipe(2))
MEMORY: tuple[MemoryRule, ...] = ("lifetimes", "static")


def ways(lengths: tuple[int, ...], samples: int) -> Graph:
    batch = torch.randn(samples, 6), torch.randint(3, (samples,))
    return capture(Branches(lengths), nn.CrossEntropyLoss(), batch)


GRAPHS = {"one way": ways((3,), 64), "two ways": ways((2, 1), 16), "recurrences": recurrences()}


def replicas_of(problem: Problem) -> tuple[Problem, Placement]:
    """Part j of every operator on device j."""
    own = problem.rewritten(replicate(problem.graph, len(problem.cluster.devices)))
    graph = own.graph
    order = topological_priority(graph, graph.position)
    device_of = side_by_side(graph, problem.cluster)
    return own, Placement("given", device_of, order, SolverReport("heuristic", 0.0), rewrites=graph.rewrites)


def with_room(problem: Problem, nbytes: list[int]) -> Problem:
    devices = problem.cluster.devices
    given = tuple(replace(each, capacity_bytes=own) for each, own in zip(devices, nbytes, strict=True))
    return problem.moved_to(replace(problem.cluster, devices=given), problem.costs)


@st.composite
def replicas_that_fit(draw: st.DrawFn) -> Problem:
    """Small models; seconds and links drawn; room for one replica on each device, and little more."""
    graph, count = GRAPHS[draw(st.sampled_from(list(GRAPHS)))], draw(st.integers(2, 4))
    reached, seconds = graph.requires_backward, st.floats(0.01, 3.0)
    nodes = {
        v: NodeSeconds(draw(seconds), draw(seconds) if reached & {*node.outputs} else 0.0)
        for v, node in graph.nodes.items()
    }
    costs = Costs({"cpu": DeviceCosts(nodes, accumulate_s_per_byte=1e-6)}, 2)
    link = st.builds(Link, st.floats(0.0, 0.1), st.floats(0.0, 0.01))
    cluster = cluster_of([10**9] * count)
    cluster = cluster.with_links({ends: draw(link) for ends in cluster.links})
    problem = Workload("drawn", graph, costs, cluster).problem(
        objective="simulated", schedule=draw(st.sampled_from(SCHEDULES)), memory=draw(st.sampled_from(MEMORY))
    )
    own, placement = replicas_of(problem)
    needed = needed_bytes(Instance.of(own), placement).tolist()
    return with_room(problem, [ceil(each * draw(st.sampled_from([1.0, 1.01, 1.2]))) for each in needed])


@settings(quiet, max_examples=tried(24))
@given(problem=replicas_that_fit())
def test_what_fits_as_replicas_is_never_refused(problem: Problem) -> None:
    placement = fitted(problem, OsDpos(time_limit_s=1.0))
    instance = Instance.of(problem.rewritten(placement.rewrites))
    assert (needed_bytes(instance, placement) <= instance.capacity).all()
