"""The thesis's optimisation: optimal against brute force, the same on both engines, honest reports."""

import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings

from netsplit.errors import ConfigError, InfeasibleError, ModelSizeError
from netsplit.partition import NetSplit, Problem
from netsplit.partition.engines.mixed_integer import PREFIX, highs, picos_engines
from netsplit.partition.engines.rows import Outcome
from netsplit.partition.methods.thesis import netsplit as grouped_module
from netsplit.partition.methods.thesis.formulation import Formulation
from netsplit.partition.methods.thesis.netsplit import Pesto, coplace
from tests.builders import chain, cluster_of, costs_of
from tests.examples import tried
from tests.partition.builders import large_problem, problems
from tests.partition.every_placement import assert_best_of_all, least

EXACT = {"gap": 0.0, "groups": 1000}
examples = settings(max_examples=tried(40), deadline=None, suppress_health_check=list(HealthCheck))


def makespan(problem, device_of):
    """(5-12)..(5-16), raising every start from zero until all rows hold."""
    graph, cluster = problem.graph, problem.cluster
    seconds = {n: problem.costs.devices[cluster.device(device_of[n]).kind].nodes[n] for n in graph.nodes}
    sent = {(u, v): 0 for u, v, _ in graph.edges}
    for u, v, k in graph.edges:
        sent[u, v] += graph.variables[k].nbytes
    fp, bp = dict.fromkeys(graph.nodes, 0.0), dict.fromkeys(graph.nodes, 0.0)
    changed = True
    while changed:
        before = dict(fp), dict(bp)
        for (u, v), nbytes in sent.items():
            a, b = device_of[u], device_of[v]
            there = 0.0 if a == b else cluster.links[a, b].seconds(nbytes)
            back = 0.0 if a == b else cluster.links[b, a].seconds(nbytes)
            fp[v] = max(fp[v], fp[u] + seconds[u].forward_s + there)
            bp[u] = max(bp[u], bp[v] + seconds[v].backward_s + back)
        for n in graph.exit_nodes:
            bp[n] = fp[n] + seconds[n].forward_s
        changed = before != (fp, bp)
    return max(bp[n] + seconds[n].backward_s for n in graph.nodes)


@examples
@given(problem=problems(max_nodes=6))
def test_without_coplacement_the_objective_is_that_of_the_best_of_all_placements(problem):
    report = assert_best_of_all(NetSplit(engine="highs", **EXACT), problem, makespan)
    if report is not None:
        assert report.bound == pytest.approx(report.objective, rel=1e-5, abs=1e-6)


@examples
@given(problem=problems(max_nodes=8, max_devices=2))
def test_with_coplacement_the_objective_is_that_of_the_best_placement_of_its_groups(problem):
    best = least(problem, coplace(problem, 2), makespan)
    if best is not None:
        report = NetSplit(engine="highs", gap=0.0, groups=2).partition(problem).report
        assert report.objective == pytest.approx(best, rel=1e-6, abs=1e-6)


@examples
@given(problem=problems(max_nodes=6))
def test_all_engines_have_the_same_optimum(problem):
    objectives = []
    for engine in ("highs", "gurobi", *(PREFIX + name for name in picos_engines())):
        try:
            report = NetSplit(engine=engine, **EXACT).partition(problem).report
        except InfeasibleError as error:
            objectives.append(str(error))
        except ConfigError:  # no licence
            assert engine not in ("highs", "picos:glpk")
        else:
            assert report.engine.startswith(engine)
            objectives.append(pytest.approx(report.objective, rel=1e-6, abs=1e-6))
    assert all(objective == objectives[0] for objective in objectives), objectives


def test_a_chain_that_needs_two_devices_is_cut_at_its_thinnest_edge():
    graph = chain([50, 40, 10, 50], weights=dict.fromkeys(["n0", "n1", "n2", "n3", "n4"], 1000))
    problem = Problem(graph, costs_of(graph), cluster_of([7000, 7000], latency_s=0.5, seconds_per_byte=0.01))
    placement = NetSplit(engine="highs", **EXACT).partition(problem)
    first, second = placement.device_of["n0"], placement.device_of["n4"]
    assert list(placement.device_of.values()) == [first, first, first, second, second]
    assert placement.report.objective == pytest.approx(5 * 3 + 2 * (0.5 + 10 * 0.01))


