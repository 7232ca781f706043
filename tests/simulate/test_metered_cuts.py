"""Metered bytes of nets that are cut anywhere: predicted within the margin."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.graph import Graph, initial_values
from netsplit.graph.recording.step import capture
from netsplit.profile.measure.predicted_bytes import predicted_transients
from netsplit.program import GPipe, Schedule, SingleBatch, compile_program
from netsplit.program.resize import with_tail
from netsplit.program.schedules import ZBH1, OneFOneB
from netsplit.simulate import predicted_peak_bytes
from tests.builders import cpus
from tests.examples import tried
from tests.nets import CASES
from tests.simulate.test_memory import MOMENTUM, measured_peak_bytes, within_margin

SCHEDULES: tuple[Schedule, ...] = (SingleBatch(), GPipe(4), OneFOneB(4), ZBH1(4))
SETTINGS = settings(deadline=None, max_examples=tried(12))


@cache
def graph_of(name: str, samples: int) -> Graph:
    case = CASES[name]
    inputs, targets = case.batch(samples)
    return capture(case.fresh(), case.loss, (inputs[0] if len(inputs) == 1 else inputs, targets))


def cut(graph: Graph, at: int) -> dict[str, str]:
    """The nodes from a place on, on the second device; what must be together goes with its first."""
    device_of = {name: f"cpu:{int(i >= at)}" for i, name in enumerate(graph.nodes)}
    for group in graph.colocated:
        device_of.update(dict.fromkeys(group, device_of[group[0]]))
    return device_of


def check(name: str, at: int, schedule: Schedule, samples: int) -> None:
    """Of a batch of so many samples, the last micro-batch smaller where they do not divide."""
    case, size = CASES[name], schedule.microbatch_size(samples)
    graph, schedule = graph_of(name, size), schedule.for_batch(samples)
    device_of = cut(graph, at % (len(graph) + 1))
    program = compile_program(graph, device_of, graph.position, cpus(2), schedule)
    if samples % size:
        program = with_tail(program, graph, graph_of(name, samples % size))
    inputs, targets = case.another(7, samples)
    measured = measured_peak_bytes(program, initial_values(case.fresh(), graph), inputs, targets)
    transients = dict.fromkeys(program.devices, predicted_transients(graph))
    predicted = predicted_peak_bytes(program, MOMENTUM, transients)
    for device, nbytes in measured.items():
        assert within_margin(predicted[device], nbytes)


@pytest.mark.parametrize("name", ["chain", "cells", "tied", "attention", "fan"])
@SETTINGS
@given(st.integers(0, 99), st.sampled_from(SCHEDULES[1:]), st.sampled_from([5, 7, 9, 13]))
def test_a_last_micro_batch_of_fewer_samples(name: str, at: int, schedule: Schedule, samples: int) -> None:
    check(name, at, schedule, samples)
