"""Whole plans with operators in parts: where they are faster, or nothing fits without; and what is proven."""

import json
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import netsplit
from netsplit.cluster.described import ClusterDescription, DescribedDevice, LinkCost, described_cluster
from netsplit.errors import InfeasibleError
from netsplit.partition import OsDpos
from netsplit.planning.plan import Plan
from tests.messages import tells

WIDTH, HIDDEN = 1024, 16384
LAYER = 4 * WIDTH * HIDDEN  # bytes


@cache
def model() -> nn.Module:
    """One layer has nearly all weights."""
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 8))


def batch(samples: int) -> tuple[Tensor, Tensor]:
    with torch.device("meta"):
        return torch.zeros(samples, WIDTH), torch.zeros(samples, dtype=torch.long)


def cluster(capacity: int = 8 * 10**9) -> ClusterDescription:
    devices = [DescribedDevice(f"d{q}", capacity=capacity, model="TITAN RTX") for q in range(2)]
    return described_cluster("drawn", devices, LinkCost("100GB", 1e-6))


def planned(devices: ClusterDescription, samples: int, **given: Any) -> Plan:
    open_ = netsplit.AutoSchedule(**({"time_limit_s": 6.0, "microbatches": [1]} | given))
    return netsplit.plan(model(), nn.CrossEntropyLoss(), batch(samples), devices, schedule=open_)


def test_operators_are_in_parts_where_that_is_faster() -> None:
    whole, parts = planned(cluster(), 4096), planned(cluster(), 4096, splits=True)
    assert whole.choice.frontier[0].kind != "parts"
    assert not whole.placement.rewrites
    assert parts.choice.frontier[0].kind == "parts"
    assert parts.iteration_s < 0.7 * whole.iteration_s
    told = "parts on both devices: auto, columns and rows of the widest, 3 operators in parts, single_batch"
    assert told in parts.lines[0]
    assert parts.lines[3].startswith(
        "3 operators in parts: linear (0) and gelu (1) along dimension 1: 50 % on "
    )
    assert all((row.parts > 0) == (row.kind == "parts") for row in parts.choice.frontier)
    assert f"chosen; {parts.choice.frontier[0].parts} operators in parts" in str(parts)
    assert {row.kind for row in parts.choice.frontier} >= {"single", "pipeline", "parts"}
    again = json.loads(json.dumps(parts.to_dict()))
    assert again["rewrites"]
    # what is proven is of whole operators
    assert parts.choice.bound_s > parts.iteration_s  # of operators that are whole, one after another
    assert tells(parts.lines[2], "no plan of whole operators with", "is more than 0.0 % faster")
    assert parts.bound_s is not None
    assert parts.bound_s <= parts.iteration_s  # of any placement of these parts
    assert "proven: no plan with" in whole.lines[2]


def test_a_layer_that_fits_on_no_device_is_refused_or_in_parts() -> None:
    little = int(2.9 * LAYER)  # less than the layer with its gradient and momentum
    with pytest.raises(InfeasibleError, match="no plan fits on cluster 'drawn'"):
        planned(cluster(little), 8)
    parts = planned(cluster(little), 8, splits=True)
    assert parts.choice.frontier[0].kind == "parts"
    assert max(parts.peak_bytes.values()) <= little


def test_a_method_that_splits_may_be_asked_for_by_name() -> None:
    open_ = netsplit.AutoSchedule(time_limit_s=1.5, microbatches=[1])
    given = (nn.CrossEntropyLoss(), batch(4096), cluster())
    whole = netsplit.plan(model(), *given, schedule=open_, partitioner=OsDpos())
    assert whole.placement.rewrites
    assert whole.choice.frontier[0].kind == "parts"
