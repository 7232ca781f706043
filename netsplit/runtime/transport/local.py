"""All devices in this process."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from netsplit.runtime.transport.handle import Handle, moved

__all__ = ["GatheredRows", "LocalTransport", "Sum"]


class LocalTransport:
    """All devices in one process: a send moves to the receiving device, a receive finds it there.

    Between devices that are the same to torch the tensor itself is handed over; nobody writes into it.
    """

    def __init__(self, torch_device: dict[str, torch.device]) -> None:
        self.torch_device = torch_device
        self.parcels: dict[int, torch.Tensor] = {}
        self.terms: dict[int, list[torch.Tensor]] = {}

    def send(self, tensor: torch.Tensor, peer: str, tag: int, watched: bool) -> Handle:
        self.parcels[tag] = moved(tensor, self.torch_device[peer])
        return _Parcel(self, None)

    def receive(self, buffer: torch.Tensor, peer: str, tag: int, watched: bool = False) -> Handle:
        return _Parcel(self, tag)

    def proceed(self) -> None:
        """Nothing is left for later."""

    def forget(self) -> None:
        """What was sent in an iteration that is abandoned, and not taken."""
        self.parcels.clear()
        self.terms.clear()

    def reduce(self, tensor: torch.Tensor, devices: tuple[str, ...], tag: int) -> Handle:
        return Sum(self._terms(tensor, devices, tag), len(devices), tensor.device)

    def gather(self, tensor: torch.Tensor, devices: tuple[str, ...], tag: int) -> Handle:
        return GatheredRows(self._terms(tensor, devices, tag), len(devices), tensor.device)

    def scatter(self, tensor: torch.Tensor, devices: tuple[str, ...], tag: int) -> Handle:
        terms = self._terms(tensor, devices, tag)
        return Sum(terms, len(devices), tensor.device, row=len(terms) - 1)

    def _terms(self, tensor: torch.Tensor, devices: tuple[str, ...], tag: int) -> list[torch.Tensor]:
        """What has been given under a tag: a program's order has the devices one after another."""
        terms = self.terms.get(tag)
        if terms is None or len(terms) == len(devices):  # of an iteration before
            terms = self.terms[tag] = []
        terms.append(tensor)
        return terms


class _Parcel:
    def __init__(self, transport: LocalTransport, tag: int | None) -> None:
        self.transport = transport
        self.tag = tag

    def wait(self, timeout_s: float) -> torch.Tensor:
        if self.tag is None:
            return torch.empty(0)
        return self.transport.parcels.pop(self.tag)

    def done(self) -> bool:
        return self.tag is None or self.tag in self.transport.parcels


@dataclass
class Sum:
    terms: list[torch.Tensor]
    expected: int
    device: torch.device
    row: int | None = None  # of each term; None: all of it

    def wait(self, timeout_s: float) -> torch.Tensor:
        assert len(self.terms) == self.expected, "a device waits for a sum before all devices have reached it"
        terms = self.terms if self.row is None else [term[self.row] for term in self.terms]
        total = terms[0].to(self.device).clone()
        for term in terms[1:]:
            total += term.to(self.device)
        return total

    def done(self) -> bool:
        return len(self.terms) == self.expected


@dataclass
class GatheredRows:
    terms: list[torch.Tensor]
    expected: int
    device: torch.device

    def wait(self, timeout_s: float) -> torch.Tensor:
        assert len(self.terms) == self.expected, (
            "a device waits for an all-gather before all devices have reached it"
        )
        return torch.stack([term.to(self.device) for term in self.terms])

    def done(self) -> bool:
        return len(self.terms) == self.expected
