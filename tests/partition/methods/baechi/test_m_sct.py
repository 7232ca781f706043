"""Baechi's m-SCT: the favourite-child relaxation, its rounding, and devices that wait."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsplit.partition.methods.baechi.baechi import memory_for
from netsplit.partition.methods.baechi.etf import (
    EtfLoop,
    MEtf,
    MSct,
    SctLoop,
    assign,
    favourite_lp,
    favourites,
)
from tests.examples import tried
from tests.partition.baechi_cases import problem_of, tasks_of
from tests.partition.builders import large_problem, problems

WAIT = {"p": 2, "r": 2, "k": 20, "e": 10, "f": 1}  # f reads 5 bytes of p and 3 of r


def loops(problem, favourite) -> tuple[EtfLoop, EtfLoop]:
    """m-ETF and m-SCT after their run."""
    tasks = tasks_of(problem)
    index = {name: v for v, name in enumerate(problem.graph.nodes)}
    children = np.array([index.get(favourite.get(name), -1) for name in index])
    circles = [
        kind(tasks, memory_for(tasks, "static"), *more)
        for kind, more in ((EtfLoop, ()), (SctLoop, (children,)))
    ]
    assert all(loop.run() for loop in circles)
    return circles[0], circles[1]


def test_a_device_waits_for_the_favourite_child_of_what_it_ran_last():
    """At 2, d0 and d1 are idle and d2 is busy until 20; f could start on d0 at 5, on d1 at 7.

    m-ETF gives e to d0. In m-SCT d0 is awake, e is not urgent as d2 cannot start it, and d1 takes it.
    """
    problem = problem_of(WAIT, [("p", 5, "f"), ("r", 3, "f")], devices=3)
    etf, sct = loops(problem, {"p": "f"})
    assert etf.where.tolist() == [0, 1, 2, 0, 1]
    assert (sct.where.tolist(), sct.start.tolist()) == ([0, 1, 2, 1, 0], [0, 0, 0, 2, 5])


def test_a_device_that_waits_takes_an_urgent_operator():
    """Without k and d2, e could start everywhere at 2: d0 takes it, and f goes to d1."""
    seconds = {name: s for name, s in WAIT.items() if name != "k"}
    problem = problem_of(seconds, [("p", 5, "f"), ("r", 3, "f")])
    _, sct = loops(problem, {"p": "f"})
    assert (sct.where.tolist(), sct.start.tolist()) == ([0, 1, 0, 1], [0, 0, 2, 7])


@settings(max_examples=tried(100), deadline=None)
@given(st.data())
def test_no_child_has_two_parents_and_favourites_are_chosen_edges(data):
    n = data.draw(st.integers(2, 8))
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    ends = data.draw(st.lists(st.sampled_from(pairs), unique=True))
    chosen = data.draw(st.lists(st.booleans(), min_size=len(ends), max_size=len(ends)))
    favourite = assign(n, ends, chosen)
    children = favourite[favourite >= 0].tolist()
    assert len(set(children)) == len(children)
    wanted = {edge for edge, flag in zip(ends, chosen, strict=True) if flag}
    assert {(i, j) for i, j in enumerate(favourite.tolist()) if j >= 0} <= wanted


@settings(max_examples=tried(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(problem=problems(roomy=True))
def test_the_relaxed_makespan_is_between_free_and_paid_transfers(problem):
    tasks = tasks_of(problem)
    compute = tasks.compute.mean(axis=1)
    ends = [(i, j) for i, j, _ in tasks.edges]
    cost = np.array([float(sum(tasks.hops[list(u)].max(axis=1))) for *_, u in tasks.edges])
    if not ends:
        return
    longest = {}
    for paid in (0, 1):
        start = np.zeros(tasks.n)
        for v in range(tasks.n):
            for (i, j), c in zip(ends, cost, strict=True):
                if j == v:
                    start[v] = max(start[v], start[i] + compute[i] + paid * c)
        longest[paid] = (start + compute).max()
    x, relaxed = favourite_lp(compute, ends, cost)
    assert x.min() >= -1e-5
    assert x.max() <= 1 + 1e-5
    for side in (0, 1):
        for v in {edge[side] for edge in ends}:
            own = [x[e] for e, edge in enumerate(ends) if edge[side] == v]
            assert sum(own) >= len(own) - 1 - 1e-4
    assert longest[0] - 1e-4 <= relaxed <= longest[1] * (1 + 1e-6)


def test_with_threshold_zero_there_is_no_favourite_and_the_method_is_m_etf():
    problem = large_problem(60)
    tasks = tasks_of(problem)
    assert (favourites(tasks, 0.0) == -1).all()
    assert MSct(threshold=0.0).partition(problem).device_of == MEtf().partition(problem).device_of
