"""Transfers between hosts wait for NICs: in the simulator, in compiled steps, and for the verifier."""

import random
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from netsplit.cluster.cluster import Cluster, Link, Nic
from netsplit.program import SingleBatch
from netsplit.simulate import simulate
from tests.builders import behind_nics, compile_placed, costs_of, graph_of, linked
from tests.examples import tried
from tests.simulate.drawn import Drawn, assert_engines_agree, programs
from tests.simulate.timeline_check import wrong_in

NAMES = ("p", "q", "r", "s")
SELDOM = settings(max_examples=tried(40), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
"""Few timelines drawn at random have what is looked for."""


def two_hosts(nic: float = 0.5) -> Cluster:
    """p and q at host a, r and s at host b; every link has a latency of 1 s and half a second a byte."""
    cluster = linked(NAMES, Link(1.0, 0.5))
    return replace(cluster, nics=(Nic("a", NAMES[:2], nic, nic), Nic("b", NAMES[2:], nic, nic)))


def drawn_again(drawn: Drawn, cluster: Cluster) -> Drawn:
    """The same program on another cluster."""
    timeline = simulate(drawn.program, cluster, drawn.costs)
    return replace(drawn, problem=replace(drawn.problem, cluster=cluster), timeline=timeline)


@st.composite
def networked(draw: st.DrawFn, disturbed: bool | None = None) -> Drawn:
    drawn = draw(programs(disturbed=disturbed))
    rng = random.Random(draw(st.integers(0, 2**32)))
    return drawn_again(drawn, behind_nics(drawn.cluster, rng))


def sends_of(cluster: Cluster, moves: list[tuple[str, str, int]]) -> dict[str, tuple[float, float]]:
    """Spans of transfers from node to node, each of its bytes and from one device to another, all at once."""
    count = range(len(moves))
    names, tensors, device_of = [f"{end}{i}" for end in "uv" for i in count], [], {}
    for i, (source, target, nbytes) in enumerate(moves):
        tensors.append((f"u{i}", nbytes, [f"v{i}"]))
        device_of |= {f"u{i}": source, f"v{i}": target}
    graph = graph_of(names, tensors)
    graph = replace(graph, variables={k: replace(v, requires_grad=False) for k, v in graph.variables.items()})
    costs = costs_of(graph)
    program = compile_placed(graph, device_of, {n: i for i, n in enumerate(names)}, cluster, SingleBatch())
    events = simulate(program, cluster, costs).events
    return {e.name: e.span for e in events if e.kind == "send"}


def test_transfers_of_one_host_to_another_share_its_nic_and_not_the_latency() -> None:
    """p to r and q to s, 10 bytes of half a second: the second begins when the first's bytes are out."""
    spans = sends_of(two_hosts(), [("p", "r", 10), ("q", "s", 10)])
    (first, second) = spans.values()
    assert second[0] == first[0] + 5.0
    assert [end - start for start, end in spans.values()] == [6.0, 6.0]


def test_a_nic_is_full_duplex_and_a_host_has_none_within() -> None:
    spans = list(sends_of(two_hosts(), [("p", "r", 10), ("s", "q", 10), ("r", "s", 10)]).values())
    assert len({start for start, _ in spans}) == 1


@pytest.mark.parametrize("order", [("p", "q", "r", "s"), ("p", "r", "q", "s"), ("s", "p", "q", "r")])
def test_a_ring_goes_once_out_of_every_host(order: tuple[str, ...]) -> None:
    cluster = two_hosts()
    ring = cluster.ring(order)
    assert sorted(p for p, _ in ring) == sorted(order) == sorted(q for _, q in ring)
    assert sum((p in "pq") and (q in "rs") for p, q in ring) == 1
    assert linked(NAMES, Link(0.0, 1.0)).ring(order) == list(zip(order, (*order[1:], order[0]), strict=True))


@settings(max_examples=tried(100), deadline=None)
@given(drawn=networked(disturbed=False))
def test_timelines_with_nics_compute_their_step_in_both_engines(drawn: Drawn) -> None:
    assert wrong_in(drawn.problem, drawn.placement, drawn.program, drawn.timeline) == []
    assert_engines_agree(drawn)


@settings(SELDOM)
@given(drawn=networked(disturbed=False), data=st.data())
def test_the_check_names_what_is_at_a_nic_at_once(drawn: Drawn, data: st.DataObject) -> None:
    """A transfer that waited for nothing but a NIC is moved to before that was free."""
    at = [
        (e, other)
        for e in drawn.timeline.events
        for other in drawn.timeline.events
        if e.kind == other.kind == "send" and other.start_s < e.start_s
        for nic, pace in drawn.cluster.way(e.device, e.peer)
        if dict(drawn.cluster.way(other.device, other.peer)).get(nic) == pace
        if other.start_s + other.nbytes * pace == e.start_s
        if (e.device, e.peer) != (other.device, other.peer)
    ]
    assume(at)
    late, other = data.draw(st.sampled_from(at))
    start = (late.start_s + other.start_s) / 2
    moved = late._replace(start_s=start, end_s=start + late.seconds)
    events = tuple(moved if e is late else e for e in drawn.timeline.events)
    moved_so = replace(drawn.timeline, events=events)
    assert any(
        "at once" in each for each in wrong_in(drawn.problem, drawn.placement, drawn.program, moved_so)
    )
