"""Accelerators by name: peaks from their makers' data sheets, and what PyTorch reaches of them.

A described device names one (`model: TITAN RTX`), and its seconds are predicted (`profile.predict`).

Efficiencies are given by class of operators, in three tables: for GPUs with convolutions in float32, with
convolutions in TF32, and for half precision. They come from published figures, above all images per second in
training (docs/benchmarks.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from netsplit.cluster.cluster import Device
from netsplit.errors import ConfigError
from netsplit.files import parsed_json

__all__ = [
    "CONTEXT_BYTES", "CPU_THREAD", "GPU_MARGIN_BYTES", "RATES", "TF32_CLASSES", "Efficiency", "Overheads",
    "Pass", "Rates", "accelerator", "crowding", "rates_by_kind", "read_rates",
]  # fmt: skip

GIB = 2**30
CONTEXT_BYTES = 2**30
"""GPU memory a process loses before its first tensor: the CUDA context, the kernels of cuDNN and cuBLAS, and
fragments."""

GPU_MARGIN_BYTES = 2**29
"""Reserved of the free memory beside a worker's context: workspaces of cuBLAS and cuDNN, NCCL's buffers,
fragments."""

CPU_THREAD = "cpu_thread"
"""One CPU thread: rates fitted to measured profiles, in a file of the package
(`python -m benchmarks.predictor --quick --rates netsplit/cluster/cpu_thread.json`)."""

LAUNCH_S = 6e-6
"""Between two kernels of a stream: 4 to 7 us while the CPU keeps ahead of the GPU."""

HOST_BANDWIDTH: Mapping[int, float] = {3: 12e9, 4: 24e9, 5: 48e9}
"""Generation of PCIe -> bytes/s between a device on 16 lanes and pinned memory: 76 % of the peak."""

TF32_CLASSES = ("convolution", "pointwise convolution")
"""Classes that torch computes in TF32 by default; matrix products stay in float32."""


@dataclass(frozen=True)
class Pass:
    flops: float = 0.0
    nbytes: float = 0.0  # of variables and their gradients
    weight_bytes: float = 0.0  # of a product's parameter and its gradient
    idle_flops: float = 0.0  # that a convolution of fewer than `PLACES` places a sample lacks to as many
    masked_flops: float = 0.0  # of `flops`, those of attention's scores that a causal mask hides
    starts: float = 0.0
    """FLOPs for each element that its products' inner dimensions had more: what filling the tiles costs."""

    def __add__(self, other: Pass) -> Pass:
        return Pass(
            self.flops + other.flops,
            self.nbytes + other.nbytes,
            self.weight_bytes + other.weight_bytes,
            self.idle_flops + other.idle_flops,
            self.masked_flops + other.masked_flops,
            self.starts + other.starts,
        )

    def __bool__(self) -> bool:
        return self.flops > 0 or self.nbytes > 0 or self.weight_bytes > 0


def crowding(step_bytes: float, crowded_bytes: float) -> float:
    """The part of the caches a step evicts, 0 to 1; `crowded_bytes` evict all, 0: no limit."""
    return min(step_bytes / crowded_bytes, 1.0) if crowded_bytes else 0.0


@dataclass(frozen=True)
class Efficiency:
    """Which part of the peaks a class of operators reaches, and the cost of a call."""

    compute: float  # fraction of peak FLOP/s
    memory: float  # fraction of peak bytes/s
    calls: float = 1.0  # launches of one pass
    weights: float | None = None  # fraction of peak bytes/s for parameters; None: as `memory`
    crowded: float = 0.0  # extra launches when a step evicts the caches
    idle: float | None = None  # fraction of peak FLOP/s for those that are idle; None: they take no time
    start: float | None = None
    """Elements of the inner dimension that starting a tile of a product takes as long as; a kernel that has
    one skips masked scores. None: FLOPs alone count, masked ones too."""


@dataclass(frozen=True)
class Overheads:
    """Costs beside operators, as in `profile.costs.DeviceCosts`."""

    instruction_s: float
    message_s: float
    contention: float = 1.0
    copy_s_per_byte: float = 0.0

    def at(self, speed: float) -> Overheads:
        """The overheads of a device `speed` times as fast."""
        seconds = (self.instruction_s / speed, self.message_s / speed)
        return Overheads(*seconds, self.contention, self.copy_s_per_byte / speed)


