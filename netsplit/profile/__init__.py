"""What a graph costs: seconds and bytes of its nodes, and of the optimiser.

What measures needs torch and is imported when first used, so that partitioners, which only read costs,
stay light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.profile.memory import memory_of, node_weight_bytes, static_bytes

if TYPE_CHECKING:
    from netsplit.profile.measure.compute import Profiler, profile_compute
    from netsplit.profile.measure.optimizer import optimizer_alpha, step_seconds_per_byte
    from netsplit.profile.speed import reference_seconds

__all__ = [
    "Costs",
    "DeviceCosts",
    "NodeSeconds",
    "Profiler",
    "memory_of",
    "node_weight_bytes",
    "optimizer_alpha",
    "profile_compute",
    "reference_seconds",
    "static_bytes",
    "step_seconds_per_byte",
]

_HOME = {
    "Profiler": "measure.compute",
    "optimizer_alpha": "measure.optimizer",
    "profile_compute": "measure.compute",
    "reference_seconds": "speed",
    "step_seconds_per_byte": "measure.optimizer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'netsplit.profile' has no attribute '{name}'")
    return getattr(import_module(f"netsplit.profile.{_HOME[name]}"), name)
