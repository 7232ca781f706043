"""What a function that the controller calls is given in the process of a device."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from netsplit.cluster.cluster import Device
from netsplit.runtime.transport.neighbours import Neighbours
from netsplit.runtime.transport.process import ProcessTransport
from netsplit.runtime.workers.messages import HeartbeatFile

__all__ = ["Worker"]


@dataclass
class Worker:
    """What a called function finds: who it is, and what earlier calls left in `memory`."""

    rank: int
    device: Device
    devices: tuple[Device, ...]
    torch_device: torch.device
    timeout_s: float
    heartbeat_file: HeartbeatFile
    neighbours: Neighbours
    memory: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def transport(self) -> ProcessTransport:
        """Towards the other devices; one as long as the process lives, as groups are never given back."""
        devices = {device.name: torch.device(device.torch_device) for device in self.devices}
        return ProcessTransport(devices, self.device.name, self.timeout_s, self.neighbours)

    @property
    def rank_of(self) -> dict[str, int]:
        return {device.name: rank for rank, device in enumerate(self.devices)}
