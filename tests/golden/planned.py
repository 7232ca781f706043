"""A case planned as its user would plan it, and trained for three steps by the program that came of it.

All that the golden cases import of the package beside its public names is here.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

import netsplit
from netsplit.graph import initial_values
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.share import UpdateRule
from tests.golden.cases import GoldenCase
from tests.nets import SGD

__all__ = ["Made", "record_of"]

STEPS = 3


class Made:
    """What came of a case."""

    def __init__(self, case: GoldenCase) -> None:
        batch = case.net.batch(case.batch_size)
        with _still_clock():
            whole = netsplit.plan(
                case.net.fresh(), case.net.loss, batch, case.cluster, schedule=case.schedule,
                partitioner=case.partitioner, optimizer=SGD, clip_norm=case.clip_norm, seed=case.seed,
                progress=False,
            )  # fmt: skip
        self.schedule = f"{whole.schedule.name} x {whole.schedule.microbatches}"
        self.notes = whole.choice.remarks
        self.iteration_s, self.peak_bytes = whole.iteration_s, whole.peak_bytes
        placement = whole.placement
        self.placement = {
            "device_of": dict(placement.device_of),
            "replicas": {first: list(each) for first, each in placement.replicas.items()},
            "recomputed": sorted(placement.recomputed),
            "rewrites": json.loads(json.dumps([each.to_dict() for each in placement.rewrites])),
        }
        program = whole.simulated[0]
        self.program = program.show()
        model = case.net.fresh()
        values = initial_values(model, whole.problem.graph, case.net.loss)
        rule = UpdateRule(case.clip_norm)
        runtime = LocalRuntime(program, whole.problem.cluster, values, SGD, rule, seed=case.seed)
        self.losses = [runtime.train_batch(*batch) for _ in range(STEPS)]
        self.state = runtime.state()


def record_of(made: Made) -> dict[str, Any]:
    """As it is recorded: a text by its lines and sha256, tensors by a number each and the sha256 of all."""
    return {
        "schedule": made.schedule,
        "placement": made.placement,
        "program": {"lines": len(made.program.splitlines()), "sha256": _sha256(made.program.encode())},
        "iteration_s": made.iteration_s,
        "peak_bytes": made.peak_bytes,
        "losses": made.losses,
        "state": {name: _projected(tensor) for name, tensor in made.state.items()},
        "bits": _sha256(*(part for name in sorted(made.state) for part in _bytes(name, made.state[name]))),
    }


def _sha256(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _bytes(name: str, tensor: Tensor) -> tuple[bytes, bytes]:
    return f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode(), tensor.contiguous().numpy().tobytes()


def _projected(tensor: Tensor) -> float:
    """One number that every element changes, each by a weight of its own between 1 and 2."""
    flat = tensor.double().flatten()
    weights = 1 + torch.arange(flat.numel(), dtype=torch.float64).mul(0.6180339887498949).frac()
    return float(flat @ weights)


@contextmanager
def _still_clock() -> Iterator[None]:
    """Searches count their moves: nothing ends because of the time that it takes."""
    clock, timer = time.perf_counter, threading.Timer
    now = clock()
    time.perf_counter = lambda: now
    threading.Timer = _NeverTimer  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        time.perf_counter, threading.Timer = clock, timer  # type: ignore[misc]


class _NeverTimer(threading.Timer):
    """Waits to be cancelled."""

    def run(self) -> None:
        self.finished.wait()
