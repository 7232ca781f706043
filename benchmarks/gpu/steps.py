"""The steps of `python -m benchmarks.gpu`: what each does, expects, and how long it may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.gpu import machine, one_process, one_worker, two_workers

__all__ = ["STEPS", "Step"]

Found = dict[str, Any]  # what a step facts, by names that end in their unit


@dataclass(frozen=True)
class Step:
    """One check. `run` gets torch's name of the device; `holds` says whether what it found is as expected."""

    run: Callable[[str], Found]
    expected: str
    holds: Callable[[Found], bool]
    limit_s: float


def _all_equal(facts: Found) -> bool:
    return all(
        facts["largest_difference"][name] <= facts["tolerance"] for name in facts["largest_difference"]
    )


STEPS = {
    "versions": Step(machine.versions, "NVML and CUDA name the same GPU", lambda f: bool(f["same_gpu"]), 60),
    "schedules": Step(
        one_process.schedules, "every schedule trains what plain PyTorch trains", _all_equal, 120
    ),
    "tests": Step(
        one_process.tests, "the tests that skip without CUDA pass", lambda f: f["failed"] == 0, 120
    ),
    "race": Step(one_process.race, "200 iterations of GPU and CPU equal plain PyTorch", _all_equal, 90),
    "costs": Step(
        one_worker.costs,
        "operators' seconds add up to a plain step, within 25 %",
        lambda f: all(0.75 <= each["summed_to_plain"] <= 1.25 for each in f["models"].values()),
        150,
    ),
    "precision": Step(
        one_worker.precisions, "bfloat16, float16 and TF32 train as plain PyTorch", _all_equal, 120
    ),
    "offload": Step(
        one_worker.offload, "the same bits with everything offloaded", lambda f: bool(f["same_bits"]), 90
    ),
    "compiled": Step(one_worker.compiled, "inductor's segments train the same within 1e-3", _all_equal, 180),
    "overhead": Step(
        one_process.overhead,
        "an instruction takes less than 150 µs of the host",
        lambda f: f["us_per_instruction"] < 150,
        90,
    ),
    "too_large": Step(
        one_worker.too_large,
        "BatchError, and the next batch as in plain PyTorch",
        lambda f: f["raised"] == "BatchError" and f["next_difference"] <= f["tolerance"],
        120,
    ),
    "bad_target": Step(
        one_worker.bad_target,
        "a NetSplitError that names the operator",
        lambda f: f["raised"] in ("BatchError", "WorkerError"),
        90,
    ),
    "gpu_cpu": Step(
        two_workers.gpu_and_cpu, "a GPU and a CPU worker train what plain PyTorch trains", _all_equal, 120
    ),
    "nccl": Step(
        two_workers.nccl, "two workers joined by NCCL train what plain PyTorch trains", _all_equal, 180
    ),
    "stopped_peer": Step(
        two_workers.stopped_peer,
        "a WorkerError that names the stopped worker",
        lambda f: f["raised"] == "WorkerError" and f["after_s"] < 60,
        120,
    ),
    "same_gpu": Step(
        two_workers.same_gpu,
        "two devices on one GPU give a clear error",
        lambda f: f["raised"] in ("ConfigError", "WorkerError") or f["device"] == "cpu",
        90,
    ),
}
