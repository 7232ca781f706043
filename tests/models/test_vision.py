"""Models with torchvision's pieces are torchvision's; U-Nets have their published sizes and reach."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from netsplit.beside_torchvision import import_torchvision
from netsplit.models import (
    deeplab_v3,
    googlenet,
    inception_v3,
    resnet,
    u_transformer,
    unet,
    unet_classic,
    vgg19,
)
from netsplit.models.u_transformer import CrossAttention, Positions, SelfAttention
from tests.models.subjects import count

WIDENINGS = {"none": 64, "bottleneck": 128}


def same_parameters(model: nn.Module, wanted: nn.Module) -> None:
    shapes = [{key: tensor.shape for key, tensor in each.state_dict().items()} for each in (model, wanted)]
    assert shapes[0] == shapes[1]


def same_outputs(model: nn.Module, wanted: nn.Module, images: torch.Tensor) -> None:
    """In training mode, where BatchNorm sees the batch."""
    model.load_state_dict(wanted.state_dict())
    outputs = wanted(images)
    assert torch.equal(model(images), outputs["out"] if isinstance(outputs, dict) else outputs)


@pytest.mark.parametrize("widening", WIDENINGS)
@pytest.mark.parametrize("blocks", [(3, 4, 6, 3), (3, 8, 36, 3)])
def test_a_resnet_has_torchvisions_parameters(blocks: tuple[int, ...], widening: str) -> None:
    models = import_torchvision().models.resnet
    with torch.device("meta"):
        model = resnet(blocks=blocks, widening=widening)  # type: ignore[arg-type]
        wanted = models.ResNet(models.Bottleneck, list(blocks), width_per_group=WIDENINGS[widening])
    same_parameters(model, wanted)


def test_a_resnet_computes_what_torchvisions_does() -> None:
    models = import_torchvision().models.resnet
    wanted = models.ResNet(models.Bottleneck, [1, 1, 2, 1], num_classes=3)
    same_outputs(resnet(3, (1, 1, 2, 1)), wanted, torch.randn(2, 3, 33, 32))


def test_all_channels_doubled_are_twice_as_many_everywhere() -> None:
    with torch.device("meta"):
        plain, wide = resnet(), resnet(widening="all")
    for (key, narrow), tensor in zip(plain.state_dict().items(), wide.state_dict().values(), strict=True):
        if narrow.dim() == 4:
            inward = narrow.shape[1] if key == "conv1.weight" else 2 * narrow.shape[1]
            assert tensor.shape == (2 * narrow.shape[0], inward, *narrow.shape[2:]), key
    assert wide.fc.in_features == 4096
    assert round(count(wide) / 1e5) == 2364


def test_a_deeplab_is_torchvisions() -> None:
    models = import_torchvision().models
    backbone = models.resnet.ResNet(
        models.resnet.Bottleneck, [1, 1, 2, 1], replace_stride_with_dilation=[False, True, True]
    )
    layers = models._utils.IntermediateLayerGetter(backbone, {"layer4": "out"})
    deeplab = models.segmentation.deeplabv3
    wanted = deeplab.DeepLabV3(layers, deeplab.DeepLabHead(2048, 4))
    model = deeplab_v3(4, (1, 1, 2, 1), widening="none", dropout=0.0)
    (dropout,) = (module for module in wanted.modules() if isinstance(module, nn.Dropout))
    dropout.p = 0.0
    same_outputs(model, wanted, torch.randn(2, 3, 17, 24))


@pytest.mark.parametrize("classes", [2, 21])
def test_a_deeplab_on_resnet_101_is_as_large_as_torchvisions(classes: int) -> None:
    with torch.device("meta"):
        model = deeplab_v3(classes, (3, 4, 23, 3), widening="none")
    assert count(model) == 58_630_997 - 257 * (21 - classes)


def test_vgg_19_is_torchvisions() -> None:
    with torch.device("meta"):
        same_parameters(vgg19(), import_torchvision().models.vgg19())
        same_parameters(vgg19(batch_norm=True), import_torchvision().models.vgg19_bn())


def test_the_classifiers_are_torchvisions_without_their_auxiliary_heads() -> None:
    models = import_torchvision().models
    with torch.device("meta"):
        whole = [
            (googlenet(), models.GoogLeNet(init_weights=False), "aux", 13_004_888),
            (inception_v3(), models.Inception3(init_weights=False), "AuxLogits", 27_161_264),
        ]
    for model, wanted, auxiliary, parameters in whole:
        assert count(wanted) == parameters
        kept = [key for key in wanted.state_dict() if not key.startswith(auxiliary)]
        assert list(model.state_dict()) == kept


@pytest.mark.parametrize(
    ("num_convs", "base_channels", "parameters"),
    [(5, 64, 232_687_328), (6, 72, 362_157_516), (11, 128, 2_213_834_176), (48, 160, 15_822_206_000)],
)
def test_a_u_net_is_as_large_as_published(num_convs: int, base_channels: int, parameters: int) -> None:
    with torch.device("meta"):
        assert count(unet(1, num_convs, base_channels)) == parameters


def classic_count(classes: int, base: int, depth: int, channels: int, norm: bool, up: str) -> int:
    """Weights of the classic U-Net, level by level: by arithmetic alone."""

    def double(a: int, b: int, c: int) -> int:
        return 9 * a * b + 9 * b * c + (2 * (b + c) if norm else b + c)

    levels = [base * 2**i for i in range(depth)]
    narrow = 2 if up == "bilinear" else 1
    total = sum(double(a, b, b) for a, b in zip([channels, *levels[:-1]], levels, strict=True))
    total += double(levels[-1], 2 * levels[-1], 2 * levels[-1] // narrow)
    for i, c in enumerate(levels):
        total += double(2 * c, c, c // narrow if i else c)
        total += 0 if up == "bilinear" else 4 * 2 * c * c + c
    return total + base * classes + classes


@given(
    classes=st.integers(1, 30),
    base=st.integers(1, 40).map(lambda half: 2 * half),
    depth=st.integers(1, 5),
    channels=st.integers(1, 4),
    norm=st.booleans(),
    up=st.sampled_from(["transposed", "bilinear"]),
)
@settings(deadline=None, max_examples=30)
def test_the_classic_u_net_has_the_weights_that_arithmetic_gives_it(
    classes: int, base: int, depth: int, channels: int, norm: bool, up: str
) -> None:
    with torch.device("meta"):
        model = unet_classic(classes, base, depth, channels, norm, up)  # type: ignore[arg-type]
    assert count(model) == classic_count(classes, base, depth, channels, norm, up)


@pytest.mark.parametrize("build", [unet, unet_classic])
def test_every_level_of_a_u_net_gets_what_the_way_down_found_there(build: Callable[..., nn.Module]) -> None:
    model = build(2, base_channels=4, depth=3).eval()
    skips: list[torch.Tensor] = []
    joined: list[torch.Tensor] = []
    for down, up in zip(model.down, model.up, strict=True):
        down.register_forward_hook(lambda module, inputs, output: skips.append(output))
        up.register_forward_hook(lambda module, inputs, output: joined.append(inputs[0]))
    with torch.no_grad():
        model(torch.randn(1, 3, 16, 16))
    assert len(joined) == len(skips) == 3
    for skip, both in zip(skips, reversed(joined), strict=True):
        assert any(torch.equal(half, skip) for half in both.chunk(2, dim=1))


def test_self_attention_moves_with_its_places_but_for_the_encodings() -> None:
    """Without encodings, attention treats the places of a map as a set."""
    torch.manual_seed(0)
    attention = SelfAttention(8, 4, heads=2).double()
    attention.positions.rows.zero_()
    attention.positions.columns.zero_()
    x = torch.randn(2, 8, 4, 4, dtype=torch.float64)
    order = torch.randperm(16)

    def moved(maps: torch.Tensor) -> torch.Tensor:
        return maps.flatten(2)[:, :, order].unflatten(2, (4, 4))

    torch.testing.assert_close(attention(moved(x)), moved(attention(x)))


def test_encodings_tell_every_place_from_every_other() -> None:
    places = Positions(16, 12)(torch.zeros(1, 16, 12, 12)).flatten(2)[0].T
    distance = torch.cdist(places, places) + torch.eye(144)
    assert distance.min() > 0.1


def test_a_skip_is_weighed_between_nothing_and_all() -> None:
    torch.manual_seed(0)
    attention = CrossAttention(8, 8, heads=2)
    skip, below = torch.randn(2, 8, 8, 8), torch.randn(2, 16, 4, 4)
    weight = attention(skip, below) / skip
    assert weight.min() > 0
    assert weight.max() < 1


def test_the_u_transformer_adds_attention_to_the_classic_u_net() -> None:
    with torch.device("meta"):
        model, classic = u_transformer(), unet_classic()
    extra = 3 * 1024**2  # query, key and value at the bottom
    for c in (64, 128, 256, 512):
        extra += c * c + 2 * c * c + c * c + 4 * c * c - c * c  # convolutions, query-key-value
        extra += 3 * 2 * c  # norms
    assert count(model) - count(classic) == extra


IMPORT = """
import sys
import torch
import netsplit.models
assert "torchvision" not in sys.modules
{before}
from netsplit.beside_torchvision import import_torchvision
vision = import_torchvision()
assert vision.models.resnet18
assert vision is import_torchvision()
import torchvision
assert torchvision is vision
print(len(torch._C._jit_get_schemas_for_operator("torchvision::nms")))
"""
AS_IF_COMPILED = """
library = torch.library.Library("torchvision", "DEF")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import netsplit.beside_torchvision as ours
ours._declare = None  # must not be needed
"""


@pytest.mark.parametrize(
    "before",
    [
        pytest.param("", id="as_it_is"),
        pytest.param(AS_IF_COMPILED, id="with_its_operators", marks=pytest.mark.slow),
    ],
)
def test_torchvision_is_imported_late_whether_its_operators_load_or_not(before: str) -> None:
    code = IMPORT.format(before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1"]
