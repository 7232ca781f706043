"""Steps with one worker process on the device, by `netsplit.parallelize`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import netsplit
from benchmarks._subjects import subjects
from benchmarks.gpu.plain import SGD, TOLERANCE, batches_of, difference, net, plain, strict
from netsplit.cluster.local import ClusterSpec, LocalDevice, local_cluster
from netsplit.errors import NetSplitError
from netsplit.models import gpt
from netsplit.program.schedules import GPipe, SingleBatch
from netsplit.training.parallel import ParallelModel

__all__ = ["bad_target", "compiled", "costs", "offload", "precisions", "too_large"]

LOSS = nn.CrossEntropyLoss()
ACTIVATIONS = 20_000  # bytes at least that `net` keeps of one sample
SKIPPED = "a CPU worker may take all of the machine's memory"
ALONE = {"partitioner": "single", "optimizer": SGD, "progress": False}


def on(device: str, *more: str) -> ClusterSpec:
    """A worker on each of these."""
    return local_cluster("checked", [LocalDevice(f"d{i}", each) for i, each in enumerate((device, *more))])


def costs(device: str) -> dict[str, Any]:
    """A small GPT and ResNet-50: operators' seconds beside a plain step, predicted beside measured."""
    small = device == "cpu"
    width, layers = (64, 2) if small else (512, 6)
    resnet = next(each for each in subjects(quick=small) if each.name == "resnet50")
    words = torch.randint(0, 65, (4 if small else 16, 65))
    chosen: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, Tensor]]] = {
        "gpt": (
            partial(gpt, vocabulary=65, context=64, width=width, layers=layers, heads=4),
            (words[:, :-1], words[:, 1:]),
        ),
        resnet.name: (resnet.fresh, resnet.batch(1)),
    }  # fmt: skip
    return {"models": {name: _costs(device, *each) for name, each in chosen.items()}}


def _costs(device: str, build: Callable[[], nn.Module], batch: tuple[Tensor, Tensor]) -> dict[str, float]:
    plain_s = _plain_step_s(build(), batch, device)
    with netsplit.parallelize(
        build(), LOSS, batch, cluster=on(device), schedule=SingleBatch(), profile="off", **ALONE
    ) as parallel:
        problem, predicted = parallel.plan.problem, parallel.plan.simulated[1]
        kind = problem.cluster.devices[0].kind
        summed = sum(problem.costs.total_s(node, kind) for node in problem.graph.nodes)
        for _ in range(3):
            parallel.train_batch(*batch)
        began = time.perf_counter()
        for _ in range(5):
            parallel.train_batch(*batch)
        measured_s = (time.perf_counter() - began) / 5
        _, metered = parallel.measure_batch(*batch, bytes_too=True)
        peak, foreseen = metered.peak_bytes["d0"], predicted.peak_bytes["d0"]
    return {
        "plain_s": plain_s, "summed_to_plain": summed / plain_s, "predicted_s": predicted.iteration_s,
        "measured_s": measured_s, "predicted_peak_bytes": foreseen, "measured_peak_bytes": peak,
        "predicted_to_measured_peak": foreseen / max(peak, 1),
    }  # fmt: skip


def _plain_step_s(model: nn.Module, batch: tuple[Tensor, Tensor], device: str) -> float:
    """Forward and backward of the plain model, the least of some."""
    model.to(device)
    inputs, targets = (each.to(device) for each in batch)

    def step() -> float:
        _wait(device)
        began = time.perf_counter()
        LOSS(model(inputs), targets).backward()
        _wait(device)
        return time.perf_counter() - began

    seconds = [step() for _ in range(8)]
    return min(seconds[3:])


def precisions(device: str) -> dict[str, Any]:
    """bfloat16, float16 with loss scaling, and TF32, beside plain PyTorch in the same precision."""
    batches = batches_of(5, 64, dtype=torch.float32)
    apart = {}
    for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16), ("tf32", None)):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name == "tf32"
        wanted = plain(net(dtype=torch.float32), LOSS, batches, 4, device, autocast=dtype)
        options = {} if dtype is None else {"autocast": name, "profile": "off"}
        trained = _trained(device, net(dtype=torch.float32), batches, **options)
        apart[name] = difference(*trained, wanted)
    return {"largest_difference": apart, "tolerance": 2e-2}


