"""What devices are idle at a pipeline's ends: never more than they are in any placement."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsplit.errors import NetSplitError
from netsplit.partition import Problem
from netsplit.partition.bounds.iteration_bound import iteration_bound_s
from netsplit.partition.bounds.iteration_tasks import AnySchedule, IterationTasks
from netsplit.partition.bounds.pipeline_ends import PipelineEnds
from netsplit.partition.common.instance import Instance
from tests.builders import chain, cluster_of, costs_of
from tests.examples import tried
from tests.partition.builders import problems
from tests.planning.test_proven import NEVER, drawn, placements


@settings(max_examples=tried(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(max_nodes=4, max_devices=3), seed=st.integers(0, 10**6))
def test_nor_is_one_with_replicas_of_other_nodes(problem: Problem, seed: int) -> None:
    draw = random.Random(seed)
    problem = drawn(problem, draw)
    alone = frozenset(draw.sample(list(problem.graph.nodes), draw.randint(1, len(problem.graph.nodes))))
    schedule = replace(AnySchedule.under(problem.the_simulator, within=False), alone=alone)
    bound_s = iteration_bound_s(problem, schedule)
    assert problem.simulator is not None
    for placement in placements(problem, draw):
        if any(len(stage.devices) > 1 and alone & set(stage.nodes) for stage in placement.stages):
            continue
        try:
            timeline = problem.simulator(placement)  # type: ignore[arg-type]
        except NetSplitError:  # replicas under 2BW
            continue
        assert bound_s <= timeline.iteration_s * NEVER + 1e-12  # type: ignore[attr-defined]


def ends_of(bytes_: int, alone: bool) -> tuple[float, float]:
    """Ends of a chain of four nodes of a second on three devices, and the bound of 30 micro-batches."""
    graph = chain([bytes_] * 3)
    problem = Problem(graph, costs_of(graph, 1.0, 0.0), cluster_of([10**6] * 3, 0.0, 1.0))
    schedule = AnySchedule(30, training=False, alone=frozenset(graph.nodes if alone else ()))
    tasks = IterationTasks.of(Instance.of(problem), schedule)
    ends = PipelineEnds.of(tasks, schedule, np.full(4, alone))
    return ends.outside_s(tasks.work_s.max(axis=1) > 0, 3, 1e9), iteration_bound_s(problem, schedule)


def test_devices_begin_and_end_with_unlike_nodes() -> None:
    """In 0, 1 and 2 seconds at the earliest, and as long before the end: 6 of idle time to 120 of work."""
    outside_s, bound_s = ends_of(0, alone=True)
    assert outside_s == pytest.approx(0 + 1 + 2 + 0 + 1 + 2)
    assert bound_s == pytest.approx((120 + 6) / 3, rel=1e-6)
