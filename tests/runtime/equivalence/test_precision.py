"""Autocast: on one device and on a cut chain bit for bit what ``torch.autocast`` and ``GradScaler`` give.

Elsewhere a gradient that several devices add to is added in another order, in bfloat16 or float16, whose
rounding is 2^-9 and 2^-12 of each term: a hundred terms may differ by some percent of what is trained.
"""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from netsplit.graph import Graph, capture, initial_values
from netsplit.program import GPipe, Program, Schedule
from netsplit.program.schedules import ZBH1, OneFOneB, SingleBatch
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.share import UpdateRule
from tests.builders import cpus
from tests.cover import covering, few
from tests.nets import CASES, STAGES, Case
from tests.runtime.equivalence.running import PATIENT, compiled, cut, scattered
from tests.runtime.references import Batch, Trained, plain_loop
from tests.workers import Pools

SCHEDULES: dict[str, Schedule] = {
    "single_batch": SingleBatch(),
    "gpipe+recompute": GPipe(4, recompute=True),
    "1f1b": OneFOneB(4),
    "zb_h1": ZBH1(4),
}
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
NEAR = 0.05
SLOW_SGD = partial(torch.optim.SGD, lr=0.01, momentum=0.9)
SINGLE = [name for name in CASES if name != "constants"]
"""Cases in single precision; one has constants in double."""


def fresh(case: Case) -> nn.Module:
    return case.fresh().float()


def batches_of(case: Case) -> list[Batch]:
    batches = [case.another(seed) for seed in range(3)]
    return [(tuple(t.float() if t.is_floating_point() else t for t in x), y) for x, y in batches]


@cache
def captured_as(name: str, schedule: str, autocast: str) -> Graph:
    case = CASES.get(name, STAGES)
    inputs, targets = batches_of(case)[0]
    size = SCHEDULES[schedule].microbatch_size(8)
    example = tuple(t[:size] for t in inputs), targets[:size]
    return capture(fresh(case), case.loss, example, autocast=autocast)


@cache
def plain(name: str, schedule: str, autocast: str, clip_norm: float | None = None) -> Trained:
    case = CASES.get(name, STAGES)
    size = SCHEDULES[schedule].microbatch_size(8)
    dtype = DTYPES[autocast]
    return plain_loop(
        fresh(case), case.loss, batches_of(case), size, SLOW_SGD, autocast=dtype, clip_norm=clip_norm
    )


def local(program: Program, case: Case, rule: UpdateRule | None = None) -> tuple[Trained, LocalRuntime]:
    values = initial_values(fresh(case), program.graph)
    runtime = LocalRuntime(program, cpus(len(program.devices)), values, SLOW_SGD, rule)
    losses = [runtime.train_batch(*batch) for batch in batches_of(case)]
    return Trained(losses, runtime.state()), runtime


def assert_bits(trained: Trained, wanted: Trained) -> None:
    assert trained.losses == wanted.losses
    for key in trained.state.keys() & wanted.state.keys():
        assert torch.equal(trained.state[key], wanted.state[key]), key


def assert_near(trained: Trained, wanted: Trained, start: dict[str, Tensor]) -> None:
    """As far apart as `NEAR` of the way that training went."""
    assert trained.losses == pytest.approx(wanted.losses, rel=NEAR)
    keys = [k for k in trained.state.keys() & start.keys() if start[k].is_floating_point()]
    apart = torch.stack([(trained.state[k] - wanted.state[k]).square().sum() for k in keys]).sum().sqrt()
    way = torch.stack([(start[k] - wanted.state[k]).square().sum() for k in keys]).sum().sqrt()
    assert way > 0
    assert apart <= NEAR * way


@covering(name=SINGLE, schedule=SCHEDULES)
def test_bfloat16_on_one_device_is_torchs_autocast_bit_for_bit(name: str, schedule: str) -> None:
    graph = captured_as(name, schedule, "bfloat16")
    program = compiled(graph, dict.fromkeys(graph.nodes, "cpu:0"), 1, SCHEDULES[schedule])
    assert_bits(local(program, CASES[name])[0], plain(name, schedule, "bfloat16"))


@covering(name=SINGLE, schedule=SCHEDULES)
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_bfloat16_on_any_placement(name: str, schedule: str, data: st.DataObject) -> None:
    graph, case = captured_as(name, schedule, "bfloat16"), CASES[name]
    program = compiled(graph, scattered(data, graph, 3), 3, SCHEDULES[schedule])
    assert_near(local(program, case)[0], plain(name, schedule, "bfloat16"), fresh(case).state_dict())