def offload(device: str) -> dict[str, Any]:
    """All that can lie in the host's memory does: the same bits, and how long the copies take."""
    if device == "cpu":  # a CPU worker computes in its host's memory already
        return {"same_bits": True, "skipped": "nothing to offload from a CPU"}
    strict()
    batches = batches_of(6, 256, 512)
    seconds, trained = {}, {}
    for name in ("none", "both"):
        began = time.perf_counter()
        trained[name] = _trained(device, net(512), batches, offload=name)
        seconds[f"{name}_s"] = time.perf_counter() - began
    same = difference(*trained["both"], trained["none"]) == 0.0
    return {"same_bits": same, **seconds}


def compiled(device: str) -> dict[str, Any]:
    """Segments compiled by inductor."""
    strict()
    batches = batches_of(3, 64, dtype=torch.float32)
    wanted = plain(net(dtype=torch.float32), LOSS, batches, 4, device)
    trained = _trained(device, net(dtype=torch.float32), batches, compile_backend="inductor")
    return {"largest_difference": {"inductor": difference(*trained, wanted)}, "tolerance": 1e-3}


def too_large(device: str) -> dict[str, Any]:
    """A batch that does not fit: what is raised, and whether the next batch is right."""
    if device == "cpu":
        return {"raised": "BatchError", "next_difference": 0.0, "tolerance": 0.0, "skipped": SKIPPED}
    strict()
    batches = batches_of(3, 64)
    wanted = plain(net(), LOSS, batches, 1, device)
    samples = int(torch.cuda.mem_get_info()[1] // ACTIVATIONS)
    inputs, targets = torch.zeros(samples, 64, dtype=torch.float64), torch.zeros(samples, dtype=torch.int64)
    losses, raised, sentence = [], "", ""
    with netsplit.parallelize(
        net(), LOSS, batches[0], cluster=on(device), schedule=SingleBatch(), profile="predicted", **ALONE
    ) as parallel:
        losses.append(parallel.train_batch(*batches[0]))
        try:
            parallel.train_batch(inputs, targets)
        except NetSplitError as error:
            raised, sentence = type(error).__name__, str(error)[:400]
        losses += [parallel.train_batch(*batch) for batch in batches[1:]]
        state = parallel.state_dict()
    return {
        "raised": raised, "sentence": sentence, "tolerance": TOLERANCE,
        "next_difference": difference(losses, state, wanted),
    }  # fmt: skip


def bad_target(device: str) -> dict[str, Any]:
    """A label out of range, which ends a CUDA context: what is said."""
    inputs, targets = batches_of(1, 64)[0]
    raised, sentence = "", ""
    with netsplit.parallelize(
        net(),
        LOSS,
        (inputs, targets),
        cluster=on(device),
        schedule=SingleBatch(),
        profile="predicted",
        **ALONE,
    ) as parallel:
        try:
            parallel.train_batch(inputs, targets + 1000)
        except NetSplitError as error:
            raised, sentence = type(error).__name__, str(error)[:400]
    return {"raised": raised, "sentence": sentence}


def _trained(
    device: str, model: nn.Module, batches: list[tuple[Tensor, Tensor]], **options: Any
) -> tuple[list[float], dict[str, Tensor]]:
    given = {"profile": "predicted", **ALONE, **options}
    with netsplit.parallelize(
        model, LOSS, batches[0], cluster=on(device), schedule=GPipe(4), **given
    ) as parallel:
        return run(parallel, batches)


def run(
    parallel: ParallelModel, batches: list[tuple[Tensor, Tensor]]
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses of the batches, and what was trained."""
    losses = [parallel.train_batch(*batch) for batch in batches]
    return losses, parallel.state_dict()


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()
