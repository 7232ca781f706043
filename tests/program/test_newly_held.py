"""What devices come to hold by a change of plan: elements of parameters, in whatever parts and copies."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn

import netsplit
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.planning.plan import Plan
from netsplit.program.instructions import Program
from netsplit.program.newly_held import newly_held_bytes
from netsplit.rewrite import Rewrite, along_samples, applied, columns_and_rows, replicate, splits_of

MODEL = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))
BATCH = torch.randn(8, 6), torch.randint(5, (8,))


@dataclass
class Made(Partitioner):
    """Parts or copies, every other one of which is on the second device; of whole operators the last are."""

    kind: str
    name = "made"

    def choose(self, problem: Problem) -> Choice:
        graph = problem.graph
        rewrites: dict[str, tuple[Rewrite, ...]] = {
            "uneven": splits_of(graph, columns_and_rows(graph)[:1], (3.0, 1.0)),
            "four": splits_of(graph, columns_and_rows(graph)[:1], (1.0, 1.0, 1.0, 1.0)),
            "samples": along_samples(graph, 2),
            "copies": replicate(graph, 2),
        }
        own = rewrites.get(self.kind, ())
        last = list(graph.nodes)[-2:] if self.kind == "stages" else []
        return Choice(
            {v: f"cpu:{int(v[-2:] in (':1', ':3') or v in last)}" for v in applied(graph, own).nodes},
            rewrites=own,
        )


KINDS = ("one", "stages", "uneven", "four", "samples", "copies")


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    def made(kind: str) -> Plan:
        whole = netsplit.plan(MODEL, nn.CrossEntropyLoss(), BATCH, partitioner=Made(kind), schedule="gpipe")
        return whole.plan

    return {kind: made(kind) for kind in KINDS}


def elements(program: Program, device: str) -> set[tuple[Any, ...]]:
    """One by one: the name of the whole, and the place."""
    held = set()
    for k in program.held[device]:
        own = program.graph.initializers[k]
        starts = own.region.offsets if own.region is not None else [0] * len(own.shape)
        ranges = (range(at, at + size) for at, size in zip(starts, own.shape, strict=True))
        held |= {(own.whole.name, *place) for place in product(*ranges)}
    return held


@pytest.mark.parametrize(("before", "after"), list(product(KINDS, KINDS)))
def test_what_a_device_did_not_hold_arrives(plans: dict[str, Plan], before: str, after: str) -> None:
    old, new = (plans[kind].simulated[0] for kind in (before, after))
    arriving = newly_held_bytes(old, new)
    assert arriving == {
        name: 4 * len(elements(new, name) - elements(old, name)) for name in ("cpu:0", "cpu:1")
    }
    assert before != after or not any(arriving.values())
