"""Devices and the links between them: given by a config, or found and probed."""

from typing import TYPE_CHECKING

from netsplit.lazy import lazy_names

if TYPE_CHECKING:
    from netsplit.cluster.described import ClusterDescription, named_cluster
    from netsplit.cluster.local import ClusterSpec

__all__ = ["ClusterDescription", "ClusterSpec", "named_cluster"]

__getattr__, __dir__ = lazy_names(__name__)
