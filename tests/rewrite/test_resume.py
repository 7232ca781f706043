"""One training in several runs, each of which has its operators in other parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import netsplit
from netsplit.program import GPipe
from netsplit.rewrite import Rewrite, replicate
from netsplit.runtime.checkpoint.shares import load_plain
from tests.rewrite.test_copies import captured_mlp
from tests.rewrite.test_parts import (
    ADAMW,
    LOSS,
    MOMENTUM,
    OTHERS,
    UNEVEN,
    SideBySideColumns,
    batches,
    mlp,
)
from tests.runtime.equivalence.running import assert_same
from tests.runtime.references import Trained, plain_loop
from tests.workers import Pools, lent_to_sessions

ORDERS = {
    "whole first": ("whole", "columns", "rows", "copies"),
    "in parts first": ("rows", "copies", "whole", "columns"),
}


def rewrites_of(form: str) -> tuple[Rewrite, ...]:
    if form == "copies":
        return tuple(replicate(captured_mlp(), 2))
    return {"whole": (), "columns": UNEVEN, "rows": OTHERS}[form]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("optimizer", [ADAMW, MOMENTUM], ids=["adamw", "momentum"])
def test_runs_in_unlike_parts_are_one_training(
    pools: Pools, tmp_path: Path, order: str, optimizer: Any
) -> None:
    """On two workers, with averages and one norm for clipping; the last step is plain PyTorch's."""
    spec = replace(netsplit.cpu_cluster(2), latency_s=1e-5, bandwidth=1e9)
    (x,), y = batches()[0]
    given = batches(5)
    losses: list[float] = []
    for n, form in enumerate(ORDERS[order]):
        with (
            lent_to_sessions(pools),
            netsplit.parallelize(
                mlp(), LOSS, (x, y), cluster=spec, partitioner=SideBySideColumns(rewrites_of(form)),
                schedule=GPipe(4), optimizer=optimizer, clip_norm=0.3, profile="predicted", progress=False,
            ) as trained,
        ):  # fmt: skip
            if n:
                trained.load_checkpoint(tmp_path / str(n - 1))
            losses.append(trained.train_batch(*given[n]))
            trained.save_checkpoint(tmp_path / str(n))
    plain = mlp()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.zero_()
    stepping = optimizer(plain.parameters())
    load_plain(tmp_path / str(n), plain, stepping)
    (x,), y = given[-1]
    parts = [LOSS(plain(a), b) / 4 for a, b in zip(x.split(2), y.split(2), strict=True)]
    sum(parts).backward()  # type: ignore[union-attr]
    nn.utils.clip_grad_norm_(plain.parameters(), 0.3)
    stepping.step()
    losses.append(sum(each.item() for each in parts))
    wanted = plain_loop(mlp(), LOSS, given, 2, optimizer, clip_norm=0.3)
    assert_same(Trained(losses, plain.state_dict()), wanted)