@dataclass(frozen=True)
class Rates:
    """One device kind."""

    name: str  # "TITAN RTX"
    flops: float  # peak FLOP/s in float32
    bandwidth: float  # peak memory bytes/s
    launch_s: float  # overhead of one call
    efficiency: Mapping[str, Efficiency] = field(default_factory=dict, repr=False)
    """Class, class and pass ("convolution:weight"), or pass (":input") -> efficiency; "": default."""
    tensor_flops: float = 0.0  # peak of tensor cores for float32 classes; 0: none
    tensor_classes: tuple[str, ...] = TF32_CLASSES
    overlaps: bool = True  # arithmetic and memory traffic overlap
    fused: bool = False  # chains of element-wise operators are one kernel each (`profile.fusion`)
    crowded_bytes: float = 0.0
    """Bytes of a step that evicts all caches; 0: a call always costs the same."""
    overheads: Overheads | None = None
    """None: an instruction and a message take `launch_s`."""
    reference_s: float = 0.0
    """`reference_seconds` of the device that the rates were fitted on; 0: not known."""
    host_bandwidth: float = 12e9
    """Bytes/s to and from pinned memory of the host, either way; of 16 lanes of PCIe 3.0 by default."""
    memory_bytes: int = 0  # 0: not known
    half_efficiency: Mapping[str, Efficiency] = field(default_factory=dict, repr=False)  # {}: `_HALF`
    half_flops: Mapping[str, float] = field(default_factory=dict, repr=False)
    """Autocast dtype -> peak of tensor cores, which compute what they are faster at; 0: as in float32."""

    @property
    def capacity_bytes(self) -> int:
        """Memory left for tensors."""
        return self.memory_bytes - CONTEXT_BYTES

    def under(self, dtype: str | None, casts: bool = True) -> Rates:
        """The device as it computes in `dtype`; `casts`: under autocast, from single precision.

        Raises:
            ConfigError: it does not compute in that dtype.
        """
        if dtype is None:
            return self
        peak = self.half_flops.get(dtype)
        if peak is None:
            raise ConfigError(
                f"autocast is {dtype}, which {self.name} does not support: give "
                f"{' or '.join([*self.half_flops, 'null'])}."
            )
        known = self.half_efficiency or _HALF
        classes = {
            kind
            for kind, each in known.items()
            if ":" not in kind and peak * each.compute >= self.reached_flops(kind)
        }
        half = {
            key: efficiency if casts else replace(efficiency, calls=1.0)
            for key, efficiency in known.items()
            if key.partition(":")[0] in classes
        }
        return replace(
            self,
            efficiency={**self.efficiency, **half},
            tensor_flops=peak,
            tensor_classes=tuple(sorted(classes)),
        )

    def efficiency_of(self, kind: str, of: str = "forward") -> Efficiency:
        entries = self.efficiency
        for key in (f"{kind}:{of}", kind, f":{of}", ""):
            if key in entries:
                return entries[key]
        return Efficiency(0.5, 0.5)

    def reached_flops(self, kind: str, of: str = "forward") -> float:
        tensor_cores = self.tensor_flops > 0 and kind in self.tensor_classes
        return (self.tensor_flops if tensor_cores else self.flops) * self.efficiency_of(kind, of).compute

    def seconds(self, kind: str, of: str, done: Pass, crowded: float = 0.0) -> float:
        """Seconds of a pass `of` of a node of class `kind`; `crowded` is its step's `crowding`."""
        reached = self.efficiency_of(kind, of)
        flops = done.flops
        if reached.start is not None:
            flops += reached.start * done.starts - done.masked_flops
        compute_s = flops / self.reached_flops(kind, of)
        if reached.idle is not None:
            compute_s += done.idle_flops / (self.flops * reached.idle)
        weights = reached.memory if reached.weights is None else reached.weights
        memory_s = (done.nbytes / reached.memory + done.weight_bytes / weights) / self.bandwidth
        work_s = max(compute_s, memory_s) if self.overlaps else compute_s + memory_s
        return (reached.calls + crowded * reached.crowded) * self.launch_s + work_s

    def at(self, speed: float, name: str) -> Rates:
        """A device `speed` times as fast, with the same link to its host, under another name."""
        return replace(
            self,
            name=name,
            flops=self.flops * speed,
            bandwidth=self.bandwidth * speed,
            launch_s=self.launch_s / speed,
            tensor_flops=self.tensor_flops * speed,
            overheads=None if self.overheads is None else self.overheads.at(speed),
            reference_s=self.reference_s / speed,
            half_flops={dtype: speed * peak for dtype, peak in self.half_flops.items()},
        )


