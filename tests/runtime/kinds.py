"""Models whose batches and outputs are of many kinds, and what plain PyTorch makes of them.

What is said of a batch by marks is said by the first alone: later ones are like it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from netsplit.graph.batches.batch import per_sample, shared

Give = Callable[[int, int, int], tuple[Any, Any]]  # seed, samples, length -> inputs, targets
SIZE = 5


@dataclass
class Given:
    tokens: Tensor
    mask: Tensor
    table: Tensor
    power: int = 2


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None
    kept: Tensor | None = None


class Masked(nn.Module):
    """Tokens with a boolean mask; takes keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.layer = nn.Linear(6, 6)
        self.head = nn.Linear(6, SIZE)

    def forward(self, tokens: Tensor, mask: Tensor, scale: float = 1.0) -> dict[str, Tensor]:
        x = torch.tanh(self.layer(self.words(tokens))) * scale
        weights = mask.to(x.dtype)
        mean = (x * weights.unsqueeze(-1)).sum(1) / weights.sum(1, keepdim=True)
        return {"logits": self.head(mean), "lengths": mask.sum(1), "any": mask.any(1)}


class WithLoss(nn.Module):
    """Takes one dataclass that also holds what belongs to no sample; the loss is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Masked()

    def forward(self, given: Given, labels: Tensor | None = None) -> Output:
        y = self.inner(given.tokens, given.mask)
        logits = y["logits"] @ given.table.pow(given.power)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return Output(logits, loss, y["any"])


class Waves(nn.Module):
    """Complex values between its layers, choices by integers and booleans, and a complex parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(6, 6)
        self.filter = nn.Parameter(torch.randn(4, dtype=torch.complex128))
        self.after = nn.Linear(6, SIZE)

    def forward(self, x: Tensor, *, times: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        waves = torch.fft.rfft(self.before(x) * times) * self.filter
        strongest = waves.abs().argmax(-1)
        high = strongest > 1
        back = torch.fft.irfft(torch.conj(waves) * strongest.unsqueeze(-1), n=6)
        return self.after(torch.where(high.unsqueeze(-1), back, -back)), waves, high


def masked_loss(outputs: dict[str, Tensor], labels: Tensor) -> tuple[Tensor, dict[str, Any]]:
    loss = nn.functional.cross_entropy(outputs["logits"], labels)
    right = (outputs["logits"].argmax(1) == labels).double().mean()
    return loss + 0.1 * outputs["logits"].pow(2).mean(), {"right": right, "parts": [loss, 3.0]}


def waves_loss(outputs: tuple[Tensor, Tensor, Tensor], labels: Tensor) -> dict[str, Tensor]:
    logits, waves, high = outputs
    energy = waves.abs().pow(2).mean()
    return {
        "loss": nn.functional.cross_entropy(logits, labels) + 0.01 * energy,
        "energy": energy,
        "high": high.double().mean(),
    }


def _tokens(seed: int, n: int, length: int) -> tuple[torch.Generator, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 11, (n, length), generator=generator)
    mask = torch.rand((n, length), generator=generator) < 0.7
    mask[:, 0] = True
    return generator, tokens, mask, torch.randint(0, SIZE, (n,), generator=generator)


def give_masked(seed: int, n: int, length: int) -> tuple[Any, Any]:
    _, tokens, mask, labels = _tokens(seed, n, length)
    return {"mask": mask, "tokens": tokens, "scale": 1.5}, labels


def give_with_loss(seed: int, n: int, length: int) -> tuple[Any, Any]:
    """The table has as many rows as some batches have samples; the first batch says that it is shared."""
    generator, tokens, mask, labels = _tokens(seed, n, length)
    table: Any = torch.rand((SIZE, SIZE), generator=generator, dtype=torch.float64)
    return (Given(tokens, mask, table if seed else shared(table)),), {"labels": labels}


def give_waves(seed: int, n: int, length: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((length, n, 6), generator=generator, dtype=torch.float64)
    times = torch.rand((), generator=generator, dtype=torch.float64)
    labels = torch.randint(0, SIZE, (n, length), generator=generator)
    return {"x": x if seed else per_sample(x, 1), "times": times}, labels


def plain_masked(model: nn.Module, inputs: Any, targets: Any, rows: slice) -> tuple[Any, Any]:
    part = {"mask": inputs["mask"][rows], "tokens": inputs["tokens"][rows]}
    return model(**part, scale=inputs["scale"]), None if targets is None else targets[rows]


def plain_with_loss(model: nn.Module, inputs: Any, targets: Any, rows: slice) -> tuple[Any, Any]:
    (given,) = inputs
    table = given.table if isinstance(given.table, Tensor) else given.table.tensor
    part = Given(given.tokens[rows], given.mask[rows], table, given.power)
    labels = None if targets is None else targets["labels"][rows]
    return model(part, labels), labels


def plain_waves(model: nn.Module, inputs: Any, targets: Any, rows: slice) -> tuple[Any, Any]:
    x = inputs["x"] if isinstance(inputs["x"], Tensor) else inputs["x"].tensor
    return model(x[:, rows], times=inputs["times"]), None if targets is None else targets[rows]


class TimesFirst(nn.Module):
    """Its samples are in the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.waves = Waves()

    def forward(self, x: Tensor, *, times: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, waves, high = self.waves(x, times=times)
        return logits.permute(1, 2, 0), waves, high


@dataclass(frozen=True)
class Kind:
    build: Callable[[], nn.Module]
    loss: Callable[..., Any] | None
    give: Give
    plain: Callable[..., tuple[Any, Any]]
    """(model, inputs, targets, rows) -> the model's output on some of the samples, and their labels."""

    def fresh(self) -> nn.Module:
        torch.manual_seed(3)
        model = self.build()
        return model.double() if not isinstance(model, TimesFirst) else _doubled(model)


def _doubled(model: nn.Module) -> nn.Module:
    """`double` would make complex parameters real."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.double()
    return model


KINDS = {
    "keywords": Kind(Masked, masked_loss, give_masked, plain_masked),
    "dataclass": Kind(WithLoss, None, give_with_loss, plain_with_loss),
    "complex": Kind(TimesFirst, waves_loss, give_waves, plain_waves),
}


def plain_steps(
    kind: Kind, batches: Sequence[tuple[Any, Any]], size: int, lr: float = 0.1
) -> tuple[nn.Module, list[float], list[Any]]:
    """With micro-batches of `size`: the model, the losses, and of the last batch (share, result) of each."""
    model = kind.fresh().train()
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    losses, parts = [], []
    for inputs, targets in batches:
        samples = len(targets["labels"]) if isinstance(targets, dict) else len(targets)
        total, parts = 0.0, []
        for start in range(0, samples, size):
            stop = min(start + size, samples)
            output, labels = kind.plain(model, inputs, targets, slice(start, stop))
            value = output.loss if kind.loss is None else kind.loss(output, labels)
            loss = value if isinstance(value, Tensor) else None
            if loss is None:
                loss = value[0] if isinstance(value, tuple) else value["loss"]
            fraction = (stop - start) / samples
            (loss * fraction).backward()
            total += fraction * loss.item()
            parts.append((fraction, value))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return model, losses, parts
