"""The GPUs of this machine as the driver lists them: names, memory, and what joins them.

Nothing runs on them. CUDA_VISIBLE_DEVICES, which hides and reorders GPUs for torch, is followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from netsplit.cluster.cluster import Link
from netsplit.errors import ConfigError

__all__ = ["Gpu", "Gpus", "found_gpus", "visible_gpu"]

WAYS = {0: "INTERNAL", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""NVML's level of the nearest common ancestor of two GPUs -> its short name, as in `nvidia-smi topo -m`."""

PCIE_BYTES_S = {1: 0.20e9, 2: 0.40e9, 3: 0.79e9, 4: 1.58e9, 5: 3.15e9, 6: 6.05e9}
"""PCIe generation -> payload bytes per second and lane, about 4/5 of the raw rate, under one switch."""

EFFICIENCY = {"INTERNAL": 1.0, "PIX": 1.0, "PXB": 0.95, "PHB": 0.8, "NODE": 0.75, "SYS": 0.6}
"""Fraction of the PCIe rate under one switch: bridges and the link between sockets split packets."""

LATENCIES_S = {"INTERNAL": 10e-6, "PIX": 10e-6, "PXB": 12e-6, "PHB": 15e-6, "NODE": 15e-6, "SYS": 20e-6}
"""From the call to the first byte, mostly the launch of the copy."""

NVLINK_BYTES_S = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}
"""NVLink generation -> bytes per second, link and direction."""
NVLINK_EFFICIENCY, NVLINK_LATENCY_S = 0.85, 8e-6  # of the raw rate that a copy reaches


@dataclass(frozen=True)
class Gpu:
    """One GPU; `index` is torch's."""

    index: int
    name: str
    memory_bytes: int

    @property
    def device(self) -> str:
        return f"cuda:{self.index}"


@dataclass(frozen=True)
class Gpus:
    """Visible GPUs, and how each pair of indices (lower first) is connected: "PIX", "NODE", "NV12", ..."""

    gpus: tuple[Gpu, ...]
    ways: dict[tuple[int, int], str] = field(default_factory=dict)
    links: dict[tuple[int, int], Link] = field(default_factory=dict)
    """Links by specification, for plans; running workers measure theirs."""


def found_gpus() -> Gpus:
    """The visible GPUs according to the driver; raises ConfigError if there is none, and why."""
    import pynvml as nvml

    try:
        with _driver():
            handles = _handles()
            gpus = tuple(_gpu(index, handle) for index, handle in enumerate(handles))
            ways, links = {}, {}
            for p, one in enumerate(handles):
                for q, other in enumerate(handles[p + 1 :], p + 1):
                    ways[p, q], links[p, q] = _between(nvml, one, other)
    except nvml.NVMLError as error:
        raise ConfigError(f"the driver finds none ({error})") from error
    if not gpus:
        raise ConfigError("none is visible here")
    return Gpus(gpus, ways, links)


def visible_gpu(index: int, key: str = "torch_device") -> Gpu:
    import pynvml as nvml

    try:
        with _driver():
            return _gpu(index, _handles()[index])
    except (nvml.NVMLError, IndexError) as error:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        setting = "" if visible is None else f", CUDA_VISIBLE_DEVICES={visible}"
        raise ConfigError(
            f"{key} is cuda:{index}, but there is no such GPU here ({error}{setting}): give cpu or another "
            "index."
        ) from error


@contextmanager
def _driver() -> Iterator[None]:
    import pynvml as nvml

    nvml.nvmlInit()
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def _gpu(index: int, handle: Any) -> Gpu:
    import pynvml as nvml

    return Gpu(index, str(nvml.nvmlDeviceGetName(handle)), int(nvml.nvmlDeviceGetMemoryInfo(handle).total))


def _handles() -> list[Any]:
    """The visible GPUs in torch's order, up to the first missing one, as in torch."""
    import pynvml as nvml

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
    handles = []
    for word in filter(None, map(str.strip, visible.split(","))):
        try:
            by_index = nvml.nvmlDeviceGetHandleByIndex
            handles.append(by_index(int(word)) if word.isdigit() else nvml.nvmlDeviceGetHandleByUUID(word))
        except nvml.NVMLError:
            break
    return handles


def _between(nvml: Any, one: Any, other: Any) -> tuple[str, Link]:
    """The connection of two GPUs, and its link by specification."""
    lanes = _nvlinks(nvml, one, other)
    if lanes:
        return f"NV{len(lanes)}", Link(NVLINK_LATENCY_S, 1.0 / (NVLINK_EFFICIENCY * sum(lanes)))
    way = WAYS.get(int(nvml.nvmlDeviceGetTopologyCommonAncestor(one, other)), "SYS")
    rate = EFFICIENCY[way] * min(_pcie_bytes_s(nvml, one), _pcie_bytes_s(nvml, other))
    return way, Link(LATENCIES_S[way], 1.0 / rate)


def _nvlinks(nvml: Any, one: Any, other: Any) -> list[float]:
    """Bytes per second of each NVLink from one GPU to another, through a switch or not."""
    try:
        status = nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except nvml.NVMLError:
        return []
    if status != nvml.NVML_P2P_STATUS_OK:
        return []
    target = _bus(nvml.nvmlDeviceGetPciInfo(other))
    direct: list[float] = []
    switched: list[float] = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(one, link) != nvml.NVML_FEATURE_ENABLED:
                continue
            rate = NVLINK_BYTES_S.get(int(nvml.nvmlDeviceGetNvLinkVersion(one, link)), 25e9)
            end = _bus(nvml.nvmlDeviceGetNvLinkRemotePciInfo(one, link))
        except nvml.NVMLError:
            continue
        (direct if end == target else switched).append(rate)
    return direct or switched


def _bus(info: Any) -> str:
    name = info.busId
    return (name.decode() if isinstance(name, bytes) else str(name)).lower()


def _pcie_bytes_s(nvml: Any, handle: Any) -> float:
    """Best bytes per second of a GPU's slot; PCIe 3.0 x16 if the driver does not say."""
    try:
        generation = int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle))
        width = int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    except nvml.NVMLError:
        generation, width = 3, 16
    return PCIE_BYTES_S.get(generation, PCIE_BYTES_S[3]) * width
