"""Training and evaluation are two programs on the same tensors; neither disturbs the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from netsplit.graph import Graph, capture_inference, initial_values
from netsplit.program import GPipe, Program, Schedule
from netsplit.program.other_batches import inference_placement
from netsplit.program.schedules import ZBH1, AsyncOneFOneB, OneFOneB
from netsplit.runtime.local import LocalRuntime
from tests.builders import cpus
from tests.cover import covering
from tests.nets import CASES, DROPPED, SGD, STAGES, TOLERANCE, Case
from tests.runtime.equivalence.running import assert_same, batches_of, captured_for, compiled, cut, plain
from tests.runtime.references import Trained

SCHEDULES: dict[str, Schedule] = {
    "gpipe+recompute": GPipe(4, recompute=True),
    "1f1b": OneFOneB(4),
    "zb_h1": ZBH1(4),
}
NORMALISED = ["chain", "cells", "u_shape", "shared_norm", "stages"]


def programs(case: Case, schedule: Schedule, devices: int) -> tuple[Program, Program]:
    graph = captured_for(case, schedule)
    device_of = cut(graph, [n / devices for n in range(1, devices)])
    evaluated: Graph = capture_inference(case.fresh(), case.batch(schedule.microbatch_size(8))[0])
    where = inference_placement(graph, evaluated, device_of)
    return (
        compiled(graph, device_of, devices, schedule),
        compiled(evaluated, where, devices, schedule, training=False),
    )


def predicted(runtime: LocalRuntime, inference: Program, inputs: tuple[Tensor, ...]) -> Tensor:
    (k,) = inference.graph.output_variables
    outputs = runtime.predict(inference, inputs)
    return torch.cat([outputs[k, i] for i in range(inference.microbatches)])


@covering(name=[*NORMALISED, "dropped"], schedule=SCHEDULES)
def test_evaluation_uses_running_statistics_and_drops_nothing(name: str, schedule: str) -> None:
    case, order = {**CASES, "stages": STAGES, "dropped": DROPPED}[name], SCHEDULES[schedule]
    program, inference = programs(case, order, 3)
    runtime = LocalRuntime(program, cpus(3), initial_values(case.fresh(), program.graph), SGD)
    for batch in batches_of(case):
        runtime.train_batch(*batch)
    inputs, _ = case.another(9)
    outputs = predicted(runtime, inference, inputs)
    model = case.fresh()
    model.load_state_dict(runtime.state())
    with torch.no_grad():
        torch.testing.assert_close(outputs, model.eval()(*inputs), rtol=TOLERANCE, atol=TOLERANCE)
        assert not torch.allclose(outputs, model.train()(*inputs), rtol=1e-3)


@covering(name=NORMALISED, schedule=SCHEDULES)
def test_evaluation_between_batches_does_not_disturb_training(name: str, schedule: str) -> None:
    case, order = CASES.get(name, STAGES), SCHEDULES[schedule]
    program, inference = programs(case, order, 2)
    values = initial_values(case.fresh(), program.graph)
    runtime = LocalRuntime(program, cpus(2), values, SGD)
    inputs, _ = case.another(9)
    losses = []
    for batch in batches_of(case):
        predicted(runtime, inference, inputs)
        losses.append(runtime.train_batch(*batch))
    outputs = predicted(runtime, inference, inputs)
    wanted = plain(case.name, 2)
    assert_same(Trained(losses, runtime.state()), wanted)
    model = case.fresh()
    model.load_state_dict(wanted.state)
    with torch.no_grad():
        plain_outputs = model.eval()(*inputs)
    torch.testing.assert_close(outputs, plain_outputs, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("weights", ["stashed", "double"])
def test_evaluation_sees_the_newest_weights(weights: str) -> None:
    """After batches within which several versions were alive."""
    order = AsyncOneFOneB(4, weights=weights)  # type: ignore[arg-type]
    program, inference = programs(STAGES, order, 3)
    runtime = LocalRuntime(program, cpus(3), initial_values(STAGES.fresh(), program.graph), SGD)
    for batch in batches_of(STAGES):
        runtime.train_batch(*batch)
        inputs, _ = STAGES.another(9)
        outputs = predicted(runtime, inference, inputs)
        model = STAGES.fresh()
        model.load_state_dict(runtime.state())
        with torch.no_grad():
            torch.testing.assert_close(outputs, model.eval()(*inputs), rtol=TOLERANCE, atol=TOLERANCE)
