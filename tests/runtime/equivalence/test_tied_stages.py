"""A weight that two stages read trains with the sum of their gradients, whoever has replicas."""

from __future__ import annotations

from netsplit.graph.ir import Graph
from netsplit.program import Program, Schedule
from netsplit.program.schedules import ZBH1, EagerOneFOneB, GPipe, OneFOneB
from netsplit.rewrite import CopyWeights, ReadWeights, Rewrite, applied
from netsplit.runtime.share import UpdateRule
from tests.cover import pairs
from tests.nets import CASES
from tests.runtime.equivalence.running import (
    assert_same,
    batches_of,
    captured_for,
    compiled,
    local,
    plain,
)

TIED = CASES["tied"]
SCHEDULES: tuple[Schedule, ...] = (GPipe(4), OneFOneB(4, recompute=True), EagerOneFOneB(4), ZBH1(4))
REPLICAS: dict[str, dict[str, tuple[str, ...]]] = {
    "none": {},
    "the first": {"cpu:0": ("cpu:0", "cpu:2")},
    "the last": {"cpu:1": ("cpu:1", "cpu:3", "cpu:4")},
    "both": {"cpu:0": ("cpu:0", "cpu:2"), "cpu:1": ("cpu:1", "cpu:3", "cpu:4")},
}
WAYS: dict[str, tuple[Rewrite, ...]] = {
    "copied": (CopyWeights("linear_2", 1),),
    "read": (ReadWeights("linear"), ReadWeights("linear_2")),
}
"""Each stage has one, or one of them sends it to the other."""


def program_of(way: str, replicas: str, schedule: Schedule) -> tuple[Graph, dict[str, str], Program]:
    """Both ends of the model on either stage, which share the weight."""
    graph = applied(captured_for(TIED, schedule), WAYS[way])
    second = graph.position["linear_1"]
    device_of = {name: f"cpu:{int(n >= second)}" for n, name in enumerate(graph.nodes)}
    program = compiled(graph, device_of, 5, schedule, replicas=REPLICAS[replicas], shared_norm=True)
    return graph, device_of, program


@pairs(way=WAYS, replicas=REPLICAS, schedule=SCHEDULES)
def test_gradients_are_summed_over_stages_and_replicas(schedule: Schedule, replicas: str, way: str) -> None:
    """With a clipped norm, which counts the weight once."""
    _, _, program = program_of(way, replicas, schedule)
    holders = {"none": 2, "the first": 3, "the last": 4, "both": 5}[replicas]
    if way == "copied":
        assert len(program.holders["inward.weight"]) == holders
    trained = local(program, TIED, batches_of(TIED, 3), rule=UpdateRule(clip_norm=0.05))
    assert_same(trained, plain("tied", 2, 3, clip_norm=0.05))
