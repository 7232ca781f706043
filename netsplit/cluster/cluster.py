"""Devices, the links between them, and what a link costs.

A link is modelled as ``seconds = latency_s + bytes * seconds_per_byte`` per ordered pair of
devices (NetSplit thesis, section 4.2). Same device: zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from netsplit.errors import ConfigError

__all__ = ["Cluster", "Device", "Link"]


@dataclass(frozen=True)
class Link:
    """A directed link with its linear cost; `r_squared` says how well the line fits (None: given)."""

    latency_s: float
    seconds_per_byte: float
    r_squared: float | None = None

    def seconds(self, nbytes: int) -> float:
        return self.latency_s + nbytes * self.seconds_per_byte

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return 1.0 / self.seconds_per_byte if self.seconds_per_byte > 0 else float("inf")


@dataclass(frozen=True)
class Device:
    """One place that runs operators: a worker process with one CPU thread, or one GPU."""

    name: str  # "cpu:0", "cuda:1": unique in the cluster
    kind: str  # devices of one kind have the same speed: "cpu", "NVIDIA H100"
    capacity_bytes: int
    torch_device: str = "cpu"  # what the worker passes to torch.device
    port: Link | None = None
    """The link to host memory, where all transfers of the device pass the host; None: it has peer links."""
    host: str | None = None
    """The machine that it is part of: CPU devices of one share its memory. None: it shares nothing."""
    processors: float | None = None
    """Of its host, which the CPU devices there share, one for each that computes; None: enough for all."""

    @property
    def memory_host(self) -> str | None:
        """The host whose memory its computations use; None: the device has its own."""
        return self.host if self.torch_device.startswith("cpu") else None


@dataclass(frozen=True)
class Cluster:
    """Devices in rank order and a link for every ordered pair of different device names."""

    name: str
    devices: tuple[Device, ...]
    links: dict[tuple[str, str], Link]
    levels: tuple[tuple[int, float], ...] = ()
    """(members, bytes per second) of every level of a regular tree of machines, innermost first. The devices
    are their product, in depth-first order; empty where the links follow no such tree."""

    def __post_init__(self) -> None:
        names = [device.name for device in self.devices]
        if not names:
            raise ConfigError(f"cluster '{self.name}' has no device: list at least one.")
        if len(set(names)) != len(names):
            raise ConfigError(f"cluster '{self.name}' names a device twice: {names}.")

    def device(self, name: str) -> Device:
        for device in self.devices:
            if device.name == name:
                return device
        raise ConfigError(f"cluster '{self.name}' has no device '{name}': {[d.name for d in self.devices]}.")

    def check_links(self) -> None:
        """Refuse a cluster in which two devices have no link, or one without a sensible cost.

        Raises:
            ConfigError: the first such pair, by name.
        """
        for source in self.devices:
            for target in self.devices:
                link = self.links.get((source.name, target.name))
                if source is target:
                    continue
                if link is None:
                    raise ConfigError(
                        f"cluster '{self.name}' has no link from '{source.name}' to '{target.name}': every "
                        "ordered pair of devices needs one."
                    )
                if not all(
                    math.isfinite(cost) and cost >= 0 for cost in (link.latency_s, link.seconds_per_byte)
                ):
                    raise ConfigError(
                        f"cluster '{self.name}': the link from '{source.name}' to '{target.name}' has "
                        f"latency {link.latency_s} s and {link.seconds_per_byte} s a byte: give finite "
                        "numbers of 0 or more."
                    )

    @cached_property
    def link_costs(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """[D, D] each, from row to column: latency in seconds, seconds per byte; zero where there is no link.

        Of the links as they are when it is first asked for.
        """
        costs = np.zeros((2, len(self.devices), len(self.devices)))
        rank = {device.name: p for p, device in enumerate(self.devices)}
        for (source, target), link in self.links.items():
            if source in rank and target in rank:
                costs[:, rank[source], rank[target]] = link.latency_s, link.seconds_per_byte
        return costs[0], costs[1]

    def transfer_seconds(self, nbytes: int, source: str, target: str) -> float:
        """Seconds to move `nbytes` between two devices by name; zero on the same device."""
        return 0.0 if source == target else self.links[source, target].seconds(nbytes)

    def ring_seconds(self, nbytes: int, devices: Sequence[str]) -> float:
        """A ring all-reduce: 2 (r - 1) rounds in which every link carries one r-th of the bytes.

        Every device sends to the next, the last to the first; a round lasts as long as its slowest link.
        """
        ring = [self.links[pair] for pair in zip(devices, (*devices[1:], *devices[:1]), strict=True)]
        rounds_s = max(link.latency_s + nbytes / len(ring) * link.seconds_per_byte for link in ring)
        return 2 * (len(ring) - 1) * rounds_s

    def with_links(self, links: dict[tuple[str, str], Link]) -> Cluster:
        """The same devices over other links; where the slowest link of a level changes, so does its rate."""
        old, new = (self._rates_by_level(each) for each in (self.links, links))
        levels = tuple(
            (units, rate if before == after else after)
            for (units, rate), before, after in zip(self.levels, old, new, strict=True)
        )
        return replace(self, links=links, levels=levels)

    def _rates_by_level(self, links: dict[tuple[str, str], Link]) -> list[float]:
        """Bytes per second of the slowest link that joins two units of each level."""
        rank = {device.name: p for p, device in enumerate(self.devices)}
        rates = [math.inf] * len(self.levels)
        for (source, target), link in links.items():
            p, q = rank[source], rank[target]
            for level, (units, _) in enumerate(self.levels):
                p, q = p // units, q // units
                if p == q:
                    rates[level] = min(rates[level], link.bandwidth)
                    break
        return rates