def read_rates(path: str | Path, key: str) -> Rates:
    """Rates that `benchmarks.predictor --rates` wrote."""
    try:
        written = parsed_json(Path(path).read_text(encoding="utf-8"))
        efficiency = {str(kind): Efficiency(**each) for kind, each in written["efficiency"].items()}
        fields = {**written, "efficiency": efficiency, "tensor_classes": tuple(written["tensor_classes"])}
        if (beside := written.get("overheads")) is not None:
            fields["overheads"] = Overheads(**beside)
        rates = Rates(**fields)
        positive = [rates.flops, rates.bandwidth, *(s.compute for s in efficiency.values())]
        if rates.overheads is not None:
            positive += [rates.overheads.instruction_s, rates.overheads.message_s]
        if not (isinstance(rates.name, str) and all(value > 0 for value in positive)):
            raise ValueError("a rate is not above 0")
    except OSError as error:
        raise ConfigError(f"{key} is '{path}', which cannot be read: {error.strerror}.") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{key} is '{path}', which is not a file of rates: write one with `python -m "
            "benchmarks.predictor --rates <file>`."
        ) from error
    return rates


def accelerator(name: str, key: str = "model") -> Rates:
    """The device kind of that name, written as here or as its driver says it; capitals do not count.

    A name that ends in "compiled" is for the device under torch.compile (`Rates.fused`), one in ".json" for
    a file of rates (`read_rates`), as `CPU_THREAD` for that of the package: of devices of unknown memory.
    """
    if _plain(name) == _plain(CPU_THREAD):
        return read_rates(Path(__file__).with_name("cpu_thread.json"), key)
    if name.endswith(".json"):
        return read_rates(name, key)
    plain = _plain(name)
    known = _BY_PLAIN_NAME.get(plain.removesuffix("compiled"))
    if known is not None and plain.endswith("compiled"):
        return replace(known, name=f"{known.name} compiled", fused=True)
    if known is None:
        raise ConfigError(
            f"{key} is '{name}', which the catalogue does not have: give {', '.join(RATES)}, {CPU_THREAD}."
        )
    return known


def rates_by_kind(devices: Sequence[Device], autocast: str | None = None) -> dict[str, Rates]:
    """Kind of a device of this machine -> its rates; a GPU is known by its driver's name."""
    kinds: dict[str, Rates] = {}
    for device in devices:
        on_cpu = device.torch_device.startswith("cpu")
        known = accelerator(CPU_THREAD) if on_cpu else _BY_PLAIN_NAME.get(_plain(device.kind))
        if known is None:
            raise ConfigError(
                f"profile is predicted, but the catalogue has no rates for {device.name}, of kind "
                f"'{device.kind}': give profile=reuse, which measures."
            )
        if autocast is not None and autocast not in known.half_flops:
            raise ConfigError(
                f"profile is predicted, but there are no rates for {known.name} under autocast {autocast}: "
                "give profile=reuse, which measures, or autocast=null."
            )
        kinds[device.kind] = known
    return kinds


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

_PASCAL: Mapping[str, Efficiency] = {
    **_FP32,
    # Addresses are computed by the units that compute in float32; from Volta on they have units of their own.
    "pointwise convolution": Efficiency(0.65, 0.80),
    "pointwise convolution:weight": Efficiency(0.60, 0.80),
}

_TF32: Mapping[str, Efficiency] = {
    **_FP32,
    # Of the tensor cores' peak, which only large tiles reach. They take channels last: torch's own layout is
    # changed before and changed back after, which more than doubles what is moved.
    "convolution": Efficiency(0.40, 0.35),
    "convolution:weight": Efficiency(0.30, 0.35),
    "pointwise convolution": Efficiency(0.40, 0.35),
    "pointwise convolution:weight": Efficiency(0.30, 0.35),
}

_HALF: Mapping[str, Efficiency] = {
    # As in TF32, of another peak. A kernel more casts the weights.
    "convolution": Efficiency(0.40, 0.35, 2.0),
    "convolution:weight": Efficiency(0.30, 0.35, 2.0),
    "pointwise convolution": Efficiency(0.40, 0.35, 2.0),
    "pointwise convolution:weight": Efficiency(0.30, 0.35, 2.0),
    "transposed convolution": Efficiency(0.30, 0.35, 2.0),
    "matmul": Efficiency(0.55, 0.80, 2.0),
    "attention": Efficiency(0.30, 0.60),
}
"""Classes that tensor cores compute under autocast."""


SUSTAINED = 0.81
"""What kernels of tensor cores reach in a training step of what the best of them reach alone: devices are
hot, and shapes, caches and other streams are not as in a benchmark. Fitted to published runs."""


def _cores(products: float, attention: float, back: float, watts: float = 1.0) -> Mapping[str, Efficiency]:
    """`_HALF` with what was published of products and of FlashAttention-2: docs/published.md.

    Args:
        products: fraction of the peak that large products reach alone.
        attention, back: of attention's two passes.
        watts: the power limit over that of the device whose figures these are; arithmetic is slower by about
            its power of 0.8.
    """
    reached = SUSTAINED * watts**0.8
    return {
        **_HALF,
        "matmul": Efficiency(reached * products, 0.85, 2.0, start=124.0),
        "attention": Efficiency(reached * attention, 0.60, start=15.0),
        "attention:input": Efficiency(reached * back, 0.60, start=15.0),
        "softmax": Efficiency(0.30, 0.85),
    }


