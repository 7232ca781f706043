"""Models with torchvision's pieces are torchvision's; U-Nets have their published sizes and reach."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn

from netsplit.beside_torchvision import import_torchvision
from netsplit.models import deeplab_v3, googlenet, inception_v3, resnet, unet, unet_classic
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


@pytest.mark.parametrize(("blocks", "widening"), [((3, 4, 6, 3), "none"), ((3, 8, 36, 3), "bottleneck")])
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


IMPORT = """
import sys
import torch
import netsplit.models
assert "torchvision" not in sys.modules
from netsplit.beside_torchvision import import_torchvision
vision = import_torchvision()
assert vision.models.resnet18
assert vision is import_torchvision()
import torchvision
assert torchvision is vision
print(len(torch._C._jit_get_schemas_for_operator("torchvision::nms")))
"""


def test_torchvision_is_imported_late() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1"]
