"""Predicted timelines: known answers by hand, and what must hold of any program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsplit.cluster.cluster import Cluster, Link
from netsplit.errors import NetSplitError
from netsplit.graph.ir import Graph
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program import Forward, GPipe, Recv, Schedule, Send, SingleBatch, compile_program
from netsplit.program.instructions import Program
from netsplit.simulate import Timeline, simulate
from tests.builders import graph_fed, linked

FREE = Link(0.0, 0.0)
SLOW = Link(0.5, 0.25)  # 4.5 s for the 16 bytes of a variable here


def distinct(names: Sequence[str], link: Link = FREE) -> Cluster:
    return linked(names, link, [f"kind of {name}" for name in names])


def timed(cluster: Cluster, seconds: Mapping[str, tuple[float, float]], alpha: int = 2) -> Costs:
    """The same seconds on every device."""
    each = DeviceCosts({name: NodeSeconds(*pair) for name, pair in seconds.items()})
    return Costs({device.kind: each for device in cluster.devices}, alpha)


def compiled(graph: Graph, where: Mapping[str, str], cluster: Cluster, schedule: Schedule) -> Program:
    return compile_program(graph, where, graph.position, cluster, schedule)


def spans(timeline: Timeline, kind: str, device: str = "") -> list[tuple[float, float]]:
    return [(e.start_s, e.end_s) for e in timeline.events if e.kind == kind and device in ("", e.device)]


def two_devices() -> tuple[Program, Cluster, Costs]:
    """a on p feeds b on q."""
    cluster = distinct("pq", SLOW)
    program = compiled(graph_fed({"a": [], "b": ["a"]}), {"a": "p", "b": "q"}, cluster, SingleBatch())
    return program, cluster, timed(cluster, {"a": (1.0, 2.0), "b": (3.0, 4.0)})


def test_one_transfer_each_way_by_hand() -> None:
    """Forward, 4.5 s of transfer, forward and backward there, 4.5 s back, backward."""
    timeline = simulate(*two_devices())
    assert spans(timeline, "forward") == [(0.0, 1.0), (5.5, 8.5)]
    assert spans(timeline, "backward") == [(8.5, 12.5), (17.0, 19.0)]
    assert spans(timeline, "send") == [(1.0, 5.5), (12.5, 17.0)]
    assert timeline.iteration_s == 19.0
    assert (timeline.busy_s("p"), timeline.busy_s("q")) == (3.0, 7.0)


def fork(link: Link, lists: Mapping[str, Sequence[object]]) -> Timeline:
    """a and b on p, c on q reads both and needs 10 s; forwards only, with the given instructions."""
    cluster = distinct("pq", link)
    graph = graph_fed({"a": [], "b": [], "d": [], "c": ["a", "b", "d"]})
    where = {"a": "p", "b": "p", "c": "q", "d": "q"}
    program = compile_program(graph, where, graph.position, cluster, GPipe(1), training=False)
    assert [s.nodes for s in program.segments] == [("a", "b"), ("d",), ("c",)]
    program = replace(program, instructions={name: tuple(each) for name, each in lists.items()})  # type: ignore[arg-type]
    seconds = {"a": (1.0, 0.0), "b": (1.0, 0.0), "d": (10.0, 0.0), "c": (1.0, 0.0)}
    return simulate(program, cluster, timed(cluster, seconds))


def pair(k: str, tag: int) -> tuple[Send, Recv]:
    shared = (f"k_{k}@q", f"k_{k}", 0)
    return Send(*shared, "q", False, tag), Recv(*shared, "p", False, tag)


def test_transfers_on_one_link_take_turns() -> None:
    (send_a, recv_a), (send_b, recv_b) = pair("a", 0), pair("b", 1)
    p, q = [Forward(0, 0), send_a, send_b], [recv_a, recv_b, Forward(1, 0), Forward(2, 0)]
    timeline = fork(SLOW, {"p": p, "q": q})
    assert spans(timeline, "send") == [(2.0, 6.5), (6.5, 11.0)]
    assert spans(timeline, "forward", "q") == [(0.0, 10.0), (11.0, 12.0)]


def test_a_transfer_waits_for_its_receiver() -> None:
    """Rendezvous: nothing moves before the receive is posted, at 10 s."""
    (send_a, recv_a), (send_b, recv_b) = pair("a", 0), pair("b", 1)
    p, q = [Forward(0, 0), send_a, send_b], [Forward(1, 0), recv_a, recv_b, Forward(2, 0)]
    timeline = fork(SLOW, {"p": p, "q": q})
    assert spans(timeline, "send") == [(10.0, 14.5), (14.5, 19.0)]
    assert timeline.iteration_s == 20.0


def test_a_link_serves_what_is_ready_first() -> None:
    """The receive of tag 1 is posted before that of tag 0."""
    (send_a, recv_a), (send_b, recv_b) = pair("a", 0), pair("b", 1)
    p, q = [Forward(0, 0), send_a, send_b], [recv_b, Forward(1, 0), recv_a, Forward(2, 0)]
    sends = [e for e in fork(SLOW, {"p": p, "q": q}).events if e.kind == "send"]
    assert [(e.name, e.start_s) for e in sends] == [("k_b", 2.0), ("k_a", 10.0)]


@given(stages=st.integers(1, 4), m=st.integers(1, 6))
def test_gpipe_over_equal_stages_takes_m_plus_p_minus_1_ticks(stages: int, m: int) -> None:
    """Huang et al., GPipe, section 2.3: with free links (m + p - 1) forward and as many backward ticks."""
    names = [f"n{s}" for s in range(stages)]
    cluster = distinct([f"d{s}" for s in range(stages)])
    graph = graph_fed({name: names[max(s - 1, 0) : s] for s, name in enumerate(names)})
    program = compiled(graph, {f"n{s}": f"d{s}" for s in range(stages)}, cluster, GPipe(m))
    timeline = simulate(program, cluster, timed(cluster, dict.fromkeys(names, (1.0, 2.0))))
    assert timeline.iteration_s == (m + stages - 1) * 3.0


def test_the_step_costs_the_bytes_of_the_devices_parameters() -> None:
    cluster = distinct("pq")
    graph = graph_fed({"a": [], "b": ["a"]}, weights={"a": 5, "b": 25})
    program = compiled(graph, {"a": "p", "b": "q"}, cluster, SingleBatch())
    costs = timed(cluster, dict.fromkeys("ab", (1.0, 1.0))).with_device("kind of p", step_s_per_byte=0.5)
    costs = costs.with_device("kind of q", step_s_per_byte=0.25)
    assert spans(simulate(program, cluster, costs), "step") == [(3.0, 28.0), (4.0, 14.0)]


def test_backward_waits_for_no_gradient_that_is_never_sent() -> None:
    """b on q reads a, but its result goes nowhere: only c sends a's gradient."""
    cluster = distinct("pqr")
    graph = graph_fed({"a": [], "b": ["a"], "c": ["a"]})
    program = compiled(graph, {"a": "p", "b": "q", "c": "r"}, cluster, SingleBatch())
    assert [type(ins) for ins in program.instructions["q"]] == [Recv, Forward]
    timeline = simulate(program, cluster, timed(cluster, dict.fromkeys("abc", (1.0, 2.0))))
    assert spans(timeline, "backward") == [(2.0, 4.0), (4.0, 6.0)]


def test_an_operator_without_costs_is_named() -> None:
    program, cluster, costs = two_devices()
    with pytest.raises(NetSplitError, match="'b' has no measured seconds on device kind 'kind of q'"):
        simulate(program, cluster, costs.with_device("kind of q", nodes={}))


# What must hold of captured models too: tied weights, views, inputs read on several devices, paths without
# gradient.
