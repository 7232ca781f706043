"""The plain PyTorch loop that every step compares with, and models for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["SGD", "TOLERANCE", "batches_of", "difference", "net", "plain", "strict"]

Batch = tuple[Tensor, Tensor]
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
TOLERANCE = 1e-9  # double precision: sums in another order differ by 1e-13 to 1e-11 after some steps
CLASSES = 16


def strict() -> None:
    """Deterministic operators, and no TF32."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False


class Block(nn.Module):
    """Two ways that meet again, with BatchNorm: no chain, and buffers."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Tanh())
        self.right = nn.Sequential(nn.Linear(width, width), nn.Dropout(dropout), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.left(x) * self.right(x)


def net(
    width: int = 64, blocks: int = 6, dropout: float = 0.0, dtype: torch.dtype = torch.float64
) -> nn.Sequential:
    """The same parameters at every call."""
    torch.manual_seed(7)
    layers = [Block(width, dropout) for _ in range(blocks)]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES)).to(dtype).train()


def batches_of(count: int, samples: int, width: int = 64, dtype: torch.dtype = torch.float64) -> list[Batch]:
    """Inputs (samples, width) and targets (samples,) on the CPU, the same at every call."""
    draw = torch.Generator().manual_seed(11)
    return [
        (
            torch.randn(samples, width, generator=draw, dtype=dtype),
            torch.randint(0, CLASSES, (samples,), generator=draw),
        )
        for _ in range(count)
    ]


def plain(
    model: nn.Module,
    loss: Callable[[Any, Tensor], Tensor],
    batches: Iterable[Batch],
    microbatches: int,
    device: str,
    clip_norm: float | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] = SGD,
    autocast: torch.dtype | None = None,
) -> tuple[list[float], dict[str, Tensor]]:
    """Losses, and the trained state on the CPU, of gradient accumulation over micro-batches."""
    model.to(device)
    steps, losses = optimizer(model.parameters()), []
    scaler = torch.amp.GradScaler(device.split(":")[0], enabled=autocast is torch.float16)
    for inputs, targets in batches:
        total = 0.0
        for x, t in zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True):
            with torch.autocast(device.split(":")[0], autocast, enabled=autocast is not None):
                value = loss(model(x.to(device)), t.to(device)) / microbatches
            scaler.scale(value).backward()
            total += value.item()
        if clip_norm is not None:
            scaler.unscale_(steps)
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        scaler.step(steps)
        scaler.update()
        steps.zero_grad()
        losses.append(total)
    return losses, {name: tensor.cpu() for name, tensor in model.state_dict().items()}


def difference(
    losses: Sequence[float], state: Mapping[str, Tensor], wanted: tuple[list[float], dict[str, Tensor]]
) -> float:
    """The largest of losses and tensors, beside what plain PyTorch has; nan counts as infinite."""
    apart = [abs(a - b) for a, b in zip(losses, wanted[0], strict=True)]
    for name, tensor in wanted[1].items():
        apart.append(float((state[name].double() - tensor.double()).abs().max()))
    largest = max(apart)
    return largest if largest == largest else float("inf")
