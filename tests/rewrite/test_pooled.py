"""Parts of a tied weight that several segments of their device read: one gradient for all micro-batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from netsplit.graph import Graph, capture, initial_values
from netsplit.profile.measure.predicted_bytes import predicted_transients
from netsplit.program import GPipe, OneFOneB, Schedule, SingleBatch
from netsplit.program.schedules import ZBH1, AsyncOneFOneB, Interleaved
from netsplit.rewrite import Split, applied
from netsplit.runtime.distributed import DistributedRuntime
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.share import UpdateRule
from netsplit.simulate import predicted_peak_bytes
from tests.builders import cpus
from tests.nets import SGD
from tests.rewrite.test_training import side_by_side
from tests.runtime.equivalence.running import assert_same, compiled
from tests.runtime.references import Trained, plain_loop
from tests.simulate.test_memory import MOMENTUM, measured_peak_bytes
from tests.workers import Pools

LOSS = nn.CrossEntropyLoss()
SCHEDULES: tuple[Schedule, ...] = (
    SingleBatch(), GPipe(4), GPipe(4, recompute=True), OneFOneB(4), ZBH1(4), Interleaved(4),
)  # fmt: skip


class Tied(nn.Module):
    """Words are looked up in the weight that the last layer multiplies by."""

    def __init__(self, words: int = 20, width: int = 6) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.middle = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = torch.tanh(self.middle(self.words(tokens).mean(1)))
        return nn.functional.linear(hidden, self.words.weight)


def model(words: int = 20, width: int = 6) -> nn.Module:
    torch.manual_seed(2)
    return Tied(words, width).double()


def batch(seed: int, samples: int = 8, words: int = 20) -> tuple[tuple[Tensor], Tensor]:
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(words, (samples, 3), generator=draw)
    return (tokens,), torch.randint(words, (samples,), generator=draw)


def in_parts(samples: int, words: int = 20, width: int = 6) -> tuple[Graph, dict[str, str]]:
    """Look-up and last layer cut alike: each device has its own words, which both of its parts read."""
    (tokens,), targets = batch(0, samples, words)
    graph = capture(model(words, width), LOSS, (tokens, targets))
    sizes = words - words // 3, words // 3
    graph = applied(graph, [Split("embedding", "weight.0", sizes), Split("linear_1", 1, sizes)])
    own = {k: f"cpu:{p}" for p, k in enumerate(k for k, each in graph.initializers.items() if each.region)}
    read = {name: own[k] for name, node in graph.nodes.items() for k in node.initializers if k in own}
    return graph, side_by_side(graph) | read


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda each: f"{each.name}-{each.recompute}")
def test_it_trains_what_plain_pytorch_trains(pools: Pools, schedule: Schedule) -> None:
    graph, homes = in_parts(schedule.microbatch_size(8))
    program = compiled(graph, homes, 2, schedule, shared_norm=True)
    assert program.pooled == {"words.weight[0:14, :]:read", "words.weight[14:20, :]:read"}
    batches, rule = [batch(seed) for seed in range(3)], UpdateRule(clip_norm=0.1)
    wanted = plain_loop(model(), LOSS, batches, schedule.microbatch_size(8), SGD, clip_norm=0.1)
    values = initial_values(model(), graph)
    for runtime in (
        LocalRuntime(program, cpus(2), values, SGD, rule),
        DistributedRuntime(program, pools(2), values, SGD, rule=rule),
    ):
        trained = Trained([runtime.train_batch(*each) for each in batches], runtime.state())
        assert_same(trained, wanted, 1e-12)


def metered(schedule: Schedule, pooled: bool = True) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of every device, as they are measured and as they are predicted; weights are most of them."""
    words, width, size = 900, 40, 2
    graph, homes = in_parts(size, words, width)
    (tokens,), targets = batch(1, size * schedule.microbatches, words)
    program = compiled(graph, homes, 2, schedule)
    if not pooled:
        program = replace(program, pooled=frozenset())
    measured = measured_peak_bytes(program, initial_values(model(words, width), graph), (tokens,), targets)
    transients = dict.fromkeys(program.devices, predicted_transients(graph))
    return measured, predicted_peak_bytes(program, MOMENTUM, transients)


@pytest.mark.parametrize("schedule", [GPipe(2), GPipe(8), OneFOneB(8), ZBH1(8), GPipe(8, recompute=True)])
def test_its_bytes_are_predicted(schedule: Schedule) -> None:
    measured, predicted = metered(schedule)
    assert measured == pytest.approx(predicted, rel=0.01)


def test_where_devices_step_within_the_batch_nothing_is_pooled() -> None:
    graph, homes = in_parts(2)
    assert compiled(graph, homes, 2, AsyncOneFOneB(4)).pooled == frozenset()
