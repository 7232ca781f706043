"""A model that computes the left side of a rule, of inputs and weights that it draws."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.rewrite.algebra.rule import Rule, Term

__all__ = ["LeftSide", "Summed"]

WIDTH = 12


class Summed(nn.Module):
    """A loss to which every element counts otherwise."""

    def forward(self, outputs: tuple[Tensor, ...], target: Tensor) -> Tensor:
        terms = [(each.flatten() * torch.arange(1.0, each.numel() + 1).double()).sin() for each in outputs]
        return torch.stack([each.mean() for each in terms]).sum() + target.sum()


class LeftSide(nn.Module):
    """Every input is a batch of [rows, 12] times a parameter; weights get the size that is asked of them.

    Args:
        lead: dimensions before the rows.
    """

    def __init__(self, rule: Rule, lead: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.rule = rule
        square = "reassociated (matmul)" in rule.name
        shape = (2, 4, 5, 5) if "conv" in rule.name else (*lead, WIDTH if square else 6, WIDTH)
        self.batch = torch.randn(shape, dtype=torch.float64)
        self.index = torch.randint(0, 10, (6, 3))
        self.weights = nn.ParameterDict()
        self(self.batch, self.index)

    def forward(self, batch: Tensor, index: Tensor) -> tuple[Tensor, ...]:
        values: dict[Any, Tensor] = {"index": index}
        for i, term in enumerate(self.rule.left):
            made = self._computed(term, values, batch)
            values |= {(i, j): each for j, each in enumerate(made if isinstance(made, tuple) else (made,))}
        return tuple(values[left] for left, _ in self.rule.outputs)

    def _weight(self, values: dict[Any, Tensor], ref: Any, *shape: int) -> Tensor:
        if ref not in values:
            if ref not in self.weights:
                self.weights[ref] = nn.Parameter(torch.randn(shape, dtype=torch.float64) / 3)
            values[ref] = self.weights[ref]
        return values[ref]

    def _input(self, values: dict[Any, Tensor], ref: Any, batch: Tensor) -> Tensor:
        if ref not in values:
            if (
                isinstance(ref, str) and ref[0] in "wb"
            ):  # of no product yet: it is put together or taken apart
                width = 6 if batch.dim() == 4 else WIDTH
                kernel = (4, 3, 3) if batch.dim() == 4 else (WIDTH,)
                return self._weight(values, ref, width, *(kernel if ref[0] == "w" else ()))
            values[ref] = batch * self._weight({}, f"scale_{ref}", batch.shape[-1]).tanh()
        return values[ref]

    def _computed(self, term: Term, values: dict[Any, Tensor], batch: Tensor) -> Any:
        names = term.inputs
        if term.op in ("embedding", "bag"):
            table = self._weight(values, names[0], 10, WIDTH)
            mode = "mean" if term.value("mean") else "sum"
            return F.embedding(values["index"], table) if term.op == "embedding" else F.embedding_bag(
                values["index"], table, mode=mode
            )  # fmt: skip
        if term.op in ("linear", "matmul") and names[1] in values:
            batch = batch[..., : values[names[1]].shape[term.op == "linear"]]
        x = self._input(values, names[0], batch)
        if term.op in ("linear", "matmul"):
            y = self._weight(
                values, names[1], *((WIDTH, x.shape[-1]) if term.op == "linear" else (x.shape[-1], WIDTH))
            )
            bias = [self._weight(values, each, WIDTH) for each in names[2:]]
            if term.op == "linear":
                return F.linear(x, y, *bias)
            return torch.addmm(bias[0], x, y) if bias else x @ y
        if term.op == "conv":
            small = term.value("padding") == "q"
            w = self._weight(values, names[1], 6, 4, *((1, 1) if small else (3, 3)))
            biases = [self._weight(values, each, 6) for each in names[2:]]
            return F.conv2d(x, w, biases[0] if biases else None, padding=0 if small else 1)
        given = [x, *(self._input(values, each, batch) for each in names[1:])]
        dim: Any = term.value("dim") if term.value("dim") != "d" else -1
        dim = {0: -2, 1: -1}.get(dim, dim) if x.dim() == 3 else dim
        if term.op == "concat":
            return torch.cat(given, dim)
        if term.op == "split":
            count = 1 + max(
                ref[1]
                for ref in [
                    *(ref for each in self.rule.left for ref in each.inputs),
                    *(a for a, _ in self.rule.outputs),
                ]
                if not isinstance(ref, str) and self.rule.left[ref[0]] is term
            )
            return x.chunk(count, dim)
        if term.op == "transpose":
            return x.transpose(-2, -1)
        if term.op in ("sum", "mean"):
            return getattr(x, term.op)(1)
        if term.op in ("add", "mul"):
            return given[0] + given[1] if term.op == "add" else given[0] * given[1]
        return x * 3.0 if term.op == "scale" else x.sigmoid()
