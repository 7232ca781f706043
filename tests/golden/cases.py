"""Thirty cases to plan and to train: what is asked, and of what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import netsplit
from netsplit.api import SCHEDULES
from netsplit.cluster.described import DescribedDevice, LinkCost, described_cluster, uniform_cluster
from tests.nets import CASES, DRAWING, DROPPED, STAGES, Case

__all__ = ["GOLDEN", "GoldenCase"]

DEVICE = str(Path(__file__).with_name("device.json"))
"""Slow at arithmetic, so that it outweighs what operators, instructions and links cost by themselves."""

NAMED = ("gpipe", "1f1b", "zb_h1")
LONG = {"time_limit_s": 10.0, "microbatches": 2, "replicas": False}


@dataclass(frozen=True)
class GoldenCase:
    net: Case
    cluster: Any
    schedule: Any = "gpipe"
    partitioner: Any = "m_etf"
    seed: int = 0
    batch_size: int = 8
    clip_norm: float | None = None


def _even(count: int | Sequence[int], capacity: int | str = "1GB") -> Any:
    """A list is of levels: [2, 2] are two hosts of two."""
    bandwidth, latency = (1e9, 1e-6) if isinstance(count, int) else ([1e9, 1e8], [1e-6, 1e-5])
    return uniform_cluster(count, bandwidth, capacity, latency, name=f"even{count}", model=DEVICE)


def _unlike(*speeds: float, capacity: int | str = "1GB") -> Any:
    devices = [DescribedDevice(f"d{p}", speed, capacity, DEVICE) for p, speed in enumerate(speeds)]
    return described_cluster("unlike", devices, LinkCost(1e9, 1e-6))


def _auto(**given: Any) -> netsplit.AutoSchedule:
    """Searched without annealing, which a whole plan of so few seconds does not begin."""
    return netsplit.AutoSchedule(**{"time_limit_s": 1.9, **given})


class Summed(nn.Module):
    """A sum over the samples: micro-batches have to be added up, and a mean of theirs is another loss."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="sum")


class Contrasted(nn.Module):
    """Every sample beside all others of the batch."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        alike = F.normalize(outputs, dim=1)
        return F.cross_entropy(alike @ alike.T, targets % len(outputs))


def _with_loss(net: Case, loss: nn.Module) -> Case:
    return Case(net.name, net.build, net.inputs, net.targets, loss)


def _wide_net() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 384), nn.ReLU(), nn.Linear(384, 5))


_draw = torch.Generator().manual_seed(9)
WIDE = Case(
    "wide",
    _wide_net,
    (torch.randn(32, 12, generator=_draw, dtype=torch.float64),),
    torch.randint(0, 5, (32,), generator=_draw),
)
WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0], dtype=torch.float64))


def _of(name: str, microbatches: int = 4, **given: Any) -> Any:
    return SCHEDULES[name](microbatches=microbatches, **given)  # type: ignore[call-arg]


GOLDEN = {
    # under a schedule that is named
    "cells, single_batch, heft": GoldenCase(CASES["cells"], _even(3), "single_batch", "heft"),
    "chain, gpipe, balanced": GoldenCase(CASES["chain"], _even(2), "gpipe", "balanced"),
    "cells, gpipe, m_etf": GoldenCase(CASES["cells"], _even(3), "gpipe", "m_etf"),
    "cells, zb_h1, m_sct": GoldenCase(CASES["cells"], _even(3), "zb_h1", "m_sct"),
    "u_shape, 1f1b, layerwise": GoldenCase(CASES["u_shape"], _even(3), "1f1b", "layerwise"),
    "u_shape, eager_1f1b, balanced": GoldenCase(CASES["u_shape"], _even(2), "eager_1f1b", "balanced"),
    "tied, 1f1b, balanced": GoldenCase(CASES["tied"], _even(2), "1f1b", "balanced"),
    "attention, interleaved_1f1b, round_robin": GoldenCase(
        CASES["attention"], _even(2), "interleaved_1f1b", "round_robin"
    ),
    "attention, gpipe x 2, random": GoldenCase(CASES["attention"], _even(3), _of("gpipe", 2), "random", 3),
    "fan, gpipe, ddp": GoldenCase(CASES["fan"], _even(2), "gpipe", "ddp"),
    "fan, 1f1b, pipedream, clipped": GoldenCase(CASES["fan"], _even(4), "1f1b", "pipedream", clip_norm=0.05),
    "dropped, 1f1b, balanced": GoldenCase(DROPPED, _even(2), "1f1b", "balanced", 5),
    "drawing, zb_v, balanced": GoldenCase(DRAWING, _even(2), "zb_v", "balanced", 11),
    "shared_norm, gpipe, heft": GoldenCase(CASES["shared_norm"], _unlike(2, 1), "gpipe", "heft"),
    "assigned, gpipe x 2, m_topo": GoldenCase(CASES["assigned"], _even(2), _of("gpipe", 2), "m_topo"),
    "in_place, 1f1b, balanced, unlike devices": GoldenCase(
        CASES["in_place"], _unlike(1, 2, 4), "1f1b", "balanced"
    ),
    "two_inputs, zb_h1, recomputed": GoldenCase(
        CASES["two_inputs"], _even(2), _of("zb_h1", recompute=True), "balanced"
    ),
    "chain, gpipe, recomputed where it must be": GoldenCase(
        CASES["chain"], _even(2, 70_000), _of("gpipe", 8, recompute="auto"), "balanced"
    ),
    "stages, pipedream's own schedule": GoldenCase(STAGES, _even(3), "pipedream", "pipedream"),
    "wide, gpipe x 2, os_dpos": GoldenCase(WIDE, _even(2), _of("gpipe", 2), "os_dpos", batch_size=32),
    # decided together
    "chain, auto": GoldenCase(CASES["chain"], _even(2), _auto(), "auto"),
    "cells, auto, tight": GoldenCase(
        CASES["cells"], _even(3, 150_000), _auto(microbatches=4, schedules=NAMED), "auto"
    ),
    "two_inputs, auto, unlike devices": GoldenCase(
        CASES["two_inputs"], _unlike(1, 2, 3), _auto(microbatches=4, schedules=NAMED), "auto"
    ),
    "tied, auto, two hosts": GoldenCase(
        CASES["tied"], _even([2, 2]), _auto(schedules=["gpipe", "1f1b"]), "auto"
    ),
    "two_heads, auto of one method": GoldenCase(CASES["two_heads"], _even(3), _auto(), "m_etf"),
    "wide, auto, in parts": GoldenCase(
        WIDE,
        _even(2),
        _auto(splits=True, replicas=False, microbatches=1, time_limit_s=0.5, schedules=["single_batch"]),
        "auto",
        batch_size=32,
    ),
    "constants, auto, annealed": GoldenCase(
        CASES["constants"], _unlike(2, 1), _auto(**LONG, schedules=["gpipe", "1f1b"]), "auto", 1
    ),
    "fan, auto, a sum": GoldenCase(_with_loss(CASES["fan"], Summed()), _even(2), _auto(), "auto"),
    "tied, auto, class weights": GoldenCase(_with_loss(CASES["tied"], WEIGHTED), _even(2), _auto(), "auto"),
    "stages, auto, contrasts": GoldenCase(_with_loss(STAGES, Contrasted()), _even(2), _auto(), "auto"),
}