def on_workers(
    name: str, schedule: str, autocast: str, pools: Pools, rule: UpdateRule | None = None
) -> Trained:
    graph, case = captured_as(name, schedule, autocast), CASES.get(name, STAGES)
    shared = rule is not None and rule.shared_norm
    program = compiled(graph, cut(graph, [0.5]), 2, SCHEDULES[schedule], shared_norm=shared)
    runtime = DistributedRuntime(program, pools(2), initial_values(fresh(case), graph), SLOW_SGD, rule=rule)
    losses = [runtime.train_batch(*batch) for batch in batches_of(case)]
    return Trained(losses, runtime.state())


@covering(name=["chain", "stages", "fan", "tied"], schedule=SCHEDULES, clip_norm=[None, 0.1])
def test_float16_follows_torchs_grad_scaler(name: str, schedule: str, clip_norm: float | None) -> None:
    """Powers of two and float32 sums: the scale itself rounds nothing; clipping rounds elsewhere."""
    graph, case = captured_as(name, schedule, "float16"), CASES.get(name, STAGES)
    program = compiled(graph, dict.fromkeys(graph.nodes, "cpu:0"), 1, SCHEDULES[schedule], shared_norm=True)
    trained, _ = local(program, case, UpdateRule(clip_norm, loss_scaling=True))
    wanted = plain(name, schedule, "float16", clip_norm)
    if clip_norm is None:
        assert_bits(trained, wanted)
    else:
        assert_near(trained, wanted, fresh(case).state_dict())


@covering(name=SINGLE, schedule=SCHEDULES)
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_float16_on_any_placement(name: str, schedule: str, data: st.DataObject) -> None:
    graph, case = captured_as(name, schedule, "float16"), CASES[name]
    clip_norm = data.draw(st.sampled_from([None, 0.1]), label="clip_norm")
    placed = scattered(data, graph, 3)
    program = compiled(graph, placed, 3, SCHEDULES[schedule], shared_norm=True)
    trained, runtime = local(program, case, UpdateRule(clip_norm, loss_scaling=True))
    assert_near(trained, plain(name, schedule, "float16", clip_norm), fresh(case).state_dict())
    factors = {share.loss_factor for share in runtime.shares.values() if share.optimizer is not None}
    assert len(factors) == 1


@pytest.mark.parametrize("schedule", few(list(SCHEDULES), 1))
def test_float16_on_worker_processes(pools: Pools, schedule: str) -> None:
    trained = on_workers("chain", schedule, "float16", pools, UpdateRule(loss_scaling=True))
    assert_bits(trained, plain("chain", schedule, "float16"))


class _Explodes(nn.Module):
    """Its gradient overflows in float16 at first, and later at a batch of large inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Linear(4, 4)
        self.back = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.back(torch.relu(self.front(x))) * 30.0


def test_a_step_whose_gradient_overflows_is_left_out_on_all_devices() -> None:
    """The device that overflows is not the only one: the others must not step either."""
    torch.manual_seed(3)
    model = _Explodes()
    torch.manual_seed(3)
    twin = _Explodes()
    batches: list[Batch] = [
        ((torch.randn(8, 4) * (300.0 if n == 3 else 1.0),), torch.randint(0, 2, (8,))) for n in range(8)
    ]
    loss = nn.CrossEntropyLoss()
    example = ((batches[0][0][0][:2],), batches[0][1][:2])
    graph = capture(model, loss, example, autocast="float16")
    program = compiled(graph, cut(graph, [0.3, 0.7]), 3, OneFOneB(4), shared_norm=True)
    values = initial_values(model, graph)
    runtime = LocalRuntime(program, cpus(3), values, SLOW_SGD, UpdateRule(loss_scaling=True))
    stood, losses, before = 0, [], runtime.state()
    for batch in batches:
        losses.append(runtime.train_batch(*batch))
        after = runtime.state()
        still = [torch.equal(after[k], before[k]) for k in after]
        assert all(still) or not any(still)
        stood, before = stood + all(still), after
    plain = plain_loop(twin, loss, batches, 2, SLOW_SGD, autocast=torch.float16)
    assert_bits(Trained(losses, runtime.state()), plain)
    assert 0 < stood < len(batches)
    assert {share.loss_factor for share in runtime.shares.values() if share.optimizer is not None} == {
        65536.0 / 2**stood
    }
