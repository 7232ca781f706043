"""Methods on nodes of Summit: what the table says, and the layouts that experts write by hand."""

from __future__ import annotations

from functools import partial
from math import prod

import pytest
import torch
from torch import nn

from netsplit.cluster.described import uniform_cluster
from netsplit.data import records
from netsplit.errors import ConfigError
from netsplit.graph import capture
from netsplit.models import dlrm, towers
from netsplit.rewrite import lowered, parallel_operators
from reproduce import ByName, ModelCase, parallel_speeds
from reproduce.unity import megatron_tasks

CLUSTER = partial(uniform_cluster, [3, 2], [45e9, 28e9, 11e9], model="V100-SXM2-16GB")
METHODS = {
    "ddp": {"_target_": "netsplit.partition.Ddp"},
    "rows": {"_target_": "reproduce.ColumnsAndRows"},
    "tables": {"_target_": "reproduce.TablesApart"},
}


def test_tables_apart_beat_copies_of_wide_tables_and_the_gain_is_over_the_best_of_others() -> None:
    tables, width = (20_000,) * 6, 64
    case = ModelCase(
        partial(dlrm, tables=tables, width=width), records((4,), tables), 64, reference={"gain": 3.6}
    )
    result = parallel_speeds(ByName(dlrm=case), METHODS, CLUSTER, nodes=(1, 2), subject="tables")
    assert result.column("devices") == [6, 12]
    assert result.column("batch") == [384, 768]
    assert result.column("best") == ["tables", "tables"]
    for gain, *speeds in zip(*map(result.column, ("gain", "tables", "ddp", "rows")), strict=True):
        own, *others = speeds
        assert gain == pytest.approx(own / max(others))
    with pytest.raises(ConfigError, match=r"study\.methods is empty"):
        parallel_speeds(ByName(dlrm=case), {}, CLUSTER)


def test_megatrons_layout_cuts_samples_over_hosts_and_products_within() -> None:
    model = towers(4, inputs=(6, 6), tower=(6, 6), joined="cat", top=(6,))
    batch = (torch.zeros(4, 6), torch.zeros(4, 6)), torch.zeros(4, dtype=torch.int64)
    graph = capture(model, nn.CrossEntropyLoss(), batch)
    tasks = megatron_tasks(graph, 2, 3)
    assert {prod((*(len(cut.sizes) for cut in each.cuts), *each.copies)) for each in tasks} == {6}
    kinds = {(each.kind, each.degree) for each in parallel_operators(graph, tasks) if each.reader == "relu_1"}
    assert kinds == {("reduce", 3), ("replicate", 3)}
    assert len(lowered(graph, tasks)) > len(graph)
