"""`auto` beyond some thousands of nodes, where a move takes milliseconds and methods' tables gigabytes.

fast methods ──► judged by the compiled step ──► best ─────────────────────────────┐
                                                  │                                ▼
intervals ──► the same problem of groups ──► portfolio and annealing ──► best ──► annealed whole ──► answer
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

import numpy as np

from netsplit.partition.base import ONE_BATCH, Problem
from netsplit.partition.common.capacity import infeasible
from netsplit.partition.common.instance import Instance, Ints
from netsplit.partition.engines.search import Search
from netsplit.partition.methods.auto.coarse_problem import CoarseProblem
from netsplit.partition.methods.auto.intervals import intervals
from netsplit.partition.methods.baechi.m_etf import MEtf
from netsplit.partition.methods.baechi.m_topo import MTopo
from netsplit.partition.methods.balanced import Balanced
from netsplit.partition.methods.dpos import Dpos
from netsplit.partition.methods.heft import Heft
from netsplit.partition.methods.layerwise import Layerwise
from netsplit.partition.methods.round_robin import RoundRobin
from netsplit.partition.methods.single import Single
from netsplit.partition.partitioner import Choice, Partitioner

__all__ = ["FAST_METHODS", "LARGE", "large_answer", "most_instructions"]

log = logging.getLogger(__name__)

LARGE = 4000  # nodes
GROUPS = 1200
AFTER_S = 9e-5  # an instruction, for compiling, simulating and verifying the plan
MOST_AFTER = 0.4  # of the time, at most, for that
FAST, COARSELY, END = 0.85, 0.88, 0.93  # of the rest: when methods, the search of groups, and all have ended
GROUPED = 0.6  # of the time that methods leave, for the search of groups; the rest is for the whole
HEAT = 0.003  # of the last search, which begins where another has ended
FAST_METHODS: tuple[Partitioner, ...] = (
    Single(), Layerwise(), RoundRobin(), Heft(), Balanced(), MTopo(), Dpos(), MEtf(),
)  # fmt: skip
"""In about the order of what they bring for their time, which grows like the graph; no replicas."""

TRIED = 3  # answers of the search of groups, on the whole graph


def large_answer(problem: Problem, starts: int, deadline: float, simulated: bool) -> Choice:
    """The best that fast methods and a search of groups find, improved as long as the time allows.

    Judged by the compiled step under the schedule, or the one nearest to it, and by the count of bytes.

    Args:
        deadline: on ``time.perf_counter``.
        simulated: the iteration of `Problem.evaluate` is minimised, else a step of one batch.

    Raises:
        InfeasibleError: nothing that fits was found.
    """
    turns = problem.evaluate.turns if simulated and problem.evaluate is not None else None
    search = Search(problem, starts, deadline, FAST_METHODS, "auto", turns=turns or ONE_BATCH)
    search.compile()
    began, limit_s = search.started, search.deadline - search.started
    search.portfolio(began + FAST * (1 - MOST_AFTER) * limit_s, patience=1.0)
    if search.best is not None:
        after_s = AFTER_S * most_instructions(search.instance, search.best.where, search.turns.microbatches)
        limit_s -= min(after_s, MOST_AFTER * limit_s)
    search.deadline = began + END * limit_s
    now = time.perf_counter()
    _search_groups(search, starts, now + GROUPED * (began + COARSELY * limit_s - now))
    _refine(search)
    answer = search.best
    if answer is None:
        raise infeasible(problem, "auto")
    names = search.instance.names
    return Choice(
        search.instance.decode(answer.where),
        {names[int(v)]: float(i) for i, v in enumerate(answer.order)},
        status="feasible",
        objective_s=answer.value_s,
        notes={"found_by": answer.source, **search.notes},
        stages=answer.stages,
    )


def most_instructions(instance: Instance, where: Ints, microbatches: int) -> int:
    """Of a program in which no two nodes share a segment: what computes, and both ends of each transfer."""
    counts = np.diff(instance.consumers.starts)
    made = np.repeat(np.arange(len(counts)), counts)
    read = np.unique(made * len(instance.devices) + where[instance.consumers.items])
    u, device = np.divmod(read, len(instance.devices))
    crossing = u[device != where[instance.producer[u]]]
    ends = 2 * (len(crossing) + int(instance.requires_backward[crossing].sum()))
    return microbatches * (2 * instance.n + ends)


def _search_groups(search: Search, starts: int, until: float) -> None:
    """Offers what a search of groups of nodes finds."""
    if time.perf_counter() >= until:
        return
    groups, again = intervals(search.instance, GROUPS)
    coarse = CoarseProblem.of(search.instance, groups)
    if search.unreplicated is not None:
        known = coarse.coarsened(search.unreplicated.where)
        coarse = replace(coarse, problem=replace(coarse.problem, known=known))
    inner = Search(coarse.problem, starts, until, FAST_METHODS, "auto, of groups", turns=search.turns)
    inner.run(None)
    search.notes["groups"] = {"count": len(groups), "repeated": again, "moves": inner.notes["moves"]}
    best = [] if inner.best is None else [inner.best.where]
    wheres = {where.tobytes(): where for where in (*best, *(each.where for each in inner.results))}
    for where in list(wheres.values())[:TRIED]:
        whole = coarse.refined(where)
        if search.instance.fits(whole):
            search.offer(search.scheduled(whole, "a search of groups"))


def _refine(search: Search) -> None:
    """Anneals the best placement of the whole graph until the time is up, if it can try every node."""
    start = search.unreplicated
    left_s = search.deadline - time.perf_counter()
    if start is None or left_s <= search.instance.n * search.move_time_s(start.where):
        return
    clock = threading.Timer(left_s, search.stop)
    clock.daemon = True
    clock.start()
    try:
        search.refine(start.where, HEAT)
    finally:
        clock.cancel()
        search.stop()
    search.notes["stopped"] = "time"
