"""From a layout on one device mesh to another layout on another (AlpaComm).

    Layout, Layout ──unit_tasks──► slices ──orders──► senders, turns ──hops──► messages ──timing──► seconds

Planned here; nothing is sent, and only `placements.py`, for DTensor's placements, needs torch.
"""

from netsplit.layout import Box, DeviceName, Layout, Mesh, UnitTask, unit_tasks, volume
from netsplit.reshard.hops import STRATEGIES, Hop
from netsplit.reshard.network import Network, network_of
from netsplit.reshard.orders import ORDERS
from netsplit.reshard.plan import ReshardPlan, plan_reshard

__all__ = [
    "ORDERS",
    "STRATEGIES",
    "Box",
    "DeviceName",
    "Hop",
    "Layout",
    "Mesh",
    "Network",
    "ReshardPlan",
    "UnitTask",
    "network_of",
    "plan_reshard",
    "unit_tasks",
    "volume",
]
