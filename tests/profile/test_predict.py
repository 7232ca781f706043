"""Predicted seconds: laws of the roofline, calibration that finds known rates again, and plans."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from benchmarks._subjects import Subject, UNet, resnet, transformer
from benchmarks.predictor.fit import calibrate_rates
from benchmarks.predictor.models import mobilenet
from netsplit.cluster.catalogue import RATES, Efficiency, Rates
from netsplit.config import build
from netsplit.errors import ConfigError
from netsplit.graph import Graph, capture
from netsplit.graph.analyse import analyse
from netsplit.graph.deferral.deferrable import deferrable_nodes
from netsplit.profile.costs import NodeSeconds
from netsplit.profile.predict import (
    predicted_costs,
    predicted_seconds,
)

CONF = Path(__file__).resolve().parents[2] / "conf"

SUBJECTS = {
    each.name: each
    for each in (
        Subject("resnet", partial(resnet, (1, 2), 16), (3, 32, 32), 2),
        Subject("unet", partial(UNet, 2, 8), (3, 32, 32), 2, maps=True),
        Subject("mobilenet", partial(mobilenet, 3), (3, 32, 32), 2),
        Subject("transformer", partial(transformer, 2, 64, 2, 16, 50), (16,), 2, words=50),
    )
}


@cache
def captured(name: str) -> Graph:
    subject = SUBJECTS[name]
    inputs, targets = subject.batch(1)
    return capture(subject.fresh(), nn.CrossEntropyLoss(), ((inputs,), (targets,)))


TITAN = RATES["TITAN RTX"]


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_node_has_seconds_that_make_sense(name: str) -> None:
    graph = captured(name)
    costs = predicted_costs(graph, {"a": TITAN, "b": RATES["V100-SXM2-16GB"]}, alpha=3)
    later = deferrable_nodes(graph)
    for kind in ("a", "b"):
        seconds = costs.devices[kind].nodes
        assert seconds.keys() == graph.nodes.keys()
        for node in graph:
            each = seconds[node.name]
            assert each.forward_s >= 0
            assert 0 <= each.weight_s <= each.backward_s
            assert (each.weight_s > 0) == (node.name in later)
            if not any(k in graph.requires_backward for k in node.outputs):
                assert each.backward_s == 0
    assert costs.alpha == 3
    assert costs.devices.keys() == {"a", "b"}
    for each in costs.devices.values():
        assert min(each.step_s_per_byte, each.instruction_s, each.accumulate_s_per_byte) > 0


def test_under_autocast_a_device_computes_in_half_precision() -> None:
    subject = SUBJECTS["resnet"]
    inputs, targets = subject.batch(1)
    half, refused = (
        capture(subject.fresh(), nn.CrossEntropyLoss(), ((inputs,), (targets,)), autocast=dtype)
        for dtype in ("float16", "bfloat16")
    )
    seconds = predicted_costs(half, {"a": TITAN}, alpha=2).devices["a"].nodes
    assert seconds == predicted_seconds(half, TITAN.under("float16"))
    assert seconds != predicted_seconds(replace(half, autocast=None), TITAN)
    with pytest.raises(ConfigError, match="autocast is bfloat16"):
        predicted_costs(refused, {"a": TITAN}, alpha=2)


KNOWN = Rates(
    "known", 1e11, 1e10, 5e-6,
    {
        "": Efficiency(0.5, 0.5),
        "convolution": Efficiency(0.9, 0.7),
        "convolution:weight": Efficiency(0.6, 0.5),
        "matmul": Efficiency(0.8, 0.4),
        "normalisation": Efficiency(0.3, 0.3),
    },
)  # fmt: skip


def profiles(*names: str, spoilt: float = 0.0) -> list[tuple[Graph, dict[str, NodeSeconds]]]:
    """What a device of `KNOWN` rates would measure, of which a share is far too slow."""
    draw = random.Random(3)
    measured = []
    for name in names:
        seconds = predicted_seconds(captured(name), KNOWN)
        for node, each in seconds.items():
            if draw.random() < spoilt:
                seconds[node] = NodeSeconds(20 * each.forward_s, 20 * each.backward_s)
        measured.append((captured(name), seconds))
    return measured


@pytest.mark.parametrize("spoilt", [0.0, 0.05])
def test_calibration_finds_known_rates_again(spoilt: float) -> None:
    """Rates fitted on three models predict a fourth, although some measurements are far off."""
    others = ("resnet", "unet", "transformer")
    fitted = calibrate_rates(profiles(*others, spoilt=spoilt), "cpu")
    assert fitted.name == "cpu"
    for name in (*others, "mobilenet"):
        truth, refitted = (predicted_seconds(captured(name), rates) for rates in (KNOWN, fitted))
        sums = [sum(each.total_s for each in seconds.values()) for seconds in (truth, refitted)]
        assert sums[1] == pytest.approx(sums[0], rel=0.12), name


Case = tuple[str, int, float]  # model, samples in a batch, samples per second

PUBLISHED: dict[str, list[Case]] = {
    # Lambda, 2080 Ti Deep Learning Benchmarks, March 2019: TensorFlow 1.12, float32
    "TITAN RTX": [("resnet50", 64, 330), ("resnet152", 64, 129), ("inception_v3", 64, 221)],
    "RTX 2080 Ti": [("resnet50", 64, 294), ("resnet152", 64, 110), ("inception_v3", 64, 194)],
    "V100-SXM2-32GB": [("resnet50", 64, 405), ("resnet152", 64, 155), ("inception_v3", 64, 259)],
    "GTX 1080 Ti": [("resnet50", 64, 209), ("resnet152", 64, 81), ("inception_v3", 64, 136)],
    "TITAN Xp": [("resnet50", 64, 236), ("resnet152", 64, 90), ("inception_v3", 64, 151)],
    # torchgpipe's benchmarks: PyTorch 1.3, float32; AmoebaNet-D computes every forward twice
    "P40": [("unet", 40, 28.5), ("amoebanet_d", 96, 26.733), ("resnet101", 118, 95.862)],
    # NVIDIA, DeepLearningExamples, ResNet-50 v1.5: PyTorch 21.03, float32 and TF32
    "V100-SXM2-16GB": [("resnet50", 112, 367)],
    "A100-SXM4-80GB": [("resnet50", 256, 938)],
}
PUBLISHED_FLOAT16: dict[str, list[Case]] = {
    # torchvision's ResNet-50, measured by a user of PyTorch: 152.2 ms a step, torch's own layout
    "V100-SXM2-16GB": [("resnet50", 128, 841)],
    # Lambda as above: 59 % and 52 % faster than in float32
    "RTX 2080 Ti": [("resnet50", 64, 467), ("resnet152", 64, 167)],
}
SIDES = {"inception_v3": 299, "unet": 192}


@cache
def published_graph(name: str, samples: int) -> Graph:
    """On the meta device; torchgpipe's U-Net has a score for every pixel."""
    loss: nn.Module = nn.BCEWithLogitsLoss() if name == "unet" else nn.CrossEntropyLoss()
    config = OmegaConf.load(CONF / "model" / f"{name.replace('101', '152')}.yaml")
    if name == "resnet101":
        config.blocks = [3, 4, 23, 3]
    config.num_classes = 1 if name == "unet" else 1000
    side = SIDES.get(name, 224)
    with torch.device("meta"):
        model = build(config).train()  # type: ignore[arg-type]
        inputs = torch.empty(samples, 3, side, side)
        classes = torch.empty(samples, dtype=torch.int64)
        targets = torch.empty(samples, 1, side, side) if name == "unet" else classes
    return capture(model, loss, ((inputs,), (targets,)))


