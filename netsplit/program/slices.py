"""Which device keeps which rows of a parameter whose states several devices have in slices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from netsplit.graph.ir import Initializer, Region, dtype_bytes
from netsplit.placement.placement import ShardName

__all__ = ["Bundle", "Slice", "largest_slices", "ranked", "slices_of"]


def ranked(devices: Sequence[str], ranks: Sequence[str]) -> tuple[str, ...]:
    """Devices in rank order; behind them, as they are, those that these stand for (`Placement.alike`)."""
    here = [each for each in ranks if each in devices]
    return (*here, *(each for each in devices if each not in here))


@dataclass(frozen=True)
class Slice:
    """Rows of a parameter that a device keeps and steps on."""

    device: str
    start: int
    stop: int

    def region(self, own: Initializer) -> Region:
        """Where it lies in the model's own parameter, of which `own` may be a part."""
        whole = own.region or Region(own.name, own.shape, (0,) * len(own.shape))
        first = (whole.offsets[0] + self.start, *whole.offsets[1:]) if own.shape else ()
        return Region(whole.whole, whole.shape, first)

    def sizes(self, own: Initializer) -> tuple[int, ...]:
        return (self.stop - self.start, *own.shape[1:]) if own.shape else ()

    def named(self, own: Initializer) -> str:
        """As a part of the model's own parameter is called."""
        return self.region(own).named(self.sizes(own))

    def nbytes(self, own: Initializer) -> int:
        rows = own.shape[0] if own.shape else 1
        return own.nbytes * (self.stop - self.start) // rows


@dataclass(frozen=True)
class Bundle:
    """Parameters whose states the devices have in slices, and that are gathered and summed together."""

    devices: tuple[str, ...]
    names: tuple[str, ...]
    level: ShardName
    segments: tuple[int, ...]  # that read them; none where all go together
    trained: bool  # any of them
    nbytes: int
    whole: bool = False  # none is cut: for an optimiser that is not element-wise


def slices_of(
    initializers: Mapping[str, Initializer], bundles: Sequence[Bundle]
) -> dict[str, tuple[Slice, ...]]:
    """Of every parameter in a bundle its slices, as ``torch.chunk`` makes them; what has fewer rows than
    there are devices lies whole on the one that has least so far."""
    held: Counter[str] = Counter()
    slices: dict[str, tuple[Slice, ...]] = {}
    for bundle in bundles:
        for k in bundle.names:
            if k not in initializers:  # a batch of another kind does not read it
                continue
            own = initializers[k]
            rows = own.shape[0] if own.shape else 1
            if bundle.whole or rows < len(bundle.devices):
                home = min(bundle.devices, key=lambda device: held[device])
                slices[k] = (Slice(home, 0, rows),)
            else:
                size = ceil(rows / len(bundle.devices))
                starts = range(0, rows, size)
                slices[k] = tuple(
                    Slice(device, start, min(start + size, rows))
                    for device, start in zip(bundle.devices, starts, strict=False)
                )
            held.update({each.device: each.nbytes(own) for each in slices[k]})
    return slices


def largest_slices(
    initializers: Mapping[str, Initializer], bundle: Bundle, slices: Mapping[str, Sequence[Slice]]
) -> tuple[int, int]:
    """Bytes of the device that has most of a bundle: as they are, and of the gradients as they are summed, in
    single precision at least."""
    nbytes, grads = Counter[str](), Counter[str]()
    for k in bundle.names:
        own = initializers[k]
        for each in slices[k]:
            nbytes[each.device] += each.nbytes(own)
            if own.requires_grad:
                one = dtype_bytes(own.dtype)
                grads[each.device] += each.nbytes(own) * max(4, one) // one
    return max(nbytes.values()), max(grads.values(), default=0)
