"""Where the pieces of a tensor lie, and what of one layout another needs.

Mesh, Layout ──► regions of devices ──unit_tasks──► slices: who has them, who needs them
"""

from netsplit.layout.layout import Box, DeviceName, Layout, Mesh, UnitTask, unit_tasks, volume

__all__ = ["Box", "DeviceName", "Layout", "Mesh", "UnitTask", "unit_tasks", "volume"]
