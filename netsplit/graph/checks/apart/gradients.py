"""Gradients of micro-batches beside those of their batch: where losses are alike, these need not be."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from netsplit.graph.autocast import autocast_of
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.calls import Loss
from netsplit.graph.checks.apart.cut_apart import OTHERWISE, CutApart
from netsplit.graph.checks.apart.runs import (
    COARSE,
    FINE,
    PLAIN,
    allowed_apart,
    ends,
    without_draws,
)
from netsplit.graph.checks.copies import copies
from netsplit.graph.checks.plain import stance, tensors_kept, threads_for
from netsplit.graph.ir import Graph
from netsplit.graph.random_draws import seed_generators
from netsplit.graph.recording.step import TrainingStep
from netsplit.graph.surroundings.keep import kept

__all__ = ["gradients_apart", "hooked"]

_GRADIENT_BYTES = 2**26  # of parameters whose gradients are compared


def hooked(model: nn.Module) -> bool:
    """Whether a hook may change the gradient of a parameter."""
    return any(parameter._backward_hooks for parameter in model.parameters())


def gradients_apart(
    model: nn.Module, loss: Loss | None, whole: Batch, graph: Graph, size: int
) -> CutApart | None:
    """Where losses are equal: a term may be small, or 0, and have a gradient all the same."""
    at_once, cut = ends(whole, size)
    each = sum(v.nbytes for v in graph.variables.values()) / max(graph.batch_size, 1)
    seeds, allowed = iter(range(10_000)), _gradients_allowed(graph)

    def run(batch: Batch) -> dict[str, Tensor]:
        return _gradients_of(model, loss, graph, batch, next(seeds))

    with threads_for(int(at_once.samples * each)), kept(model, loss):
        try:
            total, parts = (
                run(at_once),
                [(part.samples / at_once.samples, run(part)) for part in cut.values()],
            )
            name = _apart_at(total, parts, allowed)
            if not name:
                return None
            first, other = next(iter(parts))[1], run(next(iter(cut.values())))
        except Exception:  # of the user's code, which need not be differentiable here
            return None
    if _apart_at(first, [(1.0, other)], allowed):  # what draws differs anyway
        return None
    return CutApart(
        "other",
        f"the gradient of '{name}' in {type(model).__name__} on {at_once.samples} samples at once is apart "
        f"from the mean over micro-batches of {size}, though their losses are "
        "alike: it is no mean over samples alone",
        OTHERWISE,
    )


def _apart_at(
    total: dict[str, Tensor],
    parts: Sequence[tuple[float, dict[str, Tensor]]],
    allowed: float,
) -> str:
    """The parameter whose gradient is furthest apart; "" where what is apart may be rounding.

    Each by the norms that its parts have, so that what cancels among them does not count; and by those of all
    parameters, as a gradient that cancels within a part is rounding alone.
    """
    sizes = {k: math.fsum(weight * float(own[k].norm()) for weight, own in parts) for k in total}
    least = 0.1 * allowed * math.hypot(*sizes.values())
    worst, where = 0.0, ""
    for k, gradient in total.items():
        mean = torch.stack([weight * own[k] for weight, own in parts]).sum(0)
        apart = float((gradient - mean).norm())
        if apart > max(allowed * sizes[k], least) and apart > worst:
            worst, where = apart, k
    return where


def _gradients_of(
    model: nn.Module, loss: Loss | None, graph: Graph, batch: Batch, seed: int
) -> dict[str, Tensor]:
    """Of the parameters with the fewest elements, with zeros where there is none."""
    step = without_draws(TrainingStep(model, loss, batch))
    named = sorted(
        ((k, p) for k, p in step.named_parameters() if p.requires_grad), key=lambda each: each[1].numel()
    )
    room, chosen = _GRADIENT_BYTES, dict[str, nn.Parameter]()
    for k, parameter in named:
        room -= parameter.nbytes
        if room >= 0:
            chosen[k.removeprefix("model.")] = parameter
    if not chosen:
        return {}
    seed_generators(seed)
    with torch.enable_grad(), tensors_kept(step), stance(graph), autocast_of(graph, "cpu"):
        value = step(*copies(batch.tensors))[0]
        gradients = torch.autograd.grad(value, list(chosen.values()), allow_unused=True)
    given = zip(chosen.items(), gradients, strict=True)
    dense = {k: torch.zeros_like(p) if g is None else g.to_dense() for (k, p), g in given}
    return {k: (torch.view_as_real(g) if g.is_complex() else g).detach().double() for k, g in dense.items()}


def _gradients_allowed(graph: Graph) -> float:
    """By how much of a gradient rounding may set it apart."""
    return {PLAIN: 1e-2, COARSE: 0.2, FINE: 1e-5}[allowed_apart(graph)]
