"""Methods on nodes of Summit: what the table says, and the layouts that experts write by hand."""

from __future__ import annotations

from functools import partial
from math import prod

import pytest
from torch import nn

from netsplit.cluster.described import uniform_cluster
from netsplit.data import records, synthetic
from netsplit.errors import ConfigError
from netsplit.models import dlrm, towers
from netsplit.partition import Unity
from netsplit.partition.methods.unity.choices import tasks_of_mapping
from netsplit.program.schedules import SingleBatch
from netsplit.rewrite import lowered, parallel_operators
from reproduce import ByName, ColumnsAndRows, ModelCase, parallel_speeds, search_seconds
from reproduce.fastt import described_case
from reproduce.unity import foreseen

CLUSTER = partial(uniform_cluster, [3, 2], [45e9, 28e9, 11e9], model="V100-SXM2-16GB")
METHODS = {
    "data": {"_target_": "reproduce.DataParallel"},
    "rows": {"_target_": "reproduce.ColumnsAndRows"},
    "tables": {"_target_": "reproduce.TablesApart"},
}
TABLES, WIDTH = (20_000,) * 6, 64
RECOMMENDER = ModelCase(
    partial(dlrm, tables=TABLES, width=WIDTH), records((4,), TABLES), 64, reference={"gain": 3.6}
)


def test_tables_apart_beat_copies_of_wide_tables_and_the_gain_is_over_the_best_of_others() -> None:
    result = parallel_speeds(
        ByName(dlrm=RECOMMENDER), METHODS, CLUSTER, nodes=(1, 2), lowered=6, subject="tables"
    )
    assert result.column("devices") == [6, 12]
    assert result.column("batch") == [384, 768]
    assert result.column("by") == ["simulated", "costs, not lowered"]
    assert result.column("best") == ["tables", "tables"]
    for gain, *speeds in zip(*map(result.column, ("gain", "tables", "data", "rows")), strict=True):
        own, *others = speeds
        assert gain == pytest.approx(own / max(others))
    with pytest.raises(ConfigError, match=r"study\.methods is empty"):
        parallel_speeds(ByName(dlrm=RECOMMENDER), {}, CLUSTER)
    with pytest.raises(ConfigError, match="whole or local"):
        parallel_speeds(ByName(dlrm=RECOMMENDER), METHODS, CLUSTER, batch_norm="frozen")  # type: ignore[arg-type]


def test_costs_of_layouts_by_hand_are_near_the_simulated_seconds() -> None:
    model = partial(towers, 10, inputs=(512, 512), tower=(4096, 4096, 4096), joined="sum")
    wide = ByName(mlp=ModelCase(model, records((512, 512), (), num_classes=10), 64))
    own = {name: METHODS[name] for name in ("data", "rows")}
    by_costs, simulated = (parallel_speeds(wide, own, CLUSTER, nodes=(2,), lowered=n) for n in (0, 12))
    assert by_costs.column("data") == pytest.approx(simulated.column("data"), rel=0.05)
    assert by_costs.column("rows") == pytest.approx(simulated.column("rows"), rel=0.25)


def test_local_statistics_cut_a_batch_norm_along_samples_at_the_same_seconds_and_are_said() -> None:
    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 256, 3),
            nn.BatchNorm2d(256),
            nn.Conv2d(256, 256, 3),
            nn.Flatten(),
            nn.Linear(256 * 12 * 12, 10),
        )

    case = ByName(net=ModelCase(model, synthetic(shape=(3, 16, 16), num_classes=10), 16))
    own = {"data": METHODS["data"]}
    whole, local = (
        parallel_speeds(case, own, CLUSTER, nodes=(1,), lowered=0, batch_norm=each)
        for each in ("whole", "local")
    )
    assert whole.column("planned with") == ["as trained"]
    assert local.column("planned with") == ["BatchNorm local"]
    assert local.column("data")[0] > 1.2 * whole.column("data")[0]  # type: ignore[operator]
    one = partial(uniform_cluster, 1, 1e9, model="V100-SXM2-16GB")
    alone = [
        parallel_speeds(case, own, lambda nodes: one(), nodes=(1,), lowered=0, batch_norm=each)
        for each in ("whole", "local")
    ]
    assert alone[0].column("data") == pytest.approx(alone[1].column("data"), rel=0.01)


def test_megatrons_layout_cuts_samples_over_hosts_and_products_within() -> None:
    model = partial(towers, 4, inputs=(6, 6), tower=(6, 6), joined="cat", top=(6,))
    case = ModelCase(model, records((6, 6), (), num_classes=4), 4)
    problem = described_case(case, CLUSTER(nodes=2), 48, SingleBatch()).problem
    costed, mapped = ColumnsAndRows().mapped(problem)
    tasks = tasks_of_mapping(problem.graph, mapped.choices, costed.machines)
    assert {prod((*(len(cut.sizes) for cut in each.cuts), *each.copies)) for each in tasks} == {12}
    kinds = {
        (each.kind, each.degree)
        for each in parallel_operators(problem.graph, tasks)
        if each.reader == "relu_1"
    }
    assert kinds == {("reduce", 6), ("replicate", 6)}
    assert len(lowered(problem.graph, tasks)) > len(problem.graph)


def test_search_without_pieces_or_tables_that_are_kept_comes_to_the_same_cost() -> None:
    unity = {"_target_": "netsplit.partition.Unity"}
    methods = {"all": unity, "none": {**unity, "piece": 1000, "cache": False}}
    case = ModelCase(partial(dlrm, tables=(9, 9), bottom=(), top=()), records((), (9, 9)), 64)
    result = search_seconds(ByName(dlrm=case), CLUSTER, methods, (1,), {"all": [57]})
    assert result.column("printed s") == [57, None]
    first, second = result.column("ms")
    assert first == pytest.approx(second)
    problem = described_case(case, CLUSTER(nodes=1), 384, SingleBatch()).problem
    assert 1e3 * foreseen(Unity(), problem)[0] == pytest.approx(first)
    with pytest.raises(ConfigError, match="is not unity"):
        search_seconds(ByName(dlrm=case), CLUSTER, METHODS, (1,))