def predicted_throughput(graph: Graph, kind: str, samples: int, twice: bool) -> float:
    seconds = predicted_costs(graph, {kind: RATES[kind]}, alpha=2).devices[kind].nodes.values()
    forward_s, backward_s = sum(s.forward_s for s in seconds), sum(s.backward_s for s in seconds)
    return samples / ((1 + twice) * forward_s + backward_s)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PUBLISHED)
def test_the_catalogue_predicts_published_throughputs(kind: str) -> None:
    for name, samples, published in PUBLISHED[kind]:
        reached = predicted_throughput(published_graph(name, samples), kind, samples, name == "amoebanet_d")
        assert reached == pytest.approx(published, rel=0.2), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", PUBLISHED_FLOAT16)
def test_the_catalogue_predicts_published_throughputs_in_float16(kind: str) -> None:
    for name, samples, published in PUBLISHED_FLOAT16[kind]:
        graph = published_graph(name, samples)
        batch = tuple(
            torch.empty(v.shape, dtype=getattr(torch, v.dtype), device="meta")
            for v in (graph.variables[k] for k in graph.input_variables)
        )
        half = analyse(replace(graph, autocast="float16"), batch)
        assert predicted_throughput(half, kind, samples, False) == pytest.approx(published, rel=0.2), name
