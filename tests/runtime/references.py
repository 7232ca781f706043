"""What a split must equal: training loops from the papers, in plain PyTorch and one process.

    plain_loop         micro-batches, accumulation, clipping, autocast      on the whole model
    replicated_loop    data-parallel stages: micro-batch i on replica i % r  on a chain of stages
    pipedream_loop     weight stashing (PipeDream, SOSP 2019, section 3.3)   parameter by parameter
    double_loop        two weight versions (PipeDream-2BW, ICML 2021)        on the whole model

They share no code with `netsplit`. Each answers a loss per batch, and the final state of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.swa_utils import AveragedModel

__all__ = [
    "Batch",
    "Trained",
    "assert_same_bits",
    "double_loop",
    "paper_version",
    "pieces_of",
    "pipedream_loop",
    "plain_loop",
    "replicated_loop",
]

Batch = tuple[tuple[Tensor, ...], Tensor]  # inputs, targets
Optimizer = Callable[[Iterable[Tensor]], torch.optim.Optimizer]
Loss = Callable[..., Tensor]


@dataclass(frozen=True)
class Trained:
    losses: list[float]
    state: dict[str, Tensor]


def assert_same_bits(trained: Trained, wanted: Trained) -> None:
    """Bit for bit."""
    assert trained.losses == wanted.losses
    assert trained.state.keys() == wanted.state.keys()
    for key, tensor in trained.state.items():
        assert torch.equal(tensor, wanted.state[key]), key


def pieces_of(batch: Batch, size: int) -> list[tuple[float, Batch]]:
    """Micro-batches of `size` samples, the last of what is left; each with its share of the samples."""
    inputs, targets = batch
    cut = zip(*(t.split(size) for t in (*inputs, targets)), strict=True)
    return [(len(parts[-1]) / len(targets), (parts[:-1], parts[-1])) for parts in map(tuple, cut)]


def plain_loop(
    model: nn.Module,
    loss: Loss,
    batches: Sequence[Batch],
    size: int,
    optimizer: Optimizer,
    *,
    group: int = 1,
    clip_norm: float | None = None,
    autocast: torch.dtype | None = None,
    drawing: Callable[[int, int], AbstractContextManager[object]] = lambda n, i: nullcontext(),
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
    named: bool = False,
    averages: Callable[[nn.Module], AveragedModel] | None = None,
) -> Trained:
    """Micro-batches of `size`; a step after every `group` batches, on the mean over all their samples.

    Micro-batch i of the n-th batch is computed within `drawing(n, i)`.

    float16 autocast scales the loss with ``torch.amp.GradScaler``, whose scale lives as long as the loop.

    Args:
        scheduler: stepped after every step of the optimiser, or what would have been one.
        named: the optimiser is made of pairs (name, parameter).
        averages: updated after every step; the state is then that of the averaged model.
    """
    pairs = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    trainable = [p for _, p in pairs]
    updater = optimizer(pairs if named else trainable)  # type: ignore[arg-type]
    rate = None if scheduler is None else scheduler(updater)
    averaged = None if averages is None else averages(model)
    scaler = torch.amp.GradScaler("cpu", enabled=autocast is torch.float16)
    losses = []
    for start in range(0, len(batches), group):
        together = batches[start : start + group]
        samples = sum(len(targets) for _, targets in together)
        for n, batch in enumerate(together, start):
            parts = []
            for i, (fraction, (inputs, targets)) in enumerate(pieces_of(batch, size)):
                with _autocast(autocast), drawing(n, i):
                    value = loss(model(*inputs), targets)
                scaler.scale(value * (fraction * len(batch[1]) / samples)).backward()
                parts.append(fraction * value.item())
            losses.append(sum(parts))
        if clip_norm is not None:
            scaler.unscale_(updater)
            nn.utils.clip_grad_norm_(trainable, clip_norm)
        scaler.step(updater)
        scaler.update()
        if averaged is not None:
            averaged.update_parameters(model)
        if rate is not None:
            rate.step()
        updater.zero_grad()
    return Trained(losses, _state(model if averaged is None else averaged.module))


def _autocast(dtype: torch.dtype | None) -> AbstractContextManager[object]:
    return nullcontext() if dtype is None else torch.autocast("cpu", dtype)


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {key: tensor.detach().clone() for key, tensor in model.state_dict().items()}


def replicated_loop(
    chain: nn.Sequential,
    replicas: Sequence[int],
    loss: Loss,
    batches: Sequence[Batch],
    size: int,
    optimizer: Optimizer,
    *,
    clip_norm: float | None = None,
    turns: Mapping[int, Sequence[int]] | None = None,
) -> Trained:
    """Stage s has `replicas[s]` copies with gradients summed and parameters equal; one stage is plain DDP.

    A copy's buffers see its own micro-batches only; the state has those of the first copy. Copies take the
    micro-batches one after the other, or of r copies as ``turns[r]`` says again and again.
    """
    turns = turns or {}
    copies = [
        [stage, *(deepcopy(stage) for _ in range(r - 1))] for stage, r in zip(chain, replicas, strict=True)
    ]
    updater = optimizer(list(chain.parameters()))
    losses = []
    for batch in batches:
        parts = []
        for i, (fraction, (inputs, targets)) in enumerate(pieces_of(batch, size)):
            (x,) = inputs
            for each in copies:
                own = turns.get(len(each), range(len(each)))
                x = each[own[i % len(own)]](x)
            value = loss(x, targets)
            (value * fraction).backward()
            parts.append(fraction * value.item())
        losses.append(sum(parts))
        for first, *others in copies:
            for other in others:
                _move_gradients(other, first)
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(chain.parameters(), clip_norm)
        updater.step()
        updater.zero_grad()
        for first, *others in copies:
            for other in others:
                nn.utils.vector_to_parameters(
                    nn.utils.parameters_to_vector(first.parameters()).detach().clone(), other.parameters()
                )
    return Trained(losses, _state(chain))


def _move_gradients(source: nn.Module, target: nn.Module) -> None:
    for p, q in zip(source.parameters(), target.parameters(), strict=True):
        if p.grad is not None:
            q.grad = p.grad if q.grad is None else q.grad + p.grad
            p.grad = None


def paper_version(i: int, stage: int, stages: int) -> int:
    """Updates that stage's weights have seen when micro-batch i comes to it, in 1F1B on a straight pipeline.

    The paper's w(t+1) = w(t) - lr grad f(w_1(t-n+1), ..., w_n(t)): n - stage micro-batches are in flight
    (stages from 0), so the gradients of all but the n - stage - 1 before it are in.
    """
    return max(0, i - (stages - stage) + 1)


def pipedream_loop(
    model: nn.Module,
    loss: Loss,
    batches: Sequence[Batch],
    size: int,
    optimizer: Optimizer,
    version: Callable[[str, int], int],
    update_every: Callable[[str], int] = lambda name: 1,
) -> Trained:
    """Forward and backward of micro-batch i use a parameter after `version(name, i)` of its updates.

    A parameter is updated with its mean gradient over every `update_every(name)` micro-batches, on its
    newest value, by an optimiser of its own. Versions are counted from each batch's begin. Since they
    depend on earlier micro-batches only, taking these one after another computes what the pipeline does.
    """
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    updaters = {name: optimizer([p]) for name, p in trainable.items()}
    losses = []
    for batch in batches:
        stash = {name: [_leaf(p)] for name, p in trainable.items()}
        sums: dict[str, list[Tensor]] = {name: [] for name in trainable}
        pieces = pieces_of(batch, size)
        parts = []
        for i, (fraction, (inputs, targets)) in enumerate(pieces):
            weights = {name: versions[version(name, i)] for name, versions in stash.items()}
            value = loss(functional_call(model, weights, inputs), targets)
            parts.append(fraction * value.item())
            gradients = torch.autograd.grad(value, list(weights.values()), allow_unused=True)
            for (name, p), grad in zip(trainable.items(), gradients, strict=True):
                every = update_every(name)
                sums[name] += [] if grad is None else [grad]
                if i % every == every - 1 or i == len(pieces) - 1:
                    p.grad = sum(sums[name], torch.zeros_like(p)) / (i % every + 1) if sums[name] else None
                    updaters[name].step()
                    stash[name].append(_leaf(p))
                    sums[name] = []
        losses.append(sum(parts))
    return Trained(losses, _state(model))


def _leaf(p: Tensor) -> Tensor:
    return p.detach().clone().requires_grad_()


def double_loop(
    model: nn.Module, loss: Loss, batches: Sequence[Batch], size: int, optimizer: Optimizer, update_every: int
) -> Trained:
    """W(t+1) = W(t) - lr grad f(W(t-1)); f is the mean over the `update_every` micro-batches of group t."""

    def version(_: str, i: int) -> int:
        return max(i // update_every - 1, 0)

    return pipedream_loop(model, loss, batches, size, optimizer, version, lambda _: update_every)
