"""Predicted timelines: known answers by hand, and what must hold of any program."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.cluster.cluster import Cluster, Device, Link
from netsplit.errors import NetSplitError
from netsplit.graph.ir import Graph
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program import Backward, Forward, GPipe, Recv, Schedule, Send, SingleBatch, compile_program
from netsplit.program.check import needs
from netsplit.program.instructions import Program
from netsplit.simulate import Event, Timeline, simulate
from tests.builders import graph_fed, linked
from tests.nets import CASES, placements
from tests.runtime.equivalence.running import captured

EXACT = 1e-9  # seconds; sums of a few hundred numbers below 1000, in double precision
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


def test_transfers_ready_together_go_by_tag() -> None:
    (send_a, recv_a), (send_b, recv_b) = pair("a", 1), pair("b", 0)
    p, q = [Forward(0, 0), send_a, send_b], [recv_a, recv_b, Forward(1, 0), Forward(2, 0)]
    sends = [e for e in fork(SLOW, {"p": p, "q": q}).events if e.kind == "send"]
    assert [(e.name, e.start_s) for e in sends] == [("k_b", 2.0), ("k_a", 6.5)]


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


def test_every_instruction_has_its_overhead() -> None:
    """On p: forward, send, receive, backward, step."""
    cluster = distinct("pq")
    program = compiled(graph_fed({"a": [], "b": ["a"]}), {"a": "p", "b": "q"}, cluster, SingleBatch())
    costs = timed(cluster, dict.fromkeys("ab", (1.0, 1.0))).with_device("kind of p", instruction_s=0.125)
    timeline = simulate(program, cluster, costs)
    assert spans(timeline, "forward", "p") == [(0.125, 1.125)]
    assert spans(timeline, "forward", "q") == [(1.25, 2.25)]
    assert spans(timeline, "backward", "p") == [(3.25, 4.25)]
    assert timeline.iteration_s == 4.375


def test_an_operator_without_costs_is_named() -> None:
    program, cluster, costs = two_devices()
    with pytest.raises(NetSplitError, match="'b' has no measured seconds on device kind 'kind of q'"):
        simulate(program, cluster, costs.with_device("kind of q", nodes={}))


class Drawn:
    """A random graph, placed on some devices, with random seconds and links."""

    def __init__(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(2, 14), "nodes")
        rng = random.Random(data.draw(st.integers(0, 2**32), "seed"))
        feeders: dict[str, list[str]] = {}
        for n in range(count):
            before = list(feeders)
            feeders[f"n{n}"] = rng.sample(before, rng.randint(0, min(3, n)))
        read = {u for feeds in feeders.values() for u in feeds}
        feeders["loss"] = [name for name in feeders if name not in read]
        devices = data.draw(st.integers(1, 4), "devices")
        self.graph = graph_fed(feeders, weights={name: rng.randint(1, 9) for name in feeders})
        self.device_of, self.priority = data.draw(placements(self.graph, devices))
        names = [f"cpu:{rank}" for rank in range(devices)]
        drawn = tuple(Device(name, rng.choice(["slow", "fast"]), 2**40) for name in names)
        links = {(p, q): Link(rng.random(), rng.random() / 16) for p in names for q in names if p != q}
        self.cluster = Cluster("drawn", drawn, links)
        slow, fast = (
            {name: NodeSeconds(rng.random(), rng.random()) for name in self.graph.nodes} for _ in range(2)
        )
        self.costs = Costs({"slow": DeviceCosts(slow, 0.1, 0.01), "fast": DeviceCosts(fast, 0.01)}, 3)
        schedule: Schedule = data.draw(st.sampled_from([SingleBatch(), GPipe(1), GPipe(3)]))
        self.program = compile_program(self.graph, self.device_of, self.priority, self.cluster, schedule)
        self.timeline = simulate(self.program, self.cluster, self.costs)

    def longest_path_s(self) -> float:
        """Forward and backward along one path, each operator on its faster kind."""
        ends: dict[str, float] = {}
        for name in self.graph.nodes:
            own = min(each.nodes[name].total_s for each in self.costs.devices.values())
            ends[name] = own + max((ends[u] for u in self.graph.predecessors[name]), default=0.0)
        return max(ends.values())


def no_overlap(events: list[Event]) -> bool:
    ordered = sorted(events, key=lambda e: (e.start_s, e.end_s))
    return all(a.end_s <= b.start_s + EXACT for a, b in pairwise(ordered))


@given(data=st.data())
def test_no_iteration_is_shorter_than_a_path_or_a_devices_work(data: st.DataObject) -> None:
    drawn = Drawn(data)
    assert drawn.timeline.iteration_s >= drawn.longest_path_s() - EXACT
    for device in drawn.program.devices:
        assert drawn.timeline.iteration_s >= drawn.timeline.busy_s(device) - EXACT


@given(data=st.data())
def test_devices_and_links_do_one_thing_at_a_time(data: st.DataObject) -> None:
    drawn = Drawn(data)
    rows: dict[tuple[str, str], list[Event]] = {}
    for event in drawn.timeline.events:
        assert 0.0 <= event.start_s <= event.end_s <= drawn.timeline.iteration_s
        rows.setdefault((event.device, event.peer if event.kind == "send" else ""), []).append(event)
    assert all(no_overlap(row) for row in rows.values())


@given(data=st.data())
def test_computation_follows_the_arrival_of_all_it_reads(data: st.DataObject) -> None:
    drawn = Drawn(data)
    program = drawn.program
    arrival = {(e.name, e.microbatch, e.peer): e.end_s for e in drawn.timeline.events if e.kind == "send"}
    start = {(str(e.kind), e.name, e.microbatch): e.start_s for e in drawn.timeline.events}
    for device, instructions in program.instructions.items():
        names = {
            (ins.variable, ins.microbatch, ins.gradient): ("gradient of " if ins.gradient else "")
            + ins.source
            for ins in instructions
            if isinstance(ins, Recv)
        }
        for ins in instructions:
            if isinstance(ins, Forward | Backward):
                kind = "forward" if isinstance(ins, Forward) else "backward"
                for key in needs(program, ins):
                    came = arrival[names[key], ins.microbatch, device]
                    assert start[kind, f"segment {ins.segment}", ins.microbatch] >= came - EXACT


@given(data=st.data())
def test_one_pass_over_the_global_order_gives_the_same_times(data: st.DataObject) -> None:
    """Compiled programs need no event queue: their links serve tags in order. Two ways, one answer."""
    drawn = Drawn(data)
    assert drawn.timeline.iteration_s == pytest.approx(one_pass_s(drawn), rel=1e-12)


def one_pass_s(drawn: Drawn) -> float:
    program, costs, cluster = drawn.program, drawn.costs, drawn.cluster
    kind = {device.name: device.kind for device in cluster.devices}
    clock = dict.fromkeys(program.devices, 0.0)
    at = dict.fromkeys(program.devices, 0)
    issued: dict[int, float] = {}
    free: dict[tuple[str, str], float] = {}
    arrival: dict[tuple[str, int, bool], float] = {}
    weights = {
        d: sum(program.graph.initializers[k].nbytes for k, h in program.initializer_device.items() if h == d)
        for d in program.devices
    }
    for d in program.order:
        ins = program.instructions[d][at[d]]
        at[d] += 1
        its = costs.devices[kind[d]]
        clock[d] += its.instruction_s
        if isinstance(ins, Send):
            issued[ins.tag] = clock[d]
        elif isinstance(ins, Recv):
            link = (ins.peer, d)
            begin = max(issued[ins.tag], clock[d], free.get(link, 0.0))
            free[link] = begin + cluster.links[link].seconds(16)
            arrival[ins.variable, ins.microbatch, ins.gradient] = free[link]
        elif isinstance(ins, Forward | Backward):
            clock[d] = max(clock[d], *(arrival[key] for key in needs(program, ins)), 0.0)
            seconds = [its.nodes[name] for name in program.segments[ins.segment].nodes]
            clock[d] += sum(s.forward_s if isinstance(ins, Forward) else s.backward_s for s in seconds)
        else:
            clock[d] += weights[d] * its.step_s_per_byte
    return max(*clock.values(), *free.values(), 0.0)


@settings(max_examples=5)
@given(data=st.data())
def test_a_timeline_has_peak_bytes_of_every_device(data: st.DataObject) -> None:
    drawn = Drawn(data)
    assert set(drawn.timeline.peak_bytes) == set(drawn.program.devices)


# What must hold of captured models too: tied weights, views, inputs read on several devices, paths without
# gradient.

GRAPHS = {name: captured(name, 2) for name in CASES}
SCHEDULES: dict[str, Schedule] = {"single_batch": SingleBatch(), "gpipe": GPipe(3)}


def placed(name: str, schedule: str, data: st.DataObject) -> tuple[Program, Cluster, Costs]:
    """A captured model anywhere on three devices; seconds, links and the optimiser's step at random."""
    graph = GRAPHS[name]
    device_of, priority = data.draw(placements(graph, 3))
    rng = random.Random(data.draw(st.integers(0, 2**32), "seed"))
    devices = tuple(Device(f"cpu:{rank}", "cpu", 2**40) for rank in range(3))
    pairs = [(p.name, q.name) for p in devices for q in devices if p != q]
    cluster = Cluster("drawn", devices, {pair: Link(rng.random(), rng.random() / 1000) for pair in pairs})
    seconds = {node: NodeSeconds(rng.random(), rng.random()) for node in graph.nodes}
    costs = Costs({"cpu": DeviceCosts(seconds, rng.random() / 1000, rng.random() / 10)}, 3)
    return compile_program(graph, device_of, priority, cluster, SCHEDULES[schedule]), cluster, costs
