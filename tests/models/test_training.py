"""Models of the evaluation, tiny, train on two devices as they do in the plain loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from netsplit.graph import Graph, capture, initial_values
from netsplit.models import bert, deeplab_v3, dlrm, gpt, resnet, towers, u_transformer, unet
from netsplit.program import GPipe
from netsplit.runtime.local import LocalRuntime
from tests.builders import compile_placed, cpus
from tests.nets import SGD, TOLERANCE
from tests.runtime.references import Batch, plain_loop

SAMPLES, STEPS = 8, 2
VOCABULARY, CONTEXT, CLASSES, SIDE = 11, 6, 5, 16

TINY: dict[str, Callable[[], nn.Module]] = {
    "gpt": lambda: gpt(vocabulary=VOCABULARY, context=CONTEXT, layers=2, heads=2, width=8),
    "gpt_untied": lambda: gpt(vocabulary=VOCABULARY, context=CONTEXT, layers=2, heads=2, width=8, tied=False),
    "bert": lambda: bert(vocabulary=VOCABULARY, context=CONTEXT, layers=2, heads=2, width=8),
    "unet": lambda: unet(CLASSES, num_convs=2, base_channels=4, depth=2, dropout=0.0),
    "deeplab_v3": lambda: deeplab_v3(
        CLASSES, blocks=(1, 1, 1, 1), width=2, rates=(1, 2), channels=4, dropout=0.0
    ),
    "resnext": lambda: resnet(CLASSES, (1, 1, 1, 1), 4, small_images=True, groups=2, group_width=32),
    "dlrm": lambda: dlrm(CLASSES, tables=(9, 7), width=4, bottom=(3, 4), top=(6,)),
    "xdl": lambda: dlrm(CLASSES, tables=(9, 7), width=4, bottom=(), top=(6,)),
    "mlp": lambda: towers(CLASSES, inputs=(3, 3), tower=(6, 6)),
    "candle_uno": lambda: towers(CLASSES, inputs=(1, 3), tower=(6, 6), joined="cat", top=(5,)),
    "u_transformer": lambda: u_transformer(CLASSES, image_size=SIDE, base_channels=4, depth=2, heads=2),
}
INPUTS = {"mlp": (3, 3), "candle_uno": (1, 3), "dlrm": (3,), "xdl": ()}
SLOW = {"gpt_untied", "u_transformer"}


def batches(name: str) -> list[Batch]:
    generator = torch.Generator().manual_seed(len(name))
    return [_batch(name, generator) for _ in range(STEPS)]


def _batch(name: str, generator: torch.Generator) -> Batch:
    if name in ("unet", "deeplab_v3", "u_transformer"):
        images = torch.randn(SAMPLES, 3, SIDE, SIDE, generator=generator, dtype=torch.float64)
        return (images,), torch.randint(0, CLASSES, (SAMPLES, SIDE, SIDE), generator=generator)
    if name in INPUTS or name == "resnext":
        shapes: list[tuple[int, ...]] = [(size,) for size in INPUTS.get(name, ())] or [(3, SIDE, SIDE)] * (
            name == "resnext"
        )
        given = [torch.randn(SAMPLES, *each, generator=generator, dtype=torch.float64) for each in shapes]
        if name in ("dlrm", "xdl"):
            given.append(torch.randint(0, 7, (SAMPLES, 2, 3), generator=generator))
        return tuple(given), torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
    tokens = torch.randint(0, VOCABULARY, (SAMPLES, CONTEXT), generator=generator)
    if name != "bert":
        return (tokens,), tokens.roll(-1, 1)
    masked = torch.rand(tokens.shape, generator=generator) < 0.5
    masked[:, 0] = True  # a micro-batch without any masked token has no mean
    return (tokens.masked_fill(masked, 0),), tokens.masked_fill(~masked, -100)


def fresh(name: str) -> nn.Module:
    torch.manual_seed(7)
    return TINY[name]().double()


def alternating(graph: Graph, runs: int) -> dict[str, str]:
    """The graph's order cut into so many runs, which take turns on two devices."""
    device_of = {name: f"cpu:{i * runs // len(graph) % 2}" for i, name in enumerate(graph.nodes)}
    for group in graph.colocated:
        device_of.update(dict.fromkeys(group, device_of[group[0]]))
    return device_of


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in TINY]
)
def test_two_devices_train_as_the_plain_loop_does(name: str) -> None:
    """In double precision, over placements of one and of several cuts, with two micro-batches."""
    loss, given = nn.CrossEntropyLoss(), batches(name)
    size = SAMPLES // 2
    graph = capture(fresh(name), loss, (tuple(t[:size] for t in given[0][0]), given[0][1][:size]))
    wanted = plain_loop(fresh(name), loss, given, size, SGD)
    cluster = cpus(2)
    for runs in (2, 7):
        device_of = alternating(graph, runs)
        assert set(device_of.values()) == {"cpu:0", "cpu:1"}
        program = compile_placed(graph, device_of, graph.position, cluster, GPipe(2))
        runtime = LocalRuntime(program, cluster, initial_values(fresh(name), graph), SGD)
        losses = [runtime.train_batch(*batch) for batch in given]
        assert losses == pytest.approx(wanted.losses, rel=TOLERANCE)
        assert_same(runtime.state(), wanted.state)


def assert_same(state: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert set(wanted) == set(state)
    for key, tensor in wanted.items():
        torch.testing.assert_close(state[key], tensor, rtol=TOLERANCE, atol=TOLERANCE, msg=key)
