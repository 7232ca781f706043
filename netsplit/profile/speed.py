"""How fast a device is now, by a piece of work that is always the same.

Costs are measured once and used for long, on machines whose speed changes: with what else runs on them,
with the processor's clock, with other guests of the same host. The piece tells by how much.
"""

from __future__ import annotations

from statistics import median

import torch
from torch.nn import functional

from netsplit.profile.measure.clock import Clock, worker_conditions

__all__ = ["reference_seconds"]


def reference_seconds(torch_device: torch.device | str, repeats: int = 15, threads: int = 1) -> float:
    """Median seconds of a convolution, a matrix product, passes over memory and small operators.

    About 5 ms on a processor of today.
    """
    device = torch.device(torch_device)
    clock, laps = Clock(device, threads), []
    with worker_conditions(device, threads), torch.no_grad():
        images, kernel = torch.rand(8, 16, 32, 32, device=device), torch.rand(16, 16, 3, 3, device=device)
        square, small = torch.rand(256, 256, device=device), torch.rand(64, device=device)
        long = torch.rand(2**20, device=device)
        for _ in range(3 + repeats):
            start = clock.now()
            functional.conv2d(images, kernel, padding=1)
            square @ square
            long.mul_(1.0).add_(0.0)
            for _ in range(100):
                small = small.relu()
            laps.append((start, clock.now()))
    return median(clock.seconds(laps)[3:])
