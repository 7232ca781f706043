"""A device never takes a send for over that its receiver has not taken."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsplit.program import Program
from netsplit.program.check import acknowledged, needs
from netsplit.program.instructions import Backward, Forward, Recv, Send
from netsplit.program.schedules import SCHEDULES
from tests.builders import compile_placed, cpus
from tests.nets import placements
from tests.runtime.equivalence.running import captured

NAMES = ("chain", "cells", "two_inputs")
GRAPHS = {name: captured(name, 2) for name in NAMES}


class Run:
    """One device runs as far ahead as it can; the others move only when it stands still."""

    def __init__(self, program: Program, ahead: str) -> None:
        self.program = program
        self.ahead = ahead
        self.at = dict.fromkeys(program.devices, 0)
        self.sent: set[int] = set()
        self.tags = {
            (name, ins.variable, ins.microbatch, ins.gradient): ins.tag
            for name, each in program.instructions.items()
            for ins in each
            if isinstance(ins, Recv)
        }
        self.taken: set[int] = set()

    def step(self, name: str) -> bool:
        instructions = self.program.instructions[name]
        if self.at[name] == len(instructions):
            return False
        ins = instructions[self.at[name]]
        keys = needs(self.program, ins) if isinstance(ins, Forward | Backward) else []
        tags = [self.tags[name, *key] for key in keys if (name, *key) in self.tags]
        if any(tag not in self.sent for tag in tags):
            return False
        self.taken.update(tags)
        if isinstance(ins, Send):
            self.sent.add(ins.tag)
        self.at[name] += 1
        return True


@pytest.mark.parametrize("name", GRAPHS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_let_go_has_been_taken_however_far_a_device_is_ahead(name: str, data: st.DataObject) -> None:
    graph = GRAPHS[name]
    device_of, priority = data.draw(placements(graph, 3))
    kind = data.draw(st.sampled_from([s for s in SCHEDULES if s != "single_batch"]))
    program = compile_placed(graph, device_of, priority, cpus(3), SCHEDULES[kind](4))  # type: ignore[call-arg]
    for ahead in program.devices:
        told, run = acknowledged(program, ahead), Run(program, ahead)
        moved = True
        while moved:
            moved = False
            while True:
                index = run.at[ahead]
                if not run.step(ahead):
                    break
                moved = True
                assert all(send.tag in run.taken for send in told.get(index, ()))
            others = [run.step(other) for other in program.devices if other != ahead]
            moved |= any(others)
        assert all(run.at[d] == len(program.instructions[d]) for d in program.devices)
        assert len({send.tag for each in told.values() for send in each}) == sum(map(len, told.values()))
