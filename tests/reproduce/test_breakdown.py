"""`reproduce.breakdown`: data parallelism on described devices, against arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from netsplit.cluster.described import uniform_cluster
from netsplit.partition import Ddp
from netsplit.profile.predict import predicted_costs
from netsplit.program.schedules import GPipe
from reproduce import ByName, RunCase, time_breakdown
from tests.reproduce.nets import CONV, DATA, HEAD, MID, Counted, case

BANDWIDTH, LATENCY = 1e9, 1e-4
DEVICES, BATCH = 4, 8


def planned(**more: object) -> RunCase:
    cluster = uniform_cluster(DEVICES, BANDWIDTH, latency=LATENCY, model="TITAN RTX")
    given = {"cluster": cluster, "partitioner": Ddp(), "schedule": GPipe(DEVICES)} | more
    return RunCase(Counted, DATA, BATCH, **given)  # type: ignore[arg-type]


def test_the_parts_of_planned_data_parallelism_are_those_of_the_formulas(tmp_path: Path) -> None:
    result = time_breakdown(ByName({"mine": planned(reference={"communication": 0.4})}), tmp_path)
    whole = result.metrics["iteration_s.mine"]
    gradients = CONV + HEAD + 2 * MID * 4
    ring_s = 2 * (DEVICES - 1) * (LATENCY + gradients / DEVICES / BANDWIDTH)
    assert result.metrics["communication_fraction.mine"] * whole == pytest.approx(ring_s, rel=0.05)
    graph = case(BATCH // DEVICES).training_graph()
    rates = next(iter(planned().cluster.accelerators.values()))  # type: ignore[union-attr]
    costs = predicted_costs(graph, {"d": rates}, alpha=3)
    forward_s = sum(each.forward_s for each in costs.devices["d"].nodes.values())
    assert result.metrics["forward_fraction.mine"] * whole == pytest.approx(forward_s)
    parts = [value for key, value in result.metrics.items() if key.endswith("_fraction.mine")]
    assert sum(parts) == pytest.approx(1.0)
    assert result.rows[0][-1] == 0.4
    assert "(planned)" in str(result.rows[0][0])
