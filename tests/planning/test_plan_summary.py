"""A plan as text, as a table and as pictures."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netsplit.errors import ConfigError
from netsplit.partition.base import MemoryRule
from netsplit.planning.decide import decide
from netsplit.planning.plan import Plan
from netsplit.program.schedules import GPipe
from tests.planning.test_decide import Given, answer, four, simulated


def plan_of(where: str = "0012", microbatches: int = 3) -> Plan:
    problem = simulated(four(), GPipe(microbatches))
    return decide(problem, Given(answer(problem, where)))


def test_the_text_has_a_line_for_each_device_below_the_headings() -> None:
    plan = plan_of()
    method, schedule, predicted, *told = str(plan.summary()).splitlines()
    assert method.startswith(plan.placement.method)
    assert plan.problem.graph.batch_size == 1
    assert schedule == "gpipe with 3 micro-batches of 1 sample"
    assert f"{1e3 * plan.objective_s:,.1f} ms per iteration" in predicted
    assert f"{plan.simulated[0].transfers} transfers" in predicted
    headings, *rows = told[-4:]
    assert headings.split()[:5] == ["device", "operators", "parameters", "busy", "ms"]
    assert [row.split()[:2] for row in rows] == [["d0", "2"], ["d1", "1"], ["d2", "1"]]
    assert repr(plan.summary()) == str(plan.summary())


@pytest.mark.parametrize("memory", ["lifetimes", "static"])
def test_a_device_s_limit_stands_beside_what_has_to_stay_within_it(memory: MemoryRule) -> None:
    plan = plan_of(microbatches=1)
    counted = decide(replace(plan.problem, memory="static"), Given(plan.placement)).loads
    peaks = plan.simulated[1].peak_bytes
    static = {name: load.nbytes for name, load in counted.items() if load.nodes}
    held = peaks if memory == "lifetimes" else static
    assert any(static[name] > peaks[name] for name in static)
    cluster = plan.problem.cluster
    devices = tuple(replace(d, capacity_bytes=held.get(d.name, 1)) for d in cluster.devices)
    own = replace(plan.problem, memory=memory, cluster=replace(cluster, devices=devices))
    table = decide(own, Given(plan.placement)).summary().devices
    *_, shown, limit, full = zip(*table.rows, strict=True)
    assert shown == limit == tuple(held[name] for name in plan.loads)
    assert set(full) == {1.0}
    assert [column.name for column in table.columns][-3:-1] == [
        "peak" if memory == "lifetimes" else "static", "limit",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["graph", "timeline", "memory"])
def test_plots_are_shown_and_saved(kind: str, tmp_path: Path) -> None:
    plan = plan_of()
    shown = plan.plot(kind, plan.timeline)
    assert shown._repr_svg_().startswith("<?xml")
    assert kind in repr(shown)
    assert shown.save(tmp_path / "new folder" / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert shown.save(str(tmp_path / "plot.svg")).read_text().startswith("<?xml")


@pytest.mark.parametrize("kind", ["graph", "timeline", "memory"])
@pytest.mark.parametrize("given", ["x.png", Path("x.png")])
def test_a_file_in_place_of_a_timeline_is_refused_with_how_to_write_one(kind: str, given: Any) -> None:
    plan = plan_of()
    with pytest.raises(ConfigError, match=rf"'x.png'.*: .* with plot\('{kind}'\)\.save\(path\)\.$"):
        plan.plot(kind, given)
