"""Devices of this machine with links that nobody probes."""

from __future__ import annotations

import logging
from itertools import permutations

from netsplit.cluster.cluster import Cluster, Device, Link
from netsplit.cluster.local import ClusterSpec
from netsplit.cluster.nvml import found_gpus
from netsplit.errors import NetSplitError

__all__ = ["BETWEEN_PROCESSES", "cluster_here"]

log = logging.getLogger(__name__)

BETWEEN_PROCESSES = Link(60e-6, 1 / 6e9)
"""The link of CPU workers of one host where none is stated: one copy from the other's memory, as `netsplit
probe` measures it."""


def cluster_here(spec: ClusterSpec) -> Cluster:
    """Devices of this machine with links that nobody probes."""
    return Cluster(spec.name, spec.devices, _links(spec))


def _links(spec: ClusterSpec) -> dict[tuple[str, str], Link]:
    """Stated links; else what the driver promises between GPUs, and `BETWEEN_PROCESSES` for all others."""
    pairs = permutations(spec.devices, 2)
    if spec.bandwidth is not None:
        given = Link(spec.latency_s or 0.0, 1.0 / spec.bandwidth)
        return {(p.name, q.name): given for p, q in pairs}
    promised = _promised(spec.devices)
    return {
        (p.name, q.name): promised.get((p.torch_device, q.torch_device), BETWEEN_PROCESSES) for p, q in pairs
    }


def _promised(devices: tuple[Device, ...]) -> dict[tuple[str, str], Link]:
    """Links between GPUs as the driver describes them, by torch's names of both."""
    if sum(device.torch_device.startswith("cuda") for device in devices) < 2:
        return {}
    try:
        links = found_gpus().links
    except NetSplitError as error:
        log.warning("The driver does not say how the GPUs are linked: %s", error)
        return {}
    ways = {(f"cuda:{p}", f"cuda:{q}"): link for (p, q), link in links.items()}
    return ways | {(q, p): link for (p, q), link in ways.items()}
