"""What is trained with tensors in the host's memory is what is trained without, bit for bit."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from netsplit.cluster.cluster import Cluster, Device
from netsplit.graph import capture, initial_values
from netsplit.optim import optimizers
from netsplit.profile.costs import Offload
from netsplit.profile.measure.memory_meter import MemoryMeter
from netsplit.program import GPipe, Program, Schedule
from netsplit.program.schedules import ZBH1, AsyncOneFOneB, OneFOneB
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.share import OptimizerFactory, UpdateRule
from tests.builders import compile_placed, cpus
from tests.cover import covering
from tests.nets import CASES, SGD, Case
from tests.runtime.equivalence.running import (
    PATIENT,
    batches_of,
    captured_for,
    compiled,
    cut,
    local,
    on_workers,
    scattered,
)
from tests.runtime.references import Trained, assert_same_bits
from tests.workers import Pools

BOTH = Offload.of("both")
SCHEDULES: dict[str, Schedule] = {
    "gpipe": GPipe(4),
    "gpipe+recompute": GPipe(4, recompute=True),
    "gpipe+delayed": GPipe(4, delay_weights=True),
    "1f1b": OneFOneB(4),
    "zb_h1": ZBH1(4),
    "zb_h1+recompute": ZBH1(4, recompute=True),
    "pipedream": AsyncOneFOneB(4),
}
OPTIMIZERS: dict[str, OptimizerFactory] = {
    "sgd": partial(torch.optim.SGD, lr=0.05),
    "momentum": SGD,
    "adam": partial(torch.optim.Adam, lr=1e-3),
    "adamw": partial(torch.optim.AdamW, lr=1e-3, amsgrad=True),
    "adagrad": partial(torch.optim.Adagrad, lr=1e-2),
    "adafactor": partial(torch.optim.Adafactor, lr=1e-2),
}


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that most parameters have one of their own."""
    monkeypatch.setattr(optimizers, "BUCKET_BYTES", 1)


@covering(name=CASES, schedule=SCHEDULES)
@settings(PATIENT, max_examples=1)
@given(data=st.data())
def test_offload_trains_the_same_bits(
    name: str, schedule: str, small_buckets: None, data: st.DataObject
) -> None:
    case, order = CASES[name], SCHEDULES[schedule]
    graph = captured_for(case, order)
    program = compiled(graph, scattered(data, graph, 3), 3, order)
    batches = batches_of(case, 3)
    assert_same_bits(local(program, case, batches, offload=BOTH), local(program, case, batches))


@covering(optimizer=OPTIMIZERS, offload=[Offload(optimizer=True), BOTH])
def test_every_optimizer_steps_the_same_bits(optimizer: str, offload: Offload, small_buckets: None) -> None:
    case = CASES["chain"]
    graph = captured_for(case, GPipe(4))
    program = compiled(graph, cut(graph, [0.5]), 2, GPipe(4))
    rule = UpdateRule(clip_norm=0.1, ema_decay=0.9)
    plain, other = (
        trained_shares(program, case, OPTIMIZERS[optimizer], rule, each) for each in (None, offload)
    )
    for name, share in other.items():
        for key, tensor in share.tensors.items():
            assert torch.equal(tensor, plain[name].tensors[key]), key
        assert share.averages is not None
        for key, tensor in share.averages.values.items():
            assert torch.equal(tensor, plain[name].averages.values[key]), key
            assert tensor in share.host
        assert share.optimizer is not None
        for parameter, state in share.optimizer.state.items():
            moments = {k: t for k, t in state.items() if isinstance(t, torch.Tensor) and t.dim()}
            assert all(t in share.host for t in moments.values()), parameter.shape
            assert moments or optimizer in ("sgd",)


def trained_shares(
    program: Program, case: Case, optimizer: OptimizerFactory, rule: UpdateRule, offload: Offload | None
) -> dict[str, Any]:
    cluster = cpus(len(program.devices))
    values = initial_values(case.fresh(), program.graph)
    runtime = LocalRuntime(program, cluster, values, optimizer, rule, offload=offload)
    for batch in batches_of(case, 3):
        runtime.train_batch(*batch)
    return runtime.shares


def test_workers_train_the_same_bits(pools: Pools) -> None:
    case, order = CASES["chain"], SCHEDULES["1f1b"]
    graph = captured_for(case, order)
    program = compiled(graph, cut(graph, [0.5]), 2, order)
    batches = batches_of(case)
    with_host = on_workers(program, case, batches, pools(2), OPTIMIZERS["adam"], offload=BOTH)
    assert_same_bits(with_host, local(program, case, batches, OPTIMIZERS["adam"]))


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a CUDA device: pinned memory, its own stream"
)
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_on_a_gpu_it_trains_the_same_bits_in_less_of_its_memory(
    optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    monkeypatch.setattr(optimizers, "BUCKET_BYTES", 1)
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.GELU())))
    inputs, targets = torch.randn(4096, 512), torch.randint(0, 512, (4096,))
    graph = capture(model, nn.CrossEntropyLoss(), (inputs[:1024], targets[:1024]))
    device = Device("cuda:0", "gpu", 2**40, "cuda:0")
    where = dict.fromkeys(graph.nodes, device.name)
    cluster = Cluster("one", (device,), {})
    program = compile_placed(graph, where, graph.position, cluster, GPipe(4))
    trained, peaks = [], []
    for offload in (None, BOTH):
        values = initial_values(model, graph)
        runtime = LocalRuntime(program, cluster, values, OPTIMIZERS[optimizer], offload=offload)
        runtime.train_batch(inputs, targets)
        with MemoryMeter(torch.device("cuda:0")) as meter:
            losses = [runtime.train_batch(inputs, targets) for _ in range(2)]
        trained.append(Trained(losses, runtime.state()))
        peaks.append(meter.peak_bytes)
        share = runtime.shares["cuda:0"]
        if offload is not None:
            assert share.optimizer is not None
            states = [t for state in share.optimizer.state.values() for t in state.values() if t.dim()]
            assert states
            assert all(t.is_pinned() for t in states)
        del runtime, share
        gc.collect()
    assert_same_bits(trained[1], trained[0])
    assert peaks[1] < 0.7 * peaks[0]