_AMPERE = _cores(0.91, 0.73, 0.63)
_HOPPER = _cores(0.85, 0.43, 0.35)
_HOPPER_500_W = _cores(0.85, 0.43, 0.35, 500 / 700)
_HOPPER_PCIE = _cores(1.12, 0.56, 0.46, 350 / 700)  # of a lower peak


def _accelerator(
    name: str,
    tflops: float,
    gigabytes_s: float,
    memory_gib: float,
    tf32: float = 0.0,
    half: float = 0.0,
    bfloat16: bool = True,
    efficiency: Mapping[str, Efficiency] = _FP32,
    pcie: int = 4,
    cores: Mapping[str, Efficiency] = _HALF,
) -> Rates:
    peak = 0.0
    if tf32 * _TF32["convolution"].compute > tflops * _FP32["convolution"].compute:
        efficiency, peak = _TF32, tf32  # otherwise cuDNN takes the faster kernel without them
    return Rates(
        name,
        tflops * 1e12,
        gigabytes_s * 1e9,
        LAUNCH_S,
        efficiency,
        peak * 1e12,
        memory_bytes=int(memory_gib * GIB),
        host_bandwidth=HOST_BANDWIDTH[pcie],
        half_efficiency=cores,
        half_flops=dict.fromkeys(["float16", "bfloat16"] if bfloat16 else ["float16"], half * 1e12),
    )


_pascal = partial(_accelerator, bfloat16=False, efficiency=_PASCAL, pcie=3)  # no tensor cores
_volta = partial(_accelerator, bfloat16=False, pcie=3)  # and Turing: tensor cores for float16 alone

RATES: dict[str, Rates] = {
    each.name: each
    for each in (
        # name, TFLOP/s in float32 at boost clock, GB/s, GiB; of dense tensor cores: TFLOP/s in TF32 where
        # they have it, and in half precision with sums in float32
        _pascal("GTX 1080 Ti", 11.3, 484, 11),
        _pascal("TITAN Xp", 12.1, 548, 12),
        _pascal("P40", 11.76, 346, 22.5),
        _pascal("P100-SXM2-16GB", 10.6, 732, 16),
        _volta("RTX 2080 Ti", 13.4, 616, 11, half=53.8),
        _volta("TITAN RTX", 16.3, 672, 24, half=130.5),
        _volta("T4", 8.1, 320, 15, half=65),
        _volta("V100-PCIE-16GB", 14.0, 900, 16, half=112),
        _volta("V100-SXM2-16GB", 15.7, 900, 16, half=125),
        _volta("V100-SXM2-32GB", 15.7, 900, 32, half=125),
        _accelerator("RTX 3090", 35.6, 936, 24, 35.6, 71),
        _accelerator("A10", 31.2, 600, 22.5, 62.5, 125),
        _accelerator("A100-SXM4-40GB", 19.5, 1555, 40, 156, 312, cores=_AMPERE),
        _accelerator("A100-SXM4-80GB", 19.5, 2039, 80, 156, 312, cores=_AMPERE),
        _accelerator("RTX 4090", 82.6, 1008, 24, 82.6, 165),
        _accelerator("L4", 30.3, 300, 22.5, 60, 121),
        _accelerator("L40S", 91.6, 864, 45, 183, 362),
        _accelerator("H100-PCIE-80GB", 51.2, 2000, 79.6, 378, 756, pcie=5, cores=_HOPPER_PCIE),
        _accelerator("H100-SXM", 66.9, 3350, 79.6, 494, 989, pcie=5, cores=_HOPPER),
        # as in torchtitan's benchmarks: limited to 500 W
        _accelerator("H100-SXM-96GB", 66.9, 2400, 95, 494, 989, pcie=5, cores=_HOPPER_500_W),
        _accelerator("H200-SXM", 66.9, 4800, 140, 494, 989, pcie=5, cores=_HOPPER),
    )
}

_DRIVER_NAMES = {"H100 80GB HBM3": "H100-SXM", "H100 PCIe": "H100-PCIE-80GB", "H200": "H200-SXM"}
"""Names by `nvidia-smi` that are not just the name above after the vendor's words."""

_BY_PLAIN_NAME = {_plain(name): each for name, each in RATES.items()} | {
    _plain(name): RATES[known] for name, known in _DRIVER_NAMES.items()
}
