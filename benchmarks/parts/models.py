"""Models whose few layers are wide, and how torch's tensor parallelism is told to cut them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks._subjects import Subject
from netsplit.models.perceptrons import DLRM

__all__ = ["MODELS", "WideModel"]

HEAD = 32  # units of one head
ROWS = 50_000  # of a table


class _Attention(nn.Module):
    """Heads from three projections, as torch's example of tensor parallelism has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value, self.project = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        heads = (
            each(x).unflatten(2, (-1, HEAD)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.project(attended.transpose(1, 2).flatten(2))


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = _Attention(width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before(x))
        return x + self.narrow(F.gelu(self.widen(self.after(x))))


class _Transformer(nn.Module):
    def __init__(self, words: int, width: int, blocks: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(_Block(width) for _ in range(blocks)))
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.words(tokens)).mean(1))


def _mlp() -> nn.Module:
    """Two pairs of layers, the second of which has no more inputs than classes are many."""
    return nn.Sequential(
        nn.Linear(512, 4096), nn.GELU(), nn.Linear(4096, 512), nn.GELU(),
        nn.Linear(512, 4096), nn.GELU(), nn.Linear(4096, 10),
    )  # fmt: skip


class _Recommender(nn.Module):
    """DLRM's numbers are the first categories, so that a sample is one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.dlrm = DLRM([ROWS] * 4, 64, (4, 64, 64), (512, 256, 10))

    def forward(self, categories: Tensor) -> Tensor:
        return self.dlrm(categories[:, :, 0] / ROWS, categories)


@dataclass(frozen=True)
class WideModel:
    """A subject, the layers that torch cuts by columns and by rows, and capacities by number of workers."""

    subject: Subject
    torch_plan: Mapping[str, Literal["columns", "rows"]]
    capacity: Mapping[int, str] = field(default_factory=dict)


def _of_blocks(count: int) -> dict[str, Literal["columns", "rows"]]:
    plan: dict[str, Literal["columns", "rows"]] = {}
    for block in (f"blocks.{i}" for i in range(count)):
        plan |= dict.fromkeys((f"{block}.attention.{name}" for name in ("query", "key", "value")), "columns")
        plan |= {
            f"{block}.attention.project": "rows", f"{block}.widen": "columns", f"{block}.narrow": "rows",
        }  # fmt: skip
    return plan


BLOCKS = 3
MODELS = {
    "wide_mlp": WideModel(
        Subject("wide_mlp", _mlp, (512,), 128), {"0": "columns", "2": "rows", "4": "columns", "6": "rows"}
    ),
    "transformer": WideModel(
        Subject("transformer", partial(_Transformer, 1000, 256, BLOCKS), (64,), 16, words=1000),
        _of_blocks(BLOCKS),
    ),
    "dlrm": WideModel(
        Subject("dlrm", _Recommender, (4, 2), 256, words=ROWS),
        {"dlrm.top.0": "columns", "dlrm.top.2": "rows"},
        {2: "80MiB", 4: "40MiB"},
    ),
}
