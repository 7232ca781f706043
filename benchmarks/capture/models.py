"""The models of other people's libraries as cases: all of torchvision, thirty of timm, forty of transformers.

Inputs are as small as each model takes, weights are random, numbers are in double precision. Six of
torchvision would not fit beside their reference in 16 GB: they keep the first blocks of each stage
(`SHALLOWER`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.beside_torchvision import import_torchvision
from tests.models_of_people.cases import Case, Loaded, all_cases

__all__ = ["FAMILIES", "QUICK", "case_of", "names_of"]

FAMILIES = ("torchvision", "timm", "transformers", "people")
CLASSES, SAMPLES = 10, 4
QUICK = {
    "torchvision": ("resnet18", "mobilenet_v3_small", "vit_b_32", "fcn_resnet50", "r3d_18"),
    "timm": ("resnet10t", "vit_tiny_patch16_224", "mobilenetv4_conv_small"),
    "transformers": ("GPT2", "Bert", "T5", "ViT"),
}
SHALLOWER = ("convnext_large", "regnet_y_128gf", "regnet_y_32gf", "vit_h_14", "vit_l_16", "vit_l_32")
KEPT = 3  # blocks of each stage of those
SIDES = {"inception_v3": 299, "vit_b_16": 32, "vit_h_14": 28, "vit_l_16": 32, "s3d": 224}
TIMM = {  # name -> side of the picture
    "resnet10t": 64, "resnetv2_50": 64, "efficientnet_lite0": 64, "mobilenetv3_small_050": 64,
    "mobilenetv4_conv_small": 64, "convnext_atto": 64, "convnextv2_atto": 64, "vit_tiny_patch16_224": 32,
    "deit3_small_patch16_224": 32, "swin_tiny_patch4_window7_224": 56, "mixer_s32_224": 64,
    "gmlp_ti16_224": 32, "resmlp_12_224": 32, "poolformer_s12": 64, "pvt_v2_b0": 64,
    "xcit_nano_12_p16_224": 32, "cait_xxs24_224": 32, "levit_128s": 64,
    "nf_regnet_b0": 64, "regnety_002": 64, "repvgg_a0": 64, "ghostnet_100": 64,
    "hrnet_w18_small": 64, "densenet121": 64, "edgenext_xx_small": 64, "mobilevit_xxs": 64,
    "efficientformer_l1": 224, "fastvit_t8": 64, "focalnet_tiny_srf": 64, "eva02_tiny_patch14_224": 28,
}  # fmt: skip


def names_of(family: str, quick: bool = False) -> list[str]:
    """The models of a family, all or a few."""
    if family == "people":
        return list(all_cases())
    if quick:
        return list(QUICK[family])
    if family == "timm":
        return list(TIMM)
    if family == "torchvision":
        models = import_torchvision().models
        parts = (models, models.segmentation, models.video)
        return [name for part in parts for name in models.list_models(part)]
    from benchmarks.capture.transformers import MODELS

    return list(MODELS)


def case_of(family: str, name: str) -> Case:
    """A model of a library as a case; each operator says whether it draws random numbers."""
    if family == "people":
        return all_cases()[name]
    if family == "transformers":
        from benchmarks.capture.transformers import load

        return Case(name, lambda: load(name), random=None, tolerance=1e-6)  # islands of float32
    loads: dict[str, Callable[[str], Loaded]] = {"torchvision": _of_torchvision, "timm": _of_timm}
    return Case(name, lambda: loads[family](name), random=None)


def _of_torchvision(name: str) -> Loaded:
    models = import_torchvision().models
    side = SIDES.get(name, 64)
    if name in models.list_models(models.segmentation):
        aux = {} if name.startswith("lraspp") else {"aux_loss": True}
        model = models.get_model(name, weights=None, weights_backbone=None, num_classes=CLASSES, **aux)
        return Loaded(model, _all_outputs, _pictures((3, side, side), (side, side)))
    given: dict[str, Any] = {"weights": None, "num_classes": CLASSES}
    if name.startswith("vit_"):
        given["image_size"] = side
    if name in ("googlenet", "inception_v3"):
        given["init_weights"] = False  # minutes of it
    shape: tuple[int, ...] = (3, side, side)
    if name in models.list_models(models.video):
        shape = (3, 16, 224, 224) if name == "s3d" else (3, 4, 32, 32)
    if name == "maxvit_t":
        given["input_size"] = (side, side)
    with _smaller(models):
        model = models.get_model(name, **given)
    if name in SHALLOWER:
        _make_shallower(model)
    model.double()  # some make tables in float32
    return Loaded(model, _all_outputs, _pictures(shape))


@contextmanager
def _smaller(models: Any) -> Iterator[None]:
    """What fixes its input's size inside takes small ones meanwhile."""
    changes = (
        (models.video.mvit, "_mvit", {"spatial_size": (32, 32), "temporal_size": 4}),
        (models.maxvit, "_maxvit", {"partition_size": 2}),
    )
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    for (module, name, given), (_, _, build) in zip(changes, before, strict=True):
        setattr(module, name, lambda *a, _build=build, _given=given, **k: _build(*a, **{**k, **_given}))
    try:
        yield
    finally:
        for module, name, build in before:
            setattr(module, name, build)


def _make_shallower(model: nn.Module) -> None:
    """Keep the first blocks of each stage, which is a sequence of one kind of module that is no sequence."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            kinds = {type(each) for each in child.children()} if isinstance(child, nn.Sequential) else set()
            if len(kinds) == 1 and not issubclass(next(iter(kinds)), nn.Sequential):
                setattr(parent, name, nn.Sequential(OrderedDict(list(child.named_children())[:KEPT])))


def _of_timm(name: str) -> Loaded:
    import_torchvision()  # timm imports it
    import timm

    side = TIMM[name]
    given = {"pretrained": False, "num_classes": CLASSES}
    try:
        model = timm.create_model(name, img_size=side, **given)
    except TypeError:  # it takes pictures of any size
        model = timm.create_model(name, **given)
    return Loaded(model, _all_outputs, _pictures((3, side, side)))


def _all_outputs(outputs: Any, targets: Tensor) -> Tensor:
    """Cross entropy, summed over auxiliary outputs."""
    tensors = outputs.values() if isinstance(outputs, dict) else outputs
    several = tensors if not isinstance(tensors, Tensor) else (tensors,)
    return sum((F.cross_entropy(each, targets) for each in several), torch.zeros(()))


def _pictures(shape: tuple[int, ...], targets: tuple[int, ...] = ()) -> Callable[[int], tuple[Any, Any]]:
    def batch(seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(SAMPLES, *shape, generator=generator)
        return inputs, torch.randint(0, CLASSES, (SAMPLES, *targets), generator=generator)

    return batch