@pytest.mark.parametrize("tiny", [1e-88, 1e-12, 5e-324])
def test_devices_of_absurdly_unequal_speed_are_told_apart(tiny):
    """Scaled by the fast device alone, the slow one's coefficients were more than engines can read."""
    graph = chain([5, 5])
    costs = costs_of(graph, tiny, tiny, kinds=("gpu",))
    costs.devices["cpu"] = costs_of(graph).devices["cpu"]
    cluster = cluster_of([1000, 1000], latency_s=1.0, kinds=["cpu", "gpu"])
    placement = NetSplit(engine="highs", **EXACT).partition(Problem(graph, costs, cluster))
    assert set(placement.device_of.values()) == {"d1"}


def test_a_limit_without_a_solution_answers_with_the_fill_of_the_devices(monkeypatch):
    monkeypatch.setattr(grouped_module, "solve", lambda *_, **__: Outcome("none 0", "limit"))
    graph = chain([10, 10], weights={"n0": 50, "n1": 50, "n2": 50})
    placement = NetSplit().partition(Problem(graph, costs_of(graph), cluster_of([260, 260])))
    assert placement.report.status == "limit"
    assert placement.report.bound is None
    assert list(placement.device_of.values()) == ["d0", "d0", "d1"]


def test_gurobi_without_a_licence_for_the_size_falls_back_unless_it_was_asked_for():
    pytest.importorskip("gurobipy")
    problem = large_problem(600)
    report = NetSplit().partition(problem).report
    if report.engine.startswith("gurobi"):
        pytest.skip("this licence takes the size")
    assert "size-limited" in report.notes["gurobi_not_used"]
    with pytest.raises(ConfigError, match=r"engine 'gurobi' cannot be used: .* use 'highs'"):
        NetSplit(engine="gurobi").partition(problem)


def test_a_process_without_gurobi_solves_the_model():
    """Runs in a process of its own, as Gurobi may be imported in this one."""
    script = (
        "import sys; sys.modules['gurobipy'] = None\n"
        "from tests.partition.builders import large_problem\n"
        "from netsplit.partition import NetSplit\n"
        "print(NetSplit().partition(large_problem(30)).report.status)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("optimal\n", "")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"time_limit_s": 0}, r"netsplit\.time_limit_s is 0: give more than 0 seconds"),
        ({"time_limit_s": float("nan")}, r"netsplit\.time_limit_s is nan"),
        ({"gap": 1.5}, r"netsplit\.gap is 1\.5: give a fraction"),
        ({"groups": 0}, r"netsplit\.groups is 0: give 1 or more"),
        ({"group_bytes": "both"}, r"netsplit\.group_bytes is 'both': give union or added"),
        (
            {"engine": "cplex"},
            r"engine 'cplex' is not known: use auto, gurobi, highs or one that PICOS",
        ),
        ({"engine": "picos:osqp"}, r"'picos:osqp' is not installed: PICOS finds picos:glpk.*; install"),
    ],
)
def test_a_bad_parameter_is_refused_with_its_value_and_a_cure(parameters, message):
    with pytest.raises(ConfigError, match=message):
        NetSplit(**parameters)


both = pytest.mark.parametrize("method", [NetSplit, Pesto])


@both
def test_the_engine_has_no_more_coefficients_than_are_foreseen(method):
    problem = large_problem(60, devices=4)
    formulation = method.formulation(problem, coplace(problem, 8))
    solver = highs(1.0, 0.0, 0)
    formulation.build().pass_to(solver)
    assert 0.5 * formulation.most_coefficients() < solver.getNumNz() <= formulation.most_coefficients()


@both
def test_a_model_that_needs_too_much_memory_is_not_built(method, monkeypatch):
    monkeypatch.setattr(Formulation, "build", lambda _: pytest.fail("built"))
    said = (
        rf"{method.name}'s model of 192 groups on 96 devices has up to \d+ coefficients and would take about"
        rf" [\d.]+ GB, where 2\.0 GB are allowed: give {method.name} fewer groups \(groups=, less than 192\)"
        r" or use fewer devices"
    )
    with pytest.raises(ModelSizeError, match=said):
        method().partition(large_problem(400, devices=96, room=40.0))
