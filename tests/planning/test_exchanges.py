"""How variables travel is chosen by simulation: never longer than send and receive, within capacities."""

import json
import random
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scaling.drawn import drawn_problem
from netsplit.cluster.cluster import Cluster, Link, nics_of
from netsplit.formats.placements import read_placement
from netsplit.partition import Placement, Problem, SimulatedIteration
from netsplit.partition.engines.search import Search
from netsplit.partition.methods.baechi.etf import MEtf
from netsplit.partition.methods.list_schedulers import Dpos, Heft
from netsplit.placement.exchange import ExchangeName
from netsplit.placement.placement import SolverReport
from netsplit.planning.decide import decide, verified
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program.schedules import EagerOneFOneB, OneFOneB
from netsplit.simulate.simulator import Simulator
from tests.builders import behind_nics, graph_fed, linked
from tests.examples import tried
from tests.partition.builders import problems

HOSTS = {"A": ("a0", "a1"), "B": ("b0", "b1", "b2"), "C": ("c0", "c1")}
NAMES = tuple(name for names in HOSTS.values() for name in names)


def three_hosts(nic: bool = True) -> Cluster:
    """A byte takes a second between hosts and a hundredth of that on a host."""
    cluster = linked(NAMES, Link(0.0, 1.0))
    near = {(p, q) for names in HOSTS.values() for p in names for q in names if p != q}
    links = {pair: Link(0.0, 0.01) if pair in near else link for pair, link in cluster.links.items()}
    return replace(cluster, links=links, nics=nics_of(HOSTS, links) if nic else ())


def fanned(exchange: ExchangeName, nic: bool = True) -> tuple[Problem, Placement]:
    """What a0 makes is read on all other devices, and their results on a1."""
    readers = NAMES[1:]
    graph = graph_fed({"u": (), **{f"v{name}": ("u",) for name in readers}, "w": [f"v{n}" for n in readers]})
    cluster = three_hosts(nic)
    costs = Costs({"cpu": DeviceCosts(dict.fromkeys(graph.nodes, NodeSeconds(1.0, 2.0)))}, 2)
    schedule = EagerOneFOneB(4, exchange=exchange)
    evaluate = Simulator(graph, cluster, costs, schedule)
    problem = Problem(graph, costs, cluster, simulator=evaluate, objective=SimulatedIteration())
    device_of = {"u": "a0", **{f"v{name}": name for name in readers}, "w": "a1"}
    order = {name: n for n, name in enumerate(graph.nodes)}
    return problem, Placement("given", device_of, order, SolverReport("heuristic", 0.0))


def test_auto_hands_on_what_would_pass_a_nic_for_every_device() -> None:
    each = verified(*fanned("send_receive"))
    auto = verified(*fanned("auto"))
    assert each.placement.exchanges == ()
    (exchange,) = auto.placement.exchanges
    assert exchange.variable == "k_u"
    assert auto.objective_s < 0.75 * each.objective_s
    assert verified(*fanned("broadcast")).placement.exchanges == auto.placement.exchanges
    out = [e for e in auto.timeline.events if (e.kind, e.name, e.device) == ("send", "k_u", "a0")]
    assert sorted({e.peer for e in out}) == ["a1", "b0"]


@settings(max_examples=tried(60), deadline=None)
@given(problem=problems(), seed=st.integers(0, 2**32), microbatches=st.integers(1, 4))
def test_drawn_plans_get_no_longer_and_hold(problem: Problem, seed: int, microbatches: int) -> None:
    """`verified` checks every timeline; a broadcast that is asked for may be longer, and holds too."""
    rng = random.Random(seed)
    cluster = behind_nics(problem.cluster, rng)
    device_of = {name: rng.choice(cluster.devices).name for name in problem.graph.nodes}
    for group in (*problem.graph.colocated, *problem.graph.units):
        device_of.update(dict.fromkeys(group, device_of[group[0]]))
    placement = Placement("drawn", device_of, problem.graph.position, SolverReport("heuristic", 0.0))
    seconds = {}
    for exchange in ("send_receive", "auto", "broadcast"):
        schedule = OneFOneB(microbatches, exchange=exchange)
        evaluate = Simulator(problem.graph, cluster, problem.costs, schedule)
        own = replace(problem, cluster=cluster, simulator=evaluate, objective=SimulatedIteration())
        seconds[exchange] = verified(own, placement, room=False).objective_s
    assert seconds["auto"] <= seconds["send_receive"]


def test_it_is_told_explained_and_read_again(tmp_path: Path) -> None:
    plan = verified(*fanned("auto"))
    assert "1 variable is forwarded from device to device" in str(plan.summary())
    explanation = plan.explain()
    assert sum(span.seconds for span in explanation.path) == pytest.approx(plan.objective_s)
    file = tmp_path / "placement.json"
    file.write_text(json.dumps(plan.placement.to_dict()))
    again = read_placement(file, plan.problem)
    assert again.exchanges == plan.placement.exchanges
    assert verified(plan.problem, again).objective_s == plan.objective_s


def test_a_search_compares_the_methods_answers_by_what_is_scored() -> None:
    problem = drawn_problem("layered", "hosts", 150, 64, "latency", None)
    search = Search(problem, 1, inf, (Heft(), Dpos(), MEtf()), "auto")
    search.portfolio(inf)
    plans = [decide(problem, method) for method in search.methods]
    search.score(inf)
    assert search.best is not None
    least = min(plans, key=lambda plan: plan.objective_s)
    assert search.best.value_s == least.objective_s
    assert search.best.exchanges == least.placement.exchanges != ()
