"""DPOS: ranks, the critical path and its device, finish times, the order, and the theorem's bound."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from netsplit.errors import InfeasibleError
from netsplit.partition import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.engines.insertion.tasks import StepTasks
from netsplit.partition.methods.list_schedulers import Dpos, longest_ranked_path, max_ranks
from netsplit.planning.verify import verify
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from tests.builders import cluster_of, graph_of
from tests.examples import tried
from tests.partition.builders import problems, with_capacities

examples = settings(max_examples=tried(60), deadline=None, suppress_health_check=list(HealthCheck))
ROOMY = 10**6


def forward_only(table):
    """Kind -> node -> seconds, as costs without a backward."""
    kinds = table.items()
    return Costs(
        {kind: DeviceCosts({v: NodeSeconds(s, 0.0) for v, s in each.items()}) for kind, each in kinds}, 2
    )


def diamond():
    """n0 feeds n1 (long) and n2 (short), both feed n3."""
    return graph_of(
        ["n0", "n1", "n2", "n3"],
        [("n0", 10, ["n1"]), ("n0", 20, ["n2"]), ("n1", 10, ["n3"]), ("n2", 10, ["n3"])],
    )


def test_ranks_take_the_largest_seconds_and_the_critical_path_follows_the_largest_ranks():
    table = {
        "slow": {"n0": 1.0, "n1": 5.0, "n2": 1.0, "n3": 1.0},
        "fast": {"n0": 0.5, "n1": 2.0, "n2": 3.0, "n3": 0.5},
    }
    problem = Problem(
        diamond(), forward_only(table), cluster_of([ROOMY] * 2, seconds_per_byte=0.1, kinds=["slow", "fast"])
    )
    instance = Instance.of(problem)
    tasks = StepTasks.of(instance)
    ranks = max_ranks(instance, tasks)
    # n3: 1; n2: 3 + 1 + 1; n1: 5 + 1 + 1; n0: 1 + max(1 + 7, 2 + 5)
    assert ranks[:4] == pytest.approx([9.0, 7.0, 5.0, 1.0])
    assert longest_ranked_path(tasks, ranks) == [0, 1, 3]


def test_finish_times_are_compared_not_start_times():
    """Off the critical path, n1 could start at once on the slow device, and would end later there."""
    graph = graph_of(["n0", "n1"], [])
    table = {"slow": {"n0": 9.0, "n1": 8.0}, "fast": {"n0": 2.0, "n1": 1.0}}
    cluster = cluster_of([ROOMY] * 2, kinds=["slow", "fast"])
    placement = Dpos().partition(Problem(graph, forward_only(table), cluster))
    assert placement.device_of == {"n0": "d1", "n1": "d1"}
    assert placement.report.objective == pytest.approx(3.0)


def test_the_execution_order_is_that_of_start_times():
    """n3 is ranked last and starts before n2, in the gap in which n2's message travels."""
    graph = graph_of(["n0", "n1", "n2", "n3"], [("n0", 4, ["n2"]), ("n1", 4, ["n2"])])
    table = {"cpu": {"n0": 5.0, "n1": 5.0, "n2": 5.0, "n3": 1.0}}
    problem = Problem(graph, forward_only(table), cluster_of([ROOMY] * 2, seconds_per_byte=1.0))
    placement = Dpos().partition(problem)
    assert placement.device_of["n0"] != placement.device_of["n1"]
    assert placement.priority["n3"] < placement.priority["n2"]


@examples
@given(problems(), st.booleans())
def test_the_answer_verifies_and_is_always_the_same(problem, train):
    if train:
        variables = {k: replace(v, requires_grad=True) for k, v in problem.graph.variables.items()}
        problem = replace(problem, graph=replace(problem.graph, variables=variables))
    try:
        placement = Dpos().partition(problem)
    except InfeasibleError:
        return
    verify(problem, placement).require()
    again = Dpos().partition(problem)
    assert (again.device_of, again.priority) == (placement.device_of, placement.priority)


def least_makespan(seconds: list[int], before: list[list[int]], devices: int) -> int:
    """The optimum for tasks on equal devices, without messages, by CP-SAT."""
    model = cp_model.CpModel()
    starts = [model.new_int_var(0, sum(seconds), "") for _ in seconds]
    tasks = [model.new_fixed_size_interval_var(s, d, "") for s, d in zip(starts, seconds, strict=True)]
    model.add_cumulative(tasks, [1] * len(tasks), devices)
    end = model.new_int_var(0, sum(seconds), "")
    for v, feeds in enumerate(before):
        model.add(end >= starts[v] + seconds[v])
        for u in feeds:
            model.add(starts[v] >= starts[u] + seconds[u])
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return int(solver.objective_value)


@settings(examples, max_examples=tried(30))
@given(problems(colocate=False), st.integers(1, 4), st.sampled_from([0.0, 0.05]), st.data())
def test_the_theorem_holds_with_the_optimum_itself(problem, devices, pace, data):
    """w <= 2 w_opt + C_max. Its premises: equal devices, and room for everything on each of them."""
    names = list(problem.graph.nodes)
    seconds = data.draw(st.lists(st.integers(1, 9), min_size=len(names), max_size=len(names)))
    cluster = cluster_of([0] * devices, seconds_per_byte=pace, kinds=["cpu"] * devices)
    costs = forward_only({"cpu": {v: float(s) for v, s in zip(names, seconds, strict=True)}})
    problem = with_capacities(replace(problem, cluster=cluster, costs=costs), [10**9] * devices)
    instance = Instance.of(problem)
    before = [instance.predecessors[v].tolist() for v in range(instance.n)]
    sent = np.zeros(instance.n)
    for v in range(instance.n):
        for k in instance.reads[v]:
            sent[v] = max(sent[v], sent[instance.producer[k]] + pace * instance.nbytes[k])
    made = Dpos().partition(problem).report.objective
    assert made <= 2 * least_makespan(seconds, before, devices) + sent.max() + 1e-9
