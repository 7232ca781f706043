"""Explanations: the critical path by hand, their text, and what binds."""

import json
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.partition import Latency, MaxLoad, Placement, Problem, Random, SolverReport
from netsplit.planning.explanation import Explanation, critical_path, explain, totals
from netsplit.program import GPipe, Schedule, SingleBatch
from netsplit.program.instructions import Program
from netsplit.simulate import Timeline, simulate
from tests.builders import cluster_of, compile_placed, costs_of, graph_of
from tests.examples import tried
from tests.messages import tells
from tests.partition.builders import problems


def trained(problem: Problem) -> Problem:
    """The same problem with a gradient through every variable that a node makes."""
    variables = {
        k: replace(v, requires_grad=v.producer is not None) for k, v in problem.graph.variables.items()
    }
    return replace(problem, graph=replace(problem.graph, variables=variables))


def placed(problem: Problem, device_of: dict[str, str]) -> Placement:
    return Placement("by hand", device_of, dict(problem.graph.position), SolverReport("heuristic", 0.0))


def run(problem: Problem, placement: Placement, schedule: Schedule | None = None) -> tuple[Program, Timeline]:
    """Compiled and simulated."""
    program = compile_placed(
        problem.graph, placement.device_of, placement.priority, problem.cluster, schedule or SingleBatch()
    )
    return program, simulate(program, problem.cluster, problem.costs)


def pair() -> tuple[Problem, Placement]:
    """n0 on d0 feeds n1 on d1: 1 s forward and 2 s backward each, 4 bytes at 0.5 s + 0.25 s a byte."""
    graph = graph_of(["n0", "n1"], [("n0", 4, ["n1"]), ("n1", 1, [])], {"n0": 10, "n1": 30})
    problem = trained(Problem(graph, costs_of(graph), cluster_of([1000, 1000], 0.5, 0.25)))
    return problem, placed(problem, {"n0": "d0", "n1": "d1"})


def test_the_critical_path_of_one_transfer_each_way_by_hand() -> None:
    problem, placement = pair()
    program, timeline = run(problem, placement)
    path = critical_path(timeline, program)
    assert [(s.what, s.where, s.start_s, s.end_s, s.nodes) for s in path] == [
        ("forward", "d0", 0.0, 1.0, ("n0",)),
        ("transfer", "d0 -> d1", 1.0, 2.5, ()),
        ("forward", "d1", 2.5, 3.5, ("n1",)),
        ("backward", "d1", 3.5, 5.5, ("n1",)),
        ("transfer", "d1 -> d0", 5.5, 7.0, ()),
        ("backward", "d0", 7.0, 9.0, ("n0",)),
    ]
    assert totals(path) == {"d0": 3.0, "d1": 3.0, "d0 -> d1": 1.5, "d1 -> d0": 1.5}


@st.composite
def runs(draw: st.DrawFn, overhead: bool = True) -> tuple[Problem, Placement, Program, Timeline]:
    problem = trained(draw(problems(max_nodes=12)))
    costs = problem.costs.with_device("cpu", step_s_per_byte=0.01)
    for kind in ("cpu", "gpu"):
        instruction_s = draw(st.sampled_from([0.0, 0.125]))
        costs = costs.with_device(kind, instruction_s=instruction_s if overhead else 0.0)
    problem = replace(problem, costs=costs)
    placement = Random().partition(problem)
    schedule = draw(st.sampled_from([SingleBatch(), GPipe(1), GPipe(3)]))
    return problem, placement, *run(problem, placement, schedule)


@settings(max_examples=tried(40), deadline=None)
@given(drawn=runs(), periodic=st.booleans())
def test_text_is_narrow_and_the_dictionary_is_json(
    drawn: tuple[Problem, Placement, Program, Timeline], periodic: bool
) -> None:
    problem, placement, program, timeline = drawn
    problem = replace(problem, objective=MaxLoad() if periodic else Latency())
    explanation = explain(problem, placement, (program, timeline))
    assert json.loads(json.dumps(explanation.to_dict()))["objective_s"] == explanation.objective_s


def explained(problem: Problem, placement: Placement) -> Explanation:
    return explain(problem, placement, run(problem, placement))


def test_the_text_names_nodes_and_variables() -> None:
    text = " ".join(line.strip() for line in explained(*pair()).lines())
    for part in ("t0: d0 -> d1, 4 B, 1.5 s + 1.5 s back; n0 to n1", "forward of n0", "backward of n1",
                 "gradient of t0"):  # fmt: skip
        assert part in text


def test_a_device_binds_where_independent_nodes_share_it() -> None:
    """Four nodes of 3 s on d0: half of them would take half the time."""
    names = [f"n{i}" for i in range(4)]
    graph = graph_of(names, [(name, 1, []) for name in names], dict.fromkeys(names, 100))
    roomy = trained(Problem(graph, costs_of(graph), cluster_of([1000, 1000])))
    placement = placed(roomy, dict.fromkeys(names, "d0"))
    why = explained(roomy, placement)
    assert (why.binds, why.made_of["d0"]) == ("d0", 12.0)


def test_the_load_that_binds_says_what_it_is_made_of() -> None:
    """d1: 3 s of its node and a value and a gradient over a hop of 1.5 s each; d0 as much."""
    problem, placement = pair()
    explanation = explain(replace(problem, objective=MaxLoad()), placement)
    assert (explanation.objective_s, explanation.path, explanation.binds) == (6.0, (), "d0")
    made_of = "sends 3 s", "50 %", "backward 2 s", "33 %", "forward 1 s", "17 %"
    assert tells(explanation.why, "d0", "6 s", *made_of)
    assert sum(edge.seconds for edge in explanation.cuts) == 6.0  # both ends pay
