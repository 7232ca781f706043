"""Storages that are alive on a device, and what fills it when its bytes peak."""

from __future__ import annotations

from dataclasses import dataclass

from netsplit.simulate.lifetimes.segment_memory import Key
from netsplit.simulate.lifetimes.versions import Versions
from netsplit.tables import nbytes

__all__ = ["AliveBytes", "MemoryProfile", "Storages"]


@dataclass(frozen=True)
class MemoryProfile:
    """What fills a device when its bytes peak."""

    device: str
    index: int  # of the instruction during which they peak; -1: before the first
    instruction: str
    parameter_bytes: int  # buffers too, and copies of them (see `simulate.memory`)
    moment_bytes: int  # the optimiser's
    gradient_bytes: int  # of parameters
    activation_bytes: int  # the batch, values, saved tensors, gradients of variables
    transfer_bytes: int  # received and not yet read, or being sent and not otherwise held; sums on their way
    version_bytes: int = 0  # older weights that micro-batches in flight began on
    host_bytes: int = 0  # at most at once in the host's memory: what is offloaded
    course: tuple[tuple[int, int], ...] = ()
    """Of every instruction: the most bytes alive within it, and those after it."""

    @property
    def peak_bytes(self) -> int:
        return sum(self._parts().values())

    def summary(self) -> str:
        """One line."""
        listed = ", ".join(f"{name} {nbytes(size)}" for name, size in self._parts().items())
        where = f"in the {self.instruction}" if self.index >= 0 else "at the start"
        beside = f", {nbytes(self.host_bytes)} on the host" if self.host_bytes else ""
        return f"{self.device}: at most {nbytes(self.peak_bytes)}, {where} ({listed}){beside}"

    def _parts(self) -> dict[str, int]:
        return {
            "parameters": self.parameter_bytes,
            "moments": self.moment_bytes,
            "gradients": self.gradient_bytes,
            "activations": self.activation_bytes,
            "transfers": self.transfer_bytes,
        } | ({"older weights": self.version_bytes} if self.version_bytes else {})


class Storages:
    """Storages alive, each counted once however many hold it; apart those that only transfers hold."""

    def __init__(self) -> None:
        self.size: dict[Key, int] = {}
        self.users: dict[Key, int] = {}
        self.transfers: dict[Key, int] = {}
        self.activation_bytes = 0
        self.transfer_bytes = 0

    def hold(self, key: Key, nbytes: int, transfer: bool = False) -> None:
        self.size[key] = nbytes
        self._change(key, 1, transfer)

    def release(self, key: Key, transfer: bool = False) -> None:
        if not self._change(key, -1, transfer):
            del self.size[key]
            self.users.pop(key, None)
            self.transfers.pop(key, None)

    def move(self, key: Key, to_transfer: bool) -> None:
        """From a user to a transfer, or back."""
        self.hold(key, self.size[key], to_transfer)
        self.release(key, not to_transfer)

    def _change(self, key: Key, by: int, transfer: bool) -> bool:
        """Whether anything holds it still."""
        nbytes, users, transfers = self.size[key], self.users.get(key, 0), self.transfers.get(key, 0)
        if users:
            self.activation_bytes -= nbytes
        elif transfers:
            self.transfer_bytes -= nbytes
        if transfer:
            transfers = self.transfers[key] = transfers + by
        else:
            users = self.users[key] = users + by
        if users:
            self.activation_bytes += nbytes
        elif transfers:
            self.transfer_bytes += nbytes
        return bool(users or transfers)


@dataclass(frozen=True)
class _Peak:
    index: int = -1
    gradients: int = 0
    activations: int = 0
    transfers: int = 0
    versions: int = 0
    moments: int = 0  # that are back for a step

    @property
    def total(self) -> int:
        return self.gradients + self.activations + self.transfers + self.versions + self.moments


class AliveBytes:
    """The bytes alive beside those that always are, and the most of them."""

    def __init__(self, storages: Storages, versions: Versions, feed_bytes: int) -> None:
        self.storages, self.versions, self.feed_bytes = storages, versions, feed_bytes
        self.gradient_bytes = 0  # of parameters
        self.at = -1  # the instruction
        self.peak = _Peak()
        self.most, self.now = 0, 0  # within this instruction, and last

    def see(self, activations: int = 0, gradients: int = 0, versions: int = 0, moments: int = 0) -> None:
        """Note the bytes alive, with so many more inside the computation."""
        gradients += self.gradient_bytes
        activations += self.feed_bytes + self.storages.activation_bytes
        transfers = self.storages.transfer_bytes
        versions += self.versions.nbytes
        self.now = gradients + activations + transfers + versions + moments
        self.most = max(self.most, self.now)
        if self.now > self.peak.total:
            self.peak = _Peak(self.at, gradients, activations, transfers, versions, moments)
