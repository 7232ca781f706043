"""Predicted timelines: known answers by hand, and what must hold of any program."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsplit.cluster.cluster import Cluster, Link
from netsplit.errors import ConfigError, NetSplitError
from netsplit.graph import capture
from netsplit.graph.ir import Graph
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program import GPipe, Schedule, SingleBatch
from netsplit.program.instructions import Forward, Program, Recv, Send
from netsplit.program.schedules import OneFOneB
from netsplit.simulate import Timeline, simulate
from tests.builders import compile_placed, graph_fed, linked
from tests.nets import CASES
from tests.simulate.drawn import chain

FREE = Link(0.0, 0.0)
SLOW = Link(0.5, 0.25)  # 4.5 s for the 16 bytes of a variable here


def distinct(names: Sequence[str], link: Link = FREE) -> Cluster:
    return linked(names, link, [f"kind of {name}" for name in names])


def timed(cluster: Cluster, seconds: Mapping[str, tuple[float, float]], alpha: int = 2) -> Costs:
    """The same seconds on every device."""
    each = DeviceCosts({name: NodeSeconds(*pair) for name, pair in seconds.items()})
    return Costs({device.kind: each for device in cluster.devices}, alpha)


def compiled(graph: Graph, where: Mapping[str, str], cluster: Cluster, schedule: Schedule) -> Program:
    return compile_placed(graph, where, graph.position, cluster, schedule)


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
    program = compile_placed(graph, where, graph.position, cluster, GPipe(1), training=False)
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


def made(
    schedule: Schedule, *where: str, cluster: Cluster, weight: int = 0, **more: object
) -> tuple[Program, Costs]:
    """A chain with one node a device of `where`: 1 s forward, 2 s backward, of which 0.5 s can wait."""
    graph = chain(len(where), {f"n{i}": weight for i in range(len(where))} if weight else None)
    device_of = dict(zip(graph.nodes, where, strict=True))
    program = compile_placed(graph, device_of, graph.position, cluster, schedule, **more)  # type: ignore[arg-type]
    return program, Costs({"cpu": DeviceCosts(dict.fromkeys(graph.nodes, NodeSeconds(1.0, 2.0, 0.5)))}, 2)


def test_a_backward_in_two_parts_sends_the_gradient_before_the_weight_part() -> None:
    cluster = linked(["p", "q"], SLOW)
    program, costs = made(SingleBatch(delay_weights=True), "p", "q", cluster=cluster)
    timeline = simulate(program, cluster, costs)
    assert spans(timeline, "backward", "q") == [(6.5, 8.0)]
    assert spans(timeline, "weight", "q") == [(8.0, 8.5)]
    assert spans(timeline, "send", "q") == [(8.0, 12.5)]
    assert (timeline.iteration_s, timeline.busy_s("p")) == (14.5, 3.0)


def test_a_recomputed_forward_runs_while_the_gradient_is_on_its_way() -> None:
    cluster = linked(["p", "q"], SLOW)
    program, costs = made(GPipe(1, recompute=True), "p", "q", cluster=cluster)
    timeline = simulate(program, cluster, costs)
    assert spans(timeline, "recompute") == []  # the backward follows at once on each device
    program, costs = made(GPipe(2, recompute=True), "p", "q", cluster=cluster)
    timeline = simulate(program, cluster, costs)
    first = spans(timeline, "recompute", "p")[0]
    assert first == (2.0, 3.0)
    assert spans(timeline, "backward", "p")[0][0] > first[1]


def test_replicas_sum_their_gradients_over_a_ring_before_they_step() -> None:
    """Three replicas, 12 bytes: 4 rounds of 4 bytes at 0.5 s + 0.25 s a byte."""
    cluster = linked(["p", "q", "r"], SLOW)
    program, costs = made(GPipe(3), "p", cluster=cluster, weight=3, replicas={"p": ("p", "q", "r")})
    costs = costs.with_device("cpu", step_s_per_byte=0.25)
    timeline = simulate(program, cluster, costs)
    assert spans(timeline, "forward") == [(0.0, 1.0)] * 3
    assert spans(timeline, "reduce") == [(3.0, 9.0)] * 3
    assert spans(timeline, "step") == [(9.0, 12.0)] * 3


def test_a_sum_waits_for_the_last_device_to_come_to_it() -> None:
    cluster = linked(["p", "q"], SLOW)
    program, costs = made(GPipe(3), "p", cluster=cluster, weight=2, replicas={"p": ("p", "q")})
    timeline = simulate(program, cluster, costs)
    assert spans(timeline, "backward", "q")[-1][1] == 3.0
    assert spans(timeline, "reduce") == [(6.0, 9.0)] * 2
    wait = next(e for e in timeline.events if e.kind == "wait" and e.device == "q")
    assert (wait.start_s, wait.end_s, wait.name) == (3.0, 9.0, "sum of gradients over p, q")


def test_a_sum_without_a_link_is_refused() -> None:
    cluster = linked(["p", "q"], SLOW)
    program, costs = made(GPipe(2), "p", cluster=cluster, weight=2, replicas={"p": ("p", "q")})
    with pytest.raises(ConfigError, match="no link from q to p"):
        simulate(program, cluster.with_links({("p", "q"): SLOW}), costs)


def test_two_hosts_are_busy_each_for_itself() -> None:
    """The third of three devices is alone on its host, and keeps its speed while the others slow down."""
    cluster = linked(["p", "q", "r"], Link(0.0, 0.0))
    hosts = ("here", "here", "there")
    devices = tuple(replace(d, host=h) for d, h in zip(cluster.devices, hosts, strict=True))
    cluster = replace(cluster, devices=devices)
    program, costs = made(GPipe(3), "p", cluster=cluster, replicas={"p": ("p", "q", "r")})
    timeline = simulate(program, cluster, costs.with_device("cpu", contention=2.0))
    assert [spans(timeline, "forward", name) for name in "pqr"] == [[(0.0, 2.0)], [(0.0, 2.0)], [(0.0, 1.0)]]


def test_a_transfer_takes_time_from_the_computations_of_both_its_ends() -> None:
    """16 bytes in 4.5 s take 0.125 s each: 2 s. The sender's next forward of 1 s goes at 5/9 of its speed."""
    cluster = linked(["cpu:0", "cpu:1"], SLOW)
    program, costs = made(GPipe(2), "cpu:0", "cpu:1", cluster=cluster)
    timeline = simulate(program, cluster, costs.with_device("cpu", copy_s_per_byte=0.125))
    assert spans(timeline, "send", "cpu:0")[0] == (1.0, 5.5)
    assert [end for _, end in spans(timeline, "forward", "cpu:0")] == pytest.approx([1.0, 1.0 + 9 / 5])
    assert spans(timeline, "forward", "cpu:1")[0][1] == pytest.approx(5.5 + 9 / 5)


def test_every_backward_but_the_first_adds_its_gradients_to_those_before() -> None:
    """Three micro-batches of one segment: twice the weights' bytes are added."""
    case = CASES["chain"]
    graph = capture(case.fresh(), case.loss, case.batch(2))
    program = compile_placed(
        graph, dict.fromkeys(graph.nodes, "cpu:0"), graph.position, linked(["cpu:0"], SLOW), OneFOneB(3)
    )
    costs = Costs({"cpu": DeviceCosts(dict.fromkeys(graph.nodes, NodeSeconds(1.0, 2.0, 0.5)))}, 2)
    nbytes = sum(init.nbytes for init in graph.initializers.values() if init.requires_grad)
    plain = simulate(program, linked(["cpu:0"], SLOW), costs)
    adding = simulate(program, linked(["cpu:0"], SLOW), costs.with_device("cpu", accumulate_s_per_byte=1e-3))
    assert adding.iteration_s == pytest.approx(plain.iteration_s + 2 * 1e-3 * nbytes)
