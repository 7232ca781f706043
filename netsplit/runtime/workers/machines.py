"""What workers say of the machines that they are on."""

from __future__ import annotations

import platform
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

import netsplit
from netsplit.cluster.catalogue import GPU_MARGIN_BYTES
from netsplit.cluster.cluster import Device
from netsplit.cluster.local import (
    allowed_processors,
    processor_quota,
    shared_processors,
    usable_processors,
)
from netsplit.runtime.workers.pool import WorkerPool
from netsplit.runtime.workers.worker import Worker

__all__ = ["identity_of", "located", "mates_of", "with_room"]


def identity_of(pool: WorkerPool, rank: int) -> dict[str, Any]:
    """What a worker's seconds depend on beside what it computes."""
    return pool.call_one(rank, _identity)


def located(devices: Sequence[Device], pool: WorkerPool) -> tuple[Device, ...]:
    """The devices with the hosts that their workers name, and the processors that those of a host may use; a
    kind for each processor model where they differ.

    For workers that were started elsewhere: what the controller's machine is says nothing of theirs.
    """
    models = [said["processor"] for said in pool.call(_identity)]
    allowed: dict[str, list[tuple[frozenset[int], float]]] = {}
    for hello, own in zip(pool.hellos, pool.call(_processors), strict=True):
        allowed.setdefault(hello.host, []).append(own)
    on_cpu = [torch.device(device.torch_device).type == "cpu" for device in devices]
    several = len({model for model, is_cpu in zip(models, on_cpu, strict=True) if is_cpu}) > 1
    return tuple(
        replace(
            device,
            host=hello.host,
            processors=shared_processors(allowed[hello.host]),
            kind=f"{device.kind} {model}" if several and is_cpu else device.kind,
        )
        for device, hello, model, is_cpu in zip(devices, pool.hellos, models, on_cpu, strict=True)
    )


def with_room(devices: Sequence[Device], pool: WorkerPool) -> tuple[Device, ...]:
    """The devices; GPUs with no more capacity than their workers found free, less `GPU_MARGIN_BYTES`."""
    free = {name: nbytes - GPU_MARGIN_BYTES for name, nbytes in pool.free_bytes.items()}
    return tuple(
        replace(
            device,
            capacity_bytes=max(1, min(device.capacity_bytes, free.get(device.name, device.capacity_bytes))),
        )
        for device in devices
    )


def mates_of(devices: Sequence[Device], rank: int) -> list[int]:
    """Ranks of the CPU devices of one kind and host; a GPU shares nothing that is measured here."""
    own = devices[rank]
    if torch.device(own.torch_device).type != "cpu" or own.host is None:
        return [rank]
    return [q for q, other in enumerate(devices) if (other.kind, other.host) == (own.kind, own.host)]


def _identity(worker: Worker) -> dict[str, Any]:
    """What a worker's seconds depend on beside the graph."""
    return {
        "kind": worker.device.kind,
        "host": socket.gethostname(),
        "processor": _processor(),
        "processors": usable_processors(),
        "threads": torch.get_num_threads(),
        "neighbours": len(worker.neighbours.wires),
        "torch": torch.__version__,
        "netsplit": netsplit.__version__,
        "python": platform.python_version(),
    }


def _processors(worker: Worker) -> tuple[frozenset[int], float]:
    return allowed_processors(), processor_quota()


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return platform.processor()
