"""Rooms that only read costs do not pay for torch."""

from __future__ import annotations

import subprocess
import sys

import netsplit.graph
import netsplit.graph.onnx


def test_costs_and_clusters_are_imported_without_torch() -> None:
    code = (
        "import sys, netsplit.profile.costs, netsplit.profile.memory; "
        "import netsplit.cluster.cluster, netsplit.cluster.local, netsplit.graph; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_exported_name_is_there() -> None:
    for room in (netsplit.graph, netsplit.graph.onnx):
        assert all(callable(getattr(room, name)) for name in room.__all__)
