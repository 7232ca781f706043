"""Accelerators by name: peaks from their makers' data sheets, and what PyTorch reaches of them.

A described device names one (`model: TITAN RTX`), and its seconds are predicted (`profile.predict`).

Shares of the peaks are of classes of operators, one table for GPUs whose convolutions are in float32 and one
for those whose tensor cores take them in TF32. They come from what others have published, above all images
per second of networks trained in float32: docs/clusters.md has the figures and how near these shares come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from netsplit.cluster.rates import Efficiency, Rates
from netsplit.errors import ConfigError

__all__ = ["CONTEXT_BYTES", "RATES", "Accelerator", "accelerator"]

GIB = 2**30
CONTEXT_BYTES = 2**30
"""What a process loses of a GPU's memory before its first tensor: the CUDA context with the kernels of
cuDNN and cuBLAS, and what the allocator cannot use for fragments."""

LAUNCH_S = 6e-6
"""Between two kernels of a stream: 4 to 7 us where the processor keeps ahead of the GPU."""


@dataclass(frozen=True)
class Accelerator(Rates):
    """A device kind that can be bought."""

    memory_bytes: int = 0

    @property
    def capacity_bytes(self) -> int:
        """What is left for tensors."""
        return self.memory_bytes - CONTEXT_BYTES


def accelerator(name: str, key: str = "model") -> Accelerator:
    """The accelerator of that name, written as here or as its driver says it; capitals do not count.

    Raises:
        ConfigError: naming `key`, if the catalogue has none of that name.
    """
    found = _BY_PLAIN_NAME.get(_plain(name))
    if found is None:
        raise ConfigError(f"{key} is '{name}', which the catalogue does not have: give {', '.join(RATES)}.")
    return found


def _plain(name: str) -> str:
    words = name.lower().replace("-", " ").replace("_", " ").split()
    return "".join(word for word in words if word not in ("nvidia", "tesla", "geforce"))


_FP32: Mapping[str, Efficiency] = {
    # Streaming kernels reach 80 to 90 % of the bandwidth; half the peak where nothing better is known.
    "": Efficiency(0.50, 0.85),
    # 3x3 and the like: Winograd saves multiplications, so much of the definition's FLOPs is reached.
    "convolution": Efficiency(0.95, 0.80),
    # The gradient of a weight sums over all places: fewer blocks to fill the device with.
    "convolution:weight": Efficiency(0.92, 0.80),
    # A matrix product of many rows.
    "pointwise convolution": Efficiency(0.80, 0.80),
    "pointwise convolution:weight": Efficiency(0.75, 0.80),
    "transposed convolution": Efficiency(0.70, 0.80),
    # Few FLOPs to a byte, and kernels of their own that reuse little.
    "depthwise convolution": Efficiency(0.15, 0.40),
    "depthwise convolution:weight": Efficiency(0.08, 0.25),
    "matmul": Efficiency(0.85, 0.80),
    # Without tensor cores, and in tiles which the backward computes again.
    "attention": Efficiency(0.40, 0.60),
    # Sums over a channel, which lies in as many pieces as there are samples, then a second pass.
    "normalisation": Efficiency(0.50, 0.80),
    # Windows come from the caches again and again, and 64-bit places of maxima with them.
    "pooling": Efficiency(0.30, 0.35),
    "average pooling": Efficiency(0.30, 0.35),
    "softmax": Efficiency(0.30, 0.60),
    "loss": Efficiency(0.30, 0.60),
    # Rows from anywhere.
    "embedding": Efficiency(0.50, 0.30),
    "resampling": Efficiency(0.30, 0.50),
    "reduction": Efficiency(0.50, 0.70),
    # Random numbers cost integer arithmetic.
    "random": Efficiency(0.50, 0.70),
    # Steps of a recurrence come one after the other.
    "recurrent": Efficiency(0.20, 0.30),
    # No kernel at all.
    "view": Efficiency(0.50, 0.85, 0.0),
}

_TF32: Mapping[str, Efficiency] = {
    **_FP32,
    # Of the tensor cores' peak. Layouts are changed before and after, and only large tiles fill the cores.
    "convolution": Efficiency(0.40, 0.70),
    "convolution:weight": Efficiency(0.30, 0.70),
    "pointwise convolution": Efficiency(0.40, 0.70),
    "pointwise convolution:weight": Efficiency(0.30, 0.70),
}


def _of(name: str, tflops: float, gigabytes_s: float, memory_gib: float, tf32: float = 0.0) -> Accelerator:
    shares, peak = _FP32, 0.0
    if tf32 * _TF32["convolution"].compute > tflops * _FP32["convolution"].compute:
        shares, peak = _TF32, tf32  # else the cores gain nothing, and cuDNN takes the faster kernel
    return Accelerator(
        name,
        tflops * 1e12,
        gigabytes_s * 1e9,
        LAUNCH_S,
        shares,
        peak * 1e12,
        memory_bytes=int(memory_gib * GIB),
    )


RATES: dict[str, Accelerator] = {
    each.name: each
    for each in (
        # name, TFLOP/s in float32 at boost clock, GB/s, GiB; dense TF32 TFLOP/s where there are such cores
        _of("GTX 1080 Ti", 11.3, 484, 11),
        _of("TITAN Xp", 12.1, 548, 12),
        _of("P100-SXM2-16GB", 10.6, 732, 16),
        _of("RTX 2080 Ti", 13.4, 616, 11),
        _of("TITAN RTX", 16.3, 672, 24),
        _of("T4", 8.1, 320, 15),
        _of("V100-PCIE-16GB", 14.0, 900, 16),
        _of("V100-SXM2-16GB", 15.7, 900, 16),
        _of("V100-SXM2-32GB", 15.7, 900, 32),
        _of("RTX 3090", 35.6, 936, 24, 35.6),
        _of("A10", 31.2, 600, 22.5, 62.5),
        _of("A100-SXM4-40GB", 19.5, 1555, 40, 156),
        _of("A100-SXM4-80GB", 19.5, 2039, 80, 156),
        _of("RTX 4090", 82.6, 1008, 24, 82.6),
        _of("L4", 30.3, 300, 22.5, 60),
        _of("L40S", 91.6, 864, 45, 183),
        _of("H100-PCIE-80GB", 51.2, 2000, 79.6, 378),
        _of("H100-SXM", 66.9, 3350, 79.6, 494),
        _of("H200-SXM", 66.9, 4800, 140, 494),
    )
}

_DRIVER_NAMES = {
    "H100 80GB HBM3": "H100-SXM",
    "H100 PCIe": "H100-PCIE-80GB",
    "H200": "H200-SXM",
}
"""What `nvidia-smi` says where it is not the name above with the maker's words before it."""

_BY_PLAIN_NAME = {_plain(name): each for name, each in RATES.items()} | {
    _plain(name): RATES[known] for name, known in _DRIVER_NAMES.items()
}
