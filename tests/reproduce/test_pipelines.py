"""Pipelines over hosts: a stage is where it is said to be, and what is added makes nothing slower."""

from __future__ import annotations

import re
from functools import partial

import pytest

from netsplit.data.sets.synthetic import synthetic
from netsplit.models import gpt
from netsplit.program.schedules import OneFOneB
from reproduce import PipelineCase, V100Servers
from reproduce.fastt import described_case
from reproduce.pipelines import StageParts, stages_over_hosts

SERVERS = V100Servers(a_server=2, between=2e7)
SMALL = partial(gpt, layers=2, heads=2, width=16, vocabulary=32, context=8, tied=False)


def case(parts: StageParts) -> PipelineCase:
    data = synthetic(kind="tokens", shape=(8,), num_classes=32)
    return PipelineCase(SMALL, data, batch_size=8, parts=parts, microbatches=4)


@pytest.mark.parametrize("parts", ["columns", "samples", "whole"])
def test_a_stage_is_a_host_or_a_device(parts: StageParts) -> None:
    problem = described_case(case(parts), SERVERS.of(4), 8, OneFOneB(4)).problem
    placement = stages_over_hosts(problem, 2, 2, parts)
    assert set(placement.device_of.values()) == {"d0", "d1", "d2", "d3"}
    assert bool(placement.rewrites) == (parts != "whole")
    graph = problem.rewritten(placement.rewrites).graph
    host = {name: int(device[1:]) // 2 for name, device in placement.device_of.items()}
    for name in graph.nodes:
        assert all(host[u] <= host[name] for u in graph.predecessors[name])
        if parts != "whole" and (number := re.search(r":(\d)$", name)):
            assert int(placement.device_of[name][1:]) % 2 == int(number[1])
