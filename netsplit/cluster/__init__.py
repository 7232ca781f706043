"""Devices and the links between them: given by a config, or found and probed.

The probe needs torch and is imported when first used, so that rooms which only read clusters stay light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from netsplit.cluster.cluster import Cluster, Device, Link
from netsplit.cluster.local import ClusterSpec, LocalDevice, local_cluster

if TYPE_CHECKING:
    from netsplit.cluster.probe import fit_link, probe_links, probe_pair

__all__ = [
    "Cluster",
    "ClusterSpec",
    "Device",
    "Link",
    "LocalDevice",
    "fit_link",
    "local_cluster",
    "probe_links",
    "probe_pair",
]

_HOME = {
    "fit_link": "probe",
    "probe_links": "probe",
    "probe_pair": "probe",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'netsplit.cluster' has no attribute '{name}'")
    return getattr(import_module(f"netsplit.cluster.{_HOME[name]}"), name)
