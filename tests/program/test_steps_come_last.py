"""Where all devices step at the iteration's end, what no backward follows is computed before, too."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.partition.base import Problem
from netsplit.program.compile import compile_program
from netsplit.program.instructions import Forward, Step
from netsplit.program.schedules import EagerOneFOneB, GPipe, OneFOneB, Schedule
from tests.partition.builders import problems, trained


@pytest.mark.parametrize("schedule", [GPipe(4), OneFOneB(4), EagerOneFOneB(4)], ids=lambda each: each.name)
@settings(max_examples=30)
@given(problem=problems(max_nodes=9).map(trained), draw=st.randoms(use_true_random=False))
def test_no_forward_follows_a_step(problem: Problem, schedule: Schedule, draw: Random) -> None:
    graph, names = problem.graph, [device.name for device in problem.cluster.devices]
    device_of = {node: draw.choice(names) for node in graph.nodes}
    for group in graph.colocated:
        device_of.update(dict.fromkeys(group, device_of[group[0]]))
    program = compile_program(graph, device_of, graph.position, problem.cluster, schedule)
    for each in program.instructions.values():
        steps = [index for index, ins in enumerate(each) if isinstance(ins, Step)]
        forwards = [index for index, ins in enumerate(each) if isinstance(ins, Forward)]
        assert not steps or max(forwards, default=0) < min(steps)
