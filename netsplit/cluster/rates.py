"""A device kind by a few rates: the peaks of its maker, and the shares of them that PyTorch reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

__all__ = ["Amount", "Efficiency", "Rates"]

_TENSOR_CORES = ("convolution", "pointwise convolution")
"""What torch lets TF32 tensor cores compute unless told otherwise; matrix products keep to float32."""


class Amount(Protocol):
    """What one pass of an operator does."""

    @property
    def flops(self) -> float: ...

    @property
    def nbytes(self) -> float: ...

    @property
    def weight_bytes(self) -> float: ...


@dataclass(frozen=True)
class Efficiency:
    """What a class of operators reaches of the peaks, and what a call of one costs."""

    compute: float  # share of peak FLOP/s
    memory: float  # share of peak bytes/s
    calls: float = 1.0  # launches of one pass
    weights: float | None = None  # share of peak bytes/s for a product's parameters; None: as `memory`


@dataclass(frozen=True)
class Rates:
    """One device kind."""

    name: str  # "TITAN RTX"
    flops: float  # peak FLOP/s in float32
    bandwidth: float  # peak memory bytes/s
    launch_s: float  # overhead of one call
    efficiency: Mapping[str, Efficiency] = field(default_factory=dict, repr=False)
    """Operator class, or class and pass ("convolution:weight"), -> shares; "" for all others."""
    convolution_flops: float = 0.0  # peak of convolutions, where TF32 tensor cores take them; 0: `flops`
    overlaps: bool = True  # arithmetic hides memory traffic, or the other way round

    def shares(self, kind: str, of: str = "forward") -> Efficiency:
        """Of a class in a pass: the most specific entry there is."""
        found = self.efficiency
        for key in (f"{kind}:{of}", kind, f":{of}", ""):
            if key in found:
                return found[key]
        return Efficiency(0.5, 0.5)

    def seconds(self, kind: str, of: str, done: Amount) -> float:
        """Of one pass of a node of class `kind`; `of` names the pass."""
        reached = self.shares(kind, of)
        tensor_cores = self.convolution_flops > 0 and kind in _TENSOR_CORES
        peak = self.convolution_flops if tensor_cores else self.flops
        compute_s = done.flops / (peak * reached.compute)
        weights = reached.memory if reached.weights is None else reached.weights
        memory_s = (done.nbytes / reached.memory + done.weight_bytes / weights) / self.bandwidth
        work_s = max(compute_s, memory_s) if self.overlaps else compute_s + memory_s
        return reached.calls * self.launch_s + work_s

    def at(self, speed: float, name: str) -> Self:
        """The same device `speed` times as fast in everything, under another name."""
        return replace(
            self,
            name=name,
            flops=self.flops * speed,
            bandwidth=self.bandwidth * speed,
            launch_s=self.launch_s / speed,
            convolution_flops=self.convolution_flops * speed,
        )
