"""Seconds of every instruction by hand: parts of a backward, recomputation, sums, steps, disturbance."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netsplit.cluster.cluster import Cluster, Link
from netsplit.errors import ConfigError
from netsplit.graph import capture
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program import compile_program
from netsplit.program.instructions import Program
from netsplit.program.schedules import GPipe, OneFOneB, Schedule, SingleBatch
from netsplit.simulate import Timeline, simulate
from tests.builders import linked
from tests.nets import CASES
from tests.simulate.drawn import chain

SLOW = Link(0.5, 0.25)  # 4.5 s for the 16 bytes of a variable


def made(
    schedule: Schedule, *where: str, cluster: Cluster, weight: int = 0, **more: object
) -> tuple[Program, Costs]:
    """A chain with one node a device of `where`: 1 s forward, 2 s backward, of which 0.5 s can wait."""
    graph = chain(len(where), {f"n{i}": weight for i in range(len(where))} if weight else None)
    device_of = dict(zip(graph.nodes, where, strict=True))
    program = compile_program(graph, device_of, graph.position, cluster, schedule, **more)  # type: ignore[arg-type]
    return program, Costs({"cpu": DeviceCosts(dict.fromkeys(graph.nodes, NodeSeconds(1.0, 2.0, 0.5)))}, 2)


def spans(timeline: Timeline, kind: str, device: str = "") -> list[tuple[float, float]]:
    return [(e.start_s, e.end_s) for e in timeline.events if e.kind == kind and device in ("", e.device)]


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
    """Of three devices the third is alone on its host, and keeps its speed while the others slow down."""
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
    program = compile_program(
        graph, dict.fromkeys(graph.nodes, "cpu:0"), graph.position, linked(["cpu:0"], SLOW), OneFOneB(3)
    )
    costs = Costs({"cpu": DeviceCosts(dict.fromkeys(graph.nodes, NodeSeconds(1.0, 2.0, 0.5)))}, 2)
    nbytes = sum(init.nbytes for init in graph.initializers.values() if init.requires_grad)
    plain = simulate(program, linked(["cpu:0"], SLOW), costs)
    adding = simulate(program, linked(["cpu:0"], SLOW), costs.with_device("cpu", accumulate_s_per_byte=1e-3))
    assert adding.iteration_s == pytest.approx(plain.iteration_s + 2 * 1e-3 * nbytes)
