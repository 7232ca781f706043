"""Which schedules placements are tried under, and what no schedule makes shorter."""

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.partition.base import Problem
from netsplit.placement.placement import Placement, SolverReport
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.judge import Judge, under_any_schedule_s
from netsplit.planning.whole.orders import BEYOND, CLOSE
from netsplit.planning.whole.search.search_time import SearchTime
from netsplit.planning.whole.search.whole_search import WholeSearch
from netsplit.profile.costs import DeviceCosts, NodeSeconds
from tests.builders import chain, costs_of, cpus
from tests.examples import tried
from tests.planning.whole.test_search import problem_of, staged

COUNTS = (2, 4)
GROUPS = (
    ((0,), (1,), (2,)),
    ((0, 1), (2,)),
    ((2,), (0, 1)),
    ((0, 1, 2),),
    ((0,), (1,), (0,)),
)


def search_of_chain(schedules: Sequence[str] | None = None) -> WholeSearch:
    """Of two stages with few micro-batches, and no more than that."""
    judge, now = Judge(lambda m: problem_of("chain", m, 2), recompute=False), time.perf_counter()
    open_ = AutoSchedule(replicas=False, schedules=schedules)
    search = WholeSearch(COUNTS, open_, judge, None, SearchTime(judge, now, now + 60))
    for m in COUNTS:
        for _, _, cut in search._cut(search.problem_of(m), m, ((0,), (1,))):
            search._judge_line(m, cut)
    return search


@settings(deadline=None, max_examples=tried(40))  # the first draws wait for a capture
@given(st.sampled_from(GROUPS), st.sampled_from([3, 4, 8]), st.floats(0.2, 5.0), st.data())
def test_no_schedule_makes_an_iteration_shorter_than_its_least(
    groups: tuple[tuple[int, ...], ...], microbatches: int, slower: float, data: st.DataObject
) -> None:
    """With replicas, of unlike devices, and with devices that come twice."""
    problem = problem_of("chain", microbatches)
    graph, (first, *others) = problem.graph, problem.cluster.devices
    unlike = replace(problem.cluster, devices=(replace(first, kind="other"), *others))
    back = {v for v, node in graph.nodes.items() if graph.requires_backward.intersection(node.outputs)}
    usual = DeviceCosts({v: NodeSeconds(1e-3, 2e-3 * (v in back)) for v in graph.nodes})
    each = {first.kind: usual, "other": usual.scaled(1 / slower)}
    problem = problem.moved_to(unlike, replace(problem.costs, devices=each))
    placement = staged(problem, groups, microbatches)
    schedule = data.draw(st.sampled_from(AutoSchedule().orders(microbatches)))
    seconds = replace(problem.the_simulator, schedule=schedule)(placement).iteration_s
    assert seconds >= under_any_schedule_s(problem, microbatches, placement) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("where", "least"),
    [
        ("aaaa", 4 * 12),
        ("aaab", 4 * 9),
        ("abbb", 1 + 4 * 9),
        ("aaba", 4 * 9),
        ("baab", 4 * 6 + 1),
        ("abab", 4 * 6 + 1),
    ],
)
def test_a_device_waits_for_the_way_there_and_for_no_more_than_that(where: str, least: float) -> None:
    """A chain of four that take a second there and two back, four times."""
    graph = chain([1, 1, 1])
    problem = Problem(graph, costs_of(graph), cpus(2, 2**40))
    device_of = {v: f"cpu:{'ab'.index(letter)}" for v, letter in zip(graph.nodes, where, strict=True)}
    placement = Placement("hand", device_of, dict(graph.position), SolverReport("heuristic", 0.0))
    assert under_any_schedule_s(problem, 4, placement) == pytest.approx(least)


def test_each_placement_is_first_tried_in_an_order_of_its_own() -> None:
    """The named ones are then for the best few, and the whole search for what is not far behind."""
    search = search_of_chain()
    judge = search.judge
    quick = {m: search.orders.quick(m) for m in COUNTS}
    several = [key for key, met in judge.met.items() if len(set(met.placement.device_of.values())) > 1]
    assert several
    for key in several:
        assert {schedule for schedule, where in judge.seen if (schedule.microbatches, *where) == key} == {
            quick[key[0]]
        }
    search.orders.named(search.time.deadline)
    search.orders.searched(search.time.deadline)
    whole = {
        (schedule.microbatches, *where)
        for schedule, where in judge.seen
        if schedule == replace(quick[schedule.microbatches], moves=True)
    }
    near = {key for key in several if judge.met[key].fastest_s <= BEYOND * judge.best_s}
    assert near & whole
    assert all(key in whole or judge.met[key].least_s >= judge.best_s * (1 - CLOSE) for key in near)
