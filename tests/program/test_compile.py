"""Programs: segments, transfers, order, and the refusal of those that cannot complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsplit.errors import DeadlockError
from netsplit.graph import Graph, capture_inference
from netsplit.program import GPipe, Program
from netsplit.program.check import check_progress
from netsplit.program.instructions import Instruction, Recv, Send
from netsplit.program.other_batches import inference_placement
from tests.builders import compile_placed, cpus
from tests.cover import few
from tests.examples import tried
from tests.messages import tells
from tests.nets import CASES, placements
from tests.runtime.equivalence.running import captured

GRAPHS = {name: captured(name, 2) for name in CASES}


def halves(graph: Graph) -> dict[str, str]:
    device_of = {name: f"cpu:{int(2 * i >= len(graph))}" for i, name in enumerate(graph.nodes)}
    for group in graph.colocated:
        device_of.update(dict.fromkeys(group, device_of[group[0]]))
    return device_of


def program_of(graph: Graph, microbatches: int = 2) -> Program:
    return compile_placed(graph, halves(graph), graph.position, cpus(2), GPipe(microbatches))


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=tried(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_segments_are_a_partition_that_never_waits_in_a_circle(name: str, data: st.DataObject) -> None:
    graph = GRAPHS[name]
    device_of, priority = data.draw(placements(graph, 3))
    program = compile_placed(graph, device_of, priority, cpus(3), GPipe(3))
    nodes = [n for segment in program.segments for n in segment.nodes]
    assert sorted(nodes) == sorted(graph.nodes)
    assert all(device_of[n] == segment.device for segment in program.segments for n in segment.nodes)
    maker = {k: s.index for s in program.segments for n in s.nodes for k in program.graph.nodes[n].outputs}
    for segment in program.segments:
        for k in segment.inputs:
            source = program.graph.nodes[k].inputs[0] if k in program.graph.nodes and "@" in k else k
            assert maker.get(source, -1) < segment.index
    for unit in graph.units:
        assert len({s.index for s in program.segments for n in s.nodes if n in unit}) == 1


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=tried(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_variable_goes_once_to_a_device_and_every_send_has_its_receive(
    name: str, data: st.DataObject
) -> None:
    graph = GRAPHS[name]
    device_of, priority = data.draw(placements(graph, 3))
    program = compile_placed(graph, device_of, priority, cpus(3), GPipe(2))
    sends = [(d, ins) for d, each in program.instructions.items() for ins in each if isinstance(ins, Send)]
    receives = {
        ins.tag: (d, ins) for d, each in program.instructions.items() for ins in each if isinstance(ins, Recv)
    }
    values = [(ins.source, ins.peer, ins.microbatch) for _, ins in sends if not ins.gradient]
    assert len(values) == len(set(values))
    assert len(receives) == len(sends)
    for device, send in sends:
        home, recv = receives[send.tag]
        assert (home, recv.peer, recv.variable) == (send.peer, device, send.variable)
    for each in program.instructions.values():
        tags = [ins.tag for ins in each if isinstance(ins, Send | Recv)]
        assert tags == sorted(tags), "each device's transfers follow the one global order"


def test_a_program_that_waits_in_a_circle_is_refused_with_the_circle() -> None:
    program = program_of(GRAPHS["chain"], 1)
    (first, *_) = [ins for ins in program.instructions["cpu:0"] if isinstance(ins, Send)]
    instructions = {
        # cpu:0 wants the gradient before it has sent the activation it is the gradient of
        "cpu:0": (*tuple(ins for ins in program.instructions["cpu:0"] if ins != first), first),
        "cpu:1": program.instructions["cpu:1"],
    }
    with pytest.raises(DeadlockError) as e:
        check_progress(replace(program, instructions=instructions))
    message = str(e.value)
    assert tells(message, "cpu:0", "backward of segment 0, micro-batch 0", "waits", "gradient")
    assert tells(message, "cpu:1", "forward of segment 1, micro-batch 0", "waits")


def test_sends_that_could_wait_for_their_receives_in_a_circle_are_refused() -> None:
    """Each device sends first and receives then: this completes only where a send does not wait."""
    program = program_of(GRAPHS["chain"], 2)
    own = list(program.instructions["cpu:0"])
    later, back = own.index(_transfers(own, Send)[1]), own.index(_transfers(own, Recv)[0])
    assert later < back
    here = [*own[:later], *own[later + 1 : back + 1], own[later], *own[back + 1 :]]
    other = list(program.instructions["cpu:1"])
    recv, send = other.index(_transfers(other, Recv)[1]), other.index(_transfers(other, Send)[0])
    assert recv < send
    check_progress(program)
    with pytest.raises(DeadlockError) as e:
        check_progress(replace(program, instructions={"cpu:0": tuple(here), "cpu:1": tuple(other)}))
    assert tells(str(e.value), "if sends wait for their receives", "micro-batch 1", "the gradient of")


def _transfers(instructions: Sequence[Instruction], kind: type[Instruction]) -> list[Instruction]:
    return [ins for ins in instructions if isinstance(ins, kind)]


def test_a_forward_that_reads_what_nobody_sends_is_refused() -> None:
    program = program_of(GRAPHS["chain"], 1)
    kept = {
        d: tuple(i for i in each if not isinstance(i, Send | Recv))
        for d, each in program.instructions.items()
    }
    with pytest.raises(DeadlockError, match="no device sends"):
        check_progress(replace(program, instructions=kept))


@pytest.mark.parametrize("name", few(list(CASES), 5))
def test_inference_operators_are_beside_the_parameters_they_use(name: str) -> None:
    case, graph = CASES[name], GRAPHS[name]
    device_of = halves(graph)
    home = {k: device_of[node.name] for node in graph for k in node.initializers}
    inference = capture_inference(case.fresh(), case.inputs)
    placed = inference_placement(graph, inference, device_of)
    assert set(placed) == set(inference.nodes)
    assert all(placed[n.name] == home[k] for n in inference for k in n.initializers if k in home)
    assert all(len({placed[n] for n in group}) == 1 for group in inference.colocated)
