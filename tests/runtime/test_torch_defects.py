"""What torch.distributed.pipelining (2.13) does wrong with such models, and what happens here.

A hung rank, which shows there after 30 minutes and under another rank's name, is in `test_faults`.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from netsplit.graph import capture_inference, initial_values
from netsplit.program import GPipe, Program, Schedule
from netsplit.program.inference import inference_placement
from netsplit.program.instructions import Send
from netsplit.program.resize import with_tail
from netsplit.program.schedules import OneFOneB
from netsplit.runtime.local import LocalRuntime
from tests.builders import cpus
from tests.nets import CASES, DROPPED, SGD, TOLERANCE, Case
from tests.runtime.equivalence.running import (
    assert_same,
    batches_of,
    captured,
    captured_for,
    compiled,
    cut,
    local,
)
from tests.runtime.references import Trained, plain_loop

SCHEDULES: dict[str, Schedule] = {"gpipe": GPipe(4), "1f1b": OneFOneB(4)}


def plain(case: Case) -> Trained:
    return plain_loop(case.fresh(), case.loss, batches_of(case), 2, SGD)


def by_module(case: Case, schedule: Schedule, home: dict[str, str]) -> Program:
    """Every module's operators on the device that `home` names; others follow what they read last."""
    graph = captured_for(case, schedule)
    device_of: dict[str, str] = {}
    for node in graph:
        before = graph.predecessors[node.name]
        last = max(before, key=graph.position.__getitem__) if before else None
        device_of[node.name] = home.get(node.module) or (device_of[last] if last else "cpu:0")
    for group in graph.colocated:
        device_of.update(dict.fromkeys(group, device_of[group[0]]))
    return compiled(graph, device_of, 1 + max(int(name[-1]) for name in home.values()), schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_an_activation_may_feed_stages_beyond_the_next(schedule: str) -> None:
    """There: training fails, "Backward of skip connections not supported yet"."""
    case = CASES["fan"]
    home = {"inward": "cpu:0", "pieces.0": "cpu:1", "pieces.1": "cpu:2", "pieces.2": "cpu:3", "head": "cpu:3"}
    program = by_module(case, SCHEDULES[schedule], home)
    sent = [ins for ins in program.instructions["cpu:0"] if isinstance(ins, Send) and ins.microbatch == 0]
    assert {ins.peer for ins in sent} == {"cpu:1", "cpu:2", "cpu:3"}
    assert len({ins.source for ins in sent}) == 1
    assert_same(local(program, case, batches_of(case)), plain(case))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradients_of_tied_weights_are_added(schedule: str) -> None:
    """There: each stage trains a copy of its own on its part of the gradient, and nothing is said."""
    case = CASES["tied"]
    home = {"inward": "cpu:0", "middle": "cpu:1", "outward": "cpu:2", "head": "cpu:2"}
    program = by_module(case, SCHEDULES[schedule], home)
    holders = [name for name, held in program.held.items() if any(k.endswith("ward.weight") for k in held)]
    assert len(holders) == 1
    assert len({program.device_of[name] for name in program.graph.nodes}) > 1
    assert_same(local(program, case, batches_of(case)), plain(case))


def test_evaluation_mode_is_respected() -> None:
    """There: ``.eval()`` on a traced stage changes nothing, it goes on dropping and averaging batches."""
    order = OneFOneB(4)
    graph = captured_for(DROPPED, order)
    device_of = cut(graph, [0.3, 0.6])
    inputs, _ = DROPPED.another(9)
    evaluated = capture_inference(DROPPED.fresh(), tuple(t[:2] for t in inputs))
    inference = compiled(
        evaluated, inference_placement(graph, evaluated, device_of), 3, order, training=False
    )
    values = initial_values(DROPPED.fresh(), graph)
    runtime = LocalRuntime(compiled(graph, device_of, 3, order), cpus(3), values, SGD)
    runtime.train_batch(*DROPPED.batch())
    before = runtime.state()
    first, second = (list(runtime.predict(inference, inputs).values()) for _ in range(2))
    after = runtime.state()
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert all(torch.equal(before[k], after[k]) for k in before)
    model = DROPPED.fresh()
    model.load_state_dict(after)
    with torch.no_grad():
        wanted = model.eval()(*inputs)
    torch.testing.assert_close(torch.cat(first), wanted, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("samples", [11, 10, 7, 2])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_last_micro_batch_may_be_smaller(schedule: str, samples: int) -> None:
    """There: the process aborts in C++, as the receiver's buffer has the full size."""
    case, order = CASES["two_inputs"], SCHEDULES[schedule]
    graph = captured(case.name, 3)
    device_of = cut(graph, [0.4, 0.7])
    full, rest = divmod(samples, 3)
    program = compiled(graph, device_of, 3, order.with_microbatches(full + bool(rest)))
    program = with_tail(program, graph, captured(case.name, rest)) if rest else program
    batch = case.another(1, samples)
    trained = local(program, case, [batch, batch])
    assert_same(trained, plain_loop(case.fresh(), case.loss, [batch, batch], 3, SGD))


def test_running_statistics_are_a_micro_batch_loops() -> None:
    """There too: BatchNorm sees micro-batches. So that, not the whole batch, is what to compare with."""
    case = CASES["chain"]
    program = compiled(captured_for(case, GPipe(4)), cut(captured_for(case, GPipe(4)), [0.5]), 2, GPipe(4))
    trained = local(program, case, batches_of(case))
    assert_same(trained, plain(case))
    whole = plain_loop(case.fresh(), nn.CrossEntropyLoss(), batches_of(case), 8, SGD)
    assert not torch.allclose(trained.state["norm1.running_var"], whole.state["norm1.running_var"])
