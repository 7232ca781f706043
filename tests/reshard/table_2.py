"""The nine cases of AlpaComm's Table 2, as its authors' benchmark has them, and what each order takes.

Seconds are in units of sending the whole tensor once from host to host; hosts have four devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from netsplit.reshard import Layout, Network
from tests.reshard.carried import between, network_for

__all__ = ["TABLE_2", "TableCase"]

_CUBE = (1024, 1024, 512)


@dataclass(frozen=True)
class TableCase:
    """Meshes and layouts of both sides, and the proven optimum beside two simpler ways."""

    meshes: tuple[tuple[int, int], tuple[int, int]]
    specs: tuple[str, str]
    tasks: int
    naive: float
    size_only: float
    best: float
    shape: tuple[int, int, int] = _CUBE

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        return between((self.meshes[0], self.specs[0]), (self.meshes[1], self.specs[1]))

    @property
    def network(self) -> Network:
        source, destination = self.layouts
        return network_for(source.mesh, destination.mesh, nic_bandwidth=4 * prod(self.shape))


_SQUARE = (2, 4), (2, 4)
TABLE_2 = {
    1: TableCase(_SQUARE, ("S0RR", "S0RR"), 2, 0.5, 0.5, 0.5),
    2: TableCase(_SQUARE, ("RRR", "S0RR"), 2, 1.0, 0.5, 0.5),
    3: TableCase(_SQUARE, ("RS0R", "S0RR"), 4, 0.75, 0.75, 0.5),
    4: TableCase(_SQUARE, ("RS01R", "S01RR"), 64, 0.9375, 0.9375, 0.5),
    5: TableCase(_SQUARE, ("S1RR", "S0RR"), 4, 1.0, 0.75, 0.5),
    6: TableCase(((2, 4), (3, 4)), ("S0RR", "S0RR"), 4, 1.0, 1.0, 0.5, (3072, 1024, 170)),
    7: TableCase(((1, 4), (2, 4)), ("S1RR", "RRR"), 4, 1.0, 1.0, 1.0),
    8: TableCase(((1, 4), (2, 4)), ("S1RR", "RRR"), 4, 1.0, 1.0, 1.0),
    9: TableCase(_SQUARE, ("RS0R", "RRS0"), 4, 0.75, 0.75, 0.5),
}
