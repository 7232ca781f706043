"""Pesto with exclusivity: equal to brute force over placements and orders, honest about its time."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings

from netsplit.errors import InfeasibleError
from netsplit.graph.quotient import atoms_of
from netsplit.partition import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.engines.outcome import Outcome
from netsplit.partition.methods.pesto.coarsen import coarsen
from netsplit.partition.methods.pesto.mip import Mip
from netsplit.partition.methods.pesto.pesto_full import PestoFull
from netsplit.partition.methods.pesto.rows import PestoRows
from netsplit.partition.methods.pesto.tasks import CoarseTasks
from netsplit.profile.costs import NodeSeconds
from tests.builders import chain, cluster_of, costs_of, graph_of
from tests.examples import tried
from tests.partition.builders import large_problem, problems
from tests.partition.every_placement import fitting

EXACT = {"gap": 0.0, "target": 1000}
examples = settings(max_examples=tried(40), deadline=None, suppress_health_check=list(HealthCheck))


def trained(graph):
    """The same graph with a gradient through every tensor."""
    variables = {k: replace(v, requires_grad=True) for k, v in graph.variables.items()}
    return replace(graph, variables=variables)


def trained_problems(**limits):
    """Half of them with a backward pass."""
    every = problems(**limits)
    return every | every.map(lambda problem: replace(problem, graph=trained(problem.graph)))


def operations(problem, device_of):
    """Operations of a training step, as (seconds, resource), and the pairs that must follow each other."""
    graph, costs, cluster = problem.graph, problem.costs, problem.cluster
    backward = {v.name for v in graph if any(k in graph.requires_backward for k in v.outputs)}
    ops, arcs = {}, set()
    for v in graph.nodes:
        kind = cluster.device(device_of[v]).kind
        ops["f", v] = costs.forward_s(v, kind), device_of[v]
        if v in backward:
            ops["b", v] = costs.backward_s(v, kind), device_of[v]
            arcs.add((("f", v), ("b", v)))
    passed: dict[tuple[object, object], int] = {}
    for u, v, k in graph.edges:
        nbytes = graph.variables[k].nbytes
        both = [(("f", u), ("f", v))]
        if k in graph.requires_backward and v in backward:
            both.append((("b", v), ("b", u)))
        for arc in both:
            passed[arc] = passed.get(arc, 0) + nbytes
    for (s, t), nbytes in passed.items():
        a, b = device_of[s[1]], device_of[t[1]]
        if a == b:
            arcs.add((s, t))
        else:
            ops[s, t] = cluster.transfer_seconds(nbytes, a, b), (a, b)
            arcs |= {(s, (s, t)), ((s, t), t)}
    return ops, arcs


def earliest(ops, arcs):
    """Least start times under these precedences; None where they close a cycle."""
    start = dict.fromkeys(ops, 0.0)
    for _ in range(len(ops) + 1):
        moved = False
        for i, j in arcs:
            if start[j] < start[i] + ops[i][0]:
                start[j], moved = start[i] + ops[i][0], True
        if not moved:
            return start
    return None


def closes_a_cycle(arcs, i, j):
    reached, front = set(), {j}
    while front:
        reached |= front
        front = {t for s, t in arcs if s in front} - reached
    return i in reached


def best_order(ops, arcs, best):
    """The least makespan below `best` with exclusive resources: branch on a pair that overlaps."""
    start = earliest(ops, arcs)
    end = {i: start[i] + ops[i][0] for i in ops}
    if max(end.values()) >= best - 1e-12:
        return best
    for i, j in itertools.combinations(ops, 2):
        clash = start[i] < end[j] - 1e-12 and start[j] < end[i] - 1e-12
        if ops[i][1] == ops[j][1] and clash:
            for arc in ((i, j), (j, i)):
                if not closes_a_cycle(arcs, *arc):
                    best = best_order(ops, arcs | {arc}, best)
            return best
    return max(end.values())


def best_of_all(problem):
    """The least makespan of all placements of atoms and all orders; infinite if nothing fits."""
    best = float("inf")
    for device_of in fitting(problem, atoms_of(problem.graph)):
        best = best_order(*operations(problem, device_of), best)
    return best


@settings(examples, max_examples=tried(150))
@given(problem=trained_problems(max_nodes=5, max_devices=2))
def test_without_coarsening_the_objective_is_the_least_of_all_placements_and_orders(problem):
    best = best_of_all(problem)
    try:
        placement = PestoFull(**EXACT).partition(problem)
    except InfeasibleError:
        assert best == float("inf")
        return
    report = placement.report
    assert report.objective == pytest.approx(best, rel=1e-5, abs=1e-9)
    assert report.bound is None or report.bound <= report.objective
    if report.status == "limit":  # the engine's tolerance leaves open what the start already is
        return
    assert report.status == "optimal"
    assert report.bound == pytest.approx(report.objective, rel=1e-4, abs=1e-9)
    fixed = best_order(*operations(problem, placement.device_of), float("inf"))
    assert fixed == pytest.approx(report.objective, rel=1e-5, abs=1e-9)


@examples
@given(problem=trained_problems(max_nodes=8))
def test_a_schedule_keeps_to_precedence_and_exclusive_devices_and_links(problem):
    instance = Instance.of(problem)
    tasks = CoarseTasks.of(instance, coarsen(instance, 5, 10**12))
    where = [g % len(instance.devices) for g in range(len(tasks.coarse.classes))]
    schedule = tasks.schedule(where)
    spans: dict[object, list[tuple[float, float]]] = {}
    ends = [schedule.start[t] + tasks.seconds[t, where[g]] for t, g in enumerate(tasks.class_of)]
    for t, g in enumerate(tasks.class_of):
        spans.setdefault(where[g], []).append((schedule.start[t], ends[t]))
    for s, t in tasks.local:
        assert schedule.start[t] >= ends[s]
    for q, (s, t) in enumerate(tasks.messages):
        a, b = (where[g] for g in tasks.ends[q])
        arrival = schedule.sent[q] + (0.0 if a == b else tasks.message_s[q, a, b])
        assert schedule.sent[q] >= ends[s]
        assert schedule.start[t] >= arrival
        if a != b:
            spans.setdefault((a, b), []).append((schedule.sent[q], arrival))
    for used in spans.values():
        used.sort()
        assert all(before[1] <= after[0] + 1e-9 for before, after in itertools.pairwise(used))
    assert schedule.makespan == max(ends)


@examples
@given(problem=trained_problems(max_nodes=8, roomy=True))
def test_the_start_given_to_the_engine_meets_every_row(problem):
    instance = Instance.of(problem)
    tasks = CoarseTasks.of(instance, coarsen(instance, 6, 10**12))
    where = [g % len(instance.devices) for g in range(len(tasks.coarse.classes))]
    assume(instance.fits(tasks.nodes_at(where)))
    rows = PestoRows(tasks, tasks.schedule(where))
    mip = rows.build(10**6)
    assert mip.rows.coefficients <= rows.most_coefficients()
    model = mip.rows.model(mip.lower, mip.upper, np.zeros(len(mip.lower)), mip.integer)
    start = np.array(mip.start)
    assert (model.lower - 1e-6 <= start).all()
    assert (start <= model.upper + 1e-6).all()
    row_of = np.repeat(np.arange(len(mip.rows)), np.diff(model.starts))
    left = np.bincount(row_of, weights=model.values * start[model.columns], minlength=len(mip.rows))
    assert (left <= model.row_upper + 1e-6).all()
    assert (left >= model.row_lower - 1e-6).all()


def test_two_branches_run_beside_each_other_only_if_the_link_is_worth_it():
    """a feeds b and c, both feed d: 12 s on one device; b beside c saves 3 s.

    Of the cuts, that between a with c and d with b is best: each way along the path has one transfer.
    """
    graph = graph_of("abcd", [("a", 10, "bc"), ("b", 10, "d"), ("c", 10, "d"), ("d", 1, "")])
    graph = trained(graph)
    makespans = {}
    for price in (0.01, 1.0):
        problem = Problem(graph, costs_of(graph), cluster_of([9999, 9999], seconds_per_byte=price))
        makespans[price] = PestoFull(**EXACT).partition(problem).report
    assert makespans[1.0].objective == pytest.approx(12.0)
    assert makespans[0.01].objective == pytest.approx(9 + 2 * 0.1)


def test_messages_on_one_link_wait_for_each_other():
    """a stays on d0, which is ten times faster at it; b and c fit only on d1, and each reads 1 s of link.

    a ends at 1, b's tensor arrives at 2 and c's at 3, c ends at 4; without congestion c would end at 3.5,
    as b and c take half a second and one each. With c's tensor first it ends at 2 + 1, b at 3 + 0.5.
    """
    graph = graph_of("abc", [("a", 10, "b"), ("a", 10, "c")], weights={"a": 0, "b": 1000, "c": 1000})
    costs = costs_of(graph, kinds=("cpu", "gpu"))
    short, long = NodeSeconds(0.5, 0), NodeSeconds(1, 0)
    costs = costs.with_device("gpu", nodes={"a": NodeSeconds(10, 0), "b": short, "c": long})
    costs = costs.with_device("cpu", nodes={"a": NodeSeconds(1, 0), "b": short, "c": long})
    problem = Problem(graph, costs, cluster_of([100, 9999], seconds_per_byte=0.1, kinds=["cpu", "gpu"]))
    placement = PestoFull(**EXACT).partition(problem)
    assert list(placement.device_of.values()) == ["d0", "d1", "d1"]
    assert placement.report.objective == pytest.approx(3.5)
    assert sorted(placement.priority, key=placement.priority.__getitem__) == ["a", "c", "b"]


def test_a_coarse_answer_is_optimal_for_its_vertices_and_says_how_many_there_are():
    problem = large_problem(60, devices=2)
    problem = replace(problem, graph=trained(problem.graph))
    report = PestoFull(target=8).partition(problem).report
    assert report.status == "optimal"
    assert report.notes["vertices"] >= 8
    assert report.bound <= report.objective <= report.notes["start_objective"]


def test_a_limit_answers_with_the_start(monkeypatch):
    monkeypatch.setattr(Mip, "solve", lambda *_, **__: Outcome("none 0", "limit"))
    placement = PestoFull(target=8).partition(large_problem(60))
    report = placement.report
    assert report.status == "limit"
    assert report.objective == report.notes["start_objective"]
    assert 0 < report.bound < report.objective


def limits_given(monkeypatch):
    """Seconds that the engine gets, as it is called."""
    given_s, solve = [], Mip.solve

    def recorded(mip, time_limit_s, *more, **options):
        given_s.append(time_limit_s)
        return solve(mip, time_limit_s, *more, **options)

    monkeypatch.setattr(Mip, "solve", recorded)
    return given_s


def test_a_short_time_limit_of_the_problem_is_kept(monkeypatch):
    given_s = limits_given(monkeypatch)
    problem = replace(large_problem(30), time_limit_s=1.0)
    report = PestoFull(gap=0.0).partition(problem).report
    assert 0 < given_s[-1] <= 1.0
    assert report.status in ("limit", "feasible")


def test_nodes_of_a_vertex_have_neighbouring_ranks_in_a_chain():
    graph = chain([1] * 9)
    problem = Problem(graph, costs_of(graph), cluster_of([999, 999]))
    placement = PestoFull(target=3).partition(problem)
    assert sorted(placement.priority, key=placement.priority.__getitem__) == list(graph.nodes)
