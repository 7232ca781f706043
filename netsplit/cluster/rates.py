"""A device kind by a few rates: the peaks of its maker, and the fractions of them that PyTorch reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, Self

from netsplit.errors import ConfigError
from netsplit.files import parsed_json

__all__ = ["TF32_CLASSES", "Amount", "Efficiency", "Overheads", "Rates", "crowding", "read_rates"]

TF32_CLASSES = ("convolution", "pointwise convolution")
"""What torch lets TF32 tensor cores compute unless told otherwise; matrix products keep to float32."""


class Amount(Protocol):
    """What one pass of an operator does."""

    @property
    def flops(self) -> float: ...

    @property
    def nbytes(self) -> float: ...

    @property
    def weight_bytes(self) -> float: ...

    @property
    def idle_flops(self) -> float: ...


def crowding(step_bytes: float, crowded_bytes: float) -> float:
    """How much of the caches a step takes, 0 to 1; `crowded_bytes` take all, and 0 stands for no limit."""
    return min(step_bytes / crowded_bytes, 1.0) if crowded_bytes else 0.0


@dataclass(frozen=True)
class Efficiency:
    """What a class of operators reaches of the peaks, and what a call of one costs."""

    compute: float  # fraction of peak FLOP/s
    memory: float  # fraction of peak bytes/s
    calls: float = 1.0  # launches of one pass
    weights: float | None = None  # fraction of peak bytes/s for a product's parameters; None: as `memory`
    crowded: float = 0.0  # launches more of a pass where a step leaves nothing in the caches
    idle: float | None = None  # fraction of peak FLOP/s for those that are idle; None: they take no time


@dataclass(frozen=True)
class Overheads:
    """What a device does beside operators, as `profile.costs.DeviceCosts` has it."""

    instruction_s: float
    message_s: float
    contention: float = 1.0
    copy_s_per_byte: float = 0.0

    def at(self, speed: float) -> Overheads:
        """The overheads of a device that is `speed` times as fast."""
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
    """Class, class and pass ("convolution:weight"), or pass (":input") -> efficiency; "" for all others."""
    tensor_flops: float = 0.0  # peak of the classes that tensor cores take; 0: they take none
    tensor_classes: tuple[str, ...] = TF32_CLASSES
    overlaps: bool = True  # arithmetic hides memory traffic, or the other way round
    crowded_bytes: float = 0.0
    """Bytes of a step that leaves the next call nothing in the caches; 0: a call always costs the same."""
    overheads: Overheads | None = None
    """Beside operators; None: an instruction and a message take `launch_s`, and nothing disturbs."""
    reference_s: float = 0.0
    """`reference_seconds` of the device that the rates were fitted on; 0: not known."""
    host_bandwidth: float = 12e9
    """Bytes/s to and from pinned memory of the host, either way; of 16 lanes of PCIe 3.0 by default."""

    def under(self, autocast: str | None) -> Self:
        """The device as it runs a graph under `autocast`; rates that were fitted have seen its dtypes."""
        return self

    def efficiency_of(self, kind: str, of: str = "forward") -> Efficiency:
        """The most specific entry for an operator class in a pass."""
        entries = self.efficiency
        for key in (f"{kind}:{of}", kind, f":{of}", ""):
            if key in entries:
                return entries[key]
        return Efficiency(0.5, 0.5)

    def reached_flops(self, kind: str, of: str = "forward") -> float:
        """FLOP/s of a class in a pass."""
        tensor_cores = self.tensor_flops > 0 and kind in self.tensor_classes
        return (self.tensor_flops if tensor_cores else self.flops) * self.efficiency_of(kind, of).compute

    def seconds(self, kind: str, of: str, done: Amount, crowded: float = 0.0) -> float:
        """Seconds of a pass `of` of a node of class `kind`; `crowded` is its step's `crowding`."""
        reached = self.efficiency_of(kind, of)
        compute_s = done.flops / self.reached_flops(kind, of)
        if reached.idle is not None:
            compute_s += done.idle_flops / (self.flops * reached.idle)
        weights = reached.memory if reached.weights is None else reached.weights
        memory_s = (done.nbytes / reached.memory + done.weight_bytes / weights) / self.bandwidth
        work_s = max(compute_s, memory_s) if self.overlaps else compute_s + memory_s
        return (reached.calls + crowded * reached.crowded) * self.launch_s + work_s

    def at(self, speed: float, name: str) -> Self:
        """The same device `speed` times as fast, but for its link to the host, under another name."""
        return replace(
            self,
            name=name,
            flops=self.flops * speed,
            bandwidth=self.bandwidth * speed,
            launch_s=self.launch_s / speed,
            tensor_flops=self.tensor_flops * speed,
            overheads=None if self.overheads is None else self.overheads.at(speed),
            reference_s=self.reference_s / speed,
        )


def read_rates(path: str | Path, key: str) -> dict[str, Any]:
    """The arguments of `Rates` that `benchmarks.predictor --rates` wrote.

    Raises:
        ConfigError: naming `key`: no such file, or none of rates.
    """
    try:
        written = parsed_json(Path(path).read_text(encoding="utf-8"))
        efficiency = {str(kind): Efficiency(**each) for kind, each in written["efficiency"].items()}
        given = {**written, "efficiency": efficiency, "tensor_classes": tuple(written["tensor_classes"])}
        if (beside := written.get("overheads")) is not None:
            given["overheads"] = Overheads(**beside)
        rates = Rates(**given)
        positive = [rates.flops, rates.bandwidth, *(s.compute for s in efficiency.values())]
        if rates.overheads is not None:
            positive += [rates.overheads.instruction_s, rates.overheads.message_s]
        if not (isinstance(rates.name, str) and all(value > 0 for value in positive)):
            raise ValueError("a rate is not above 0")
    except OSError as error:
        raise ConfigError(f"{key} is '{path}', which cannot be read: {error.strerror}.") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{key} is '{path}', which holds no rates: write them with `python -m benchmarks.predictor "
            "--rates <file>`."
        ) from error
    return {each.name: getattr(rates, each.name) for each in fields(Rates)}
