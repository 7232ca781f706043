"""Three kinds of parallelism beside one another, as Megatron-LM and torchtitan run them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal, get_args

from netsplit.errors import ConfigError
from netsplit.placement.placement import ShardName

__all__ = ["Parallelism", "RecomputeName"]

RecomputeName = Literal["none", "selective", "full"]
"""Activations that are computed again: none; all but those of matrix products and attention; all but the
inputs of blocks."""


@dataclass(frozen=True)
class Parallelism:
    """A uniform plan by hand: `data * tensor * pipeline` devices, the tensor's nearest to one another.

    Args:
        data: replicas of the model, each with its part of the batch.
        tensor: devices that compute each matrix product together (Shoeybi et al., Megatron-LM, 2019).
        pipeline: groups of layers, one after another.
        shard: which states of replicas are in slices (docs/sharding.md).
        sequence: norms and residual sums are on pieces of the sequence (Korthikanti et al., 2022).
        recompute: what is computed again before the backward.
        chunks: groups of layers of each group of devices, to which a micro-batch comes in turn.

    Raises:
        ConfigError: a degree is no whole number of at least 1; a name is unknown.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    shard: ShardName | Literal["none"] = "none"
    sequence: bool = False
    recompute: RecomputeName = "none"
    chunks: int = 1

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "pipeline", "chunks"):
            degree = getattr(self, name)
            if type(degree) is not int or degree < 1:
                raise ConfigError(f"Parallelism's {name} is {degree!r}: give a whole number of at least 1.")
        for name, known in (
            ("shard", ("none", *get_args(ShardName))),
            ("recompute", get_args(RecomputeName)),
        ):
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"Parallelism's {name} is {getattr(self, name)!r}: give {', '.join(known)}."
                )

    def __str__(self) -> str:
        """``data 8 x tensor 4 x pipeline 2, gradients in slices, sequence in pieces``."""
        degrees = " x ".join(f"{name} {getattr(self, name)}" for name in ("data", "tensor", "pipeline"))
        chunks = f"{self.chunks} stages a device" if self.chunks > 1 else ""
        shard = {"none": "", "optimizer": "optimiser states in slices", "gradients": "gradients in slices"}
        again = {"none": "", "selective": "selective recomputation", "full": "full recomputation"}
        sequence = "sequence in pieces" if self.sequence else ""
        slices = shard.get(self.shard, "parameters in slices")
        return ", ".join(filter(None, (degrees, chunks, slices, sequence, again[self.recompute])))

    @property
    def devices(self) -> int:
        """Devices that it takes."""
        return prod((self.data, self.tensor, self.pipeline))
