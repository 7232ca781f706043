"""`netsplit` with exclusive devices: the best of all placements of its groups, as simulated."""

import logging
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from netsplit.partition import NetSplit, Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.engines.kernels import CompiledStep
from netsplit.partition.methods.thesis.netsplit import coplace
from netsplit.program import SingleBatch
from netsplit.simulate import simulate
from tests.builders import cluster_of, compile_placed, costs_of, graph_of
from tests.examples import tried
from tests.partition.builders import large_problem, problems, trained
from tests.partition.every_placement import least

quiet = settings(max_examples=tried(40), deadline=None, suppress_health_check=list(HealthCheck))


def best_of_all(problem, groups):
    """The shortest list-scheduled step of all placements of groups that fit, or None."""
    instance = Instance.of(problem)
    step = CompiledStep(instance)

    def list_scheduled_s(problem, device_of):
        where = instance.encode(device_of)
        return step.makespan_s(where, step.evaluate(where)[1])

    return least(problem, groups, list_scheduled_s)


@quiet
@given(problem=problems(max_nodes=8, max_devices=2).map(trained))
def test_it_is_the_best_of_all_placements_of_its_groups_as_simulated(problem):
    best = best_of_all(problem, coplace(problem, 3))
    if best is None:
        return
    placement = NetSplit(groups=3, exclusive=True).partition(problem)
    program = compile_placed(
        problem.graph, placement.device_of, placement.priority, problem.cluster, SingleBatch()
    )
    assert (placement.report.status, placement.report.gap) == ("optimal", 0.0)
    assert placement.report.objective == pytest.approx(best, rel=1e-9, abs=1e-12)
    simulated = simulate(program, problem.cluster, problem.costs).iteration_s
    assert placement.report.objective == pytest.approx(simulated, rel=1e-9, abs=1e-12)


def test_branches_part_only_where_devices_are_exclusive():
    """Branches of 3 s on equal devices: one after the other, or side by side with messages of 0.1 s."""
    graph = graph_of("abcd", [("a", 10, "bc"), ("b", 10, "d"), ("c", 10, "d"), ("d", 1, "")])
    graph = replace(graph, variables={k: replace(v, requires_grad=True) for k, v in graph.variables.items()})
    problem = Problem(graph, costs_of(graph), cluster_of([1000, 1000], seconds_per_byte=0.01))
    overlapping = NetSplit(groups=4).partition(problem)
    exclusive = NetSplit(groups=4, exclusive=True).partition(problem)
    assert len(set(overlapping.device_of.values())) == 1
    assert overlapping.report.objective == pytest.approx(9.0)
    assert exclusive.device_of["b"] != exclusive.device_of["c"]
    assert exclusive.report.objective == pytest.approx(9.0 + 2 * 0.1)
    assert exclusive.report.engine == "enumeration"
    assert "one operator at a time" in NetSplit(exclusive=True).optimises
    assert "may overlap" in NetSplit().optimises


def test_many_groups_are_annealed_under_its_own_name_without_a_claim(caplog, few_moves):
    problem = trained(large_problem(60))
    with caplog.at_level(logging.INFO):
        placement = NetSplit(groups=1000, exclusive=True).partition(problem)
    report = placement.report
    assert (report.status, report.engine, report.bound) == ("feasible", "annealing", None)
    assert report.notes["groups"] == 60
    assert report.notes["portfolio"] == {}
    assert not any(message.startswith("auto") for message in caplog.messages)
    coplaced = NetSplit(exclusive=True).partition(problem).report
    assert coplaced.notes["groups"] == 6
    added = NetSplit(exclusive=True, group_bytes="added").partition(problem).report
    assert added.notes["groups"] == 8
    assert report.objective < coplaced.objective
    again = NetSplit(groups=1000, exclusive=True).partition(problem)
    assert again.device_of == placement.device_of
