"""torchvision, also beside a build of torch that its compiled operators do not fit.

torchvision's wheels are compiled for torch with CUDA. Beside torch for CPUs alone their library does
not load, and then ``import torchvision`` fails, because it describes two detection operators which that
library would have declared. No model here uses them: declaring them is all that is missing. Where
the library loads, nothing is declared and nothing is different.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from types import ModuleType

import torch

__all__ = ["import_torchvision"]

SCHEMAS = {
    "torchvision::nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "torchvision::qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


@cache
def import_torchvision() -> ModuleType:
    """The package with ``models``, ``ops`` and ``transforms``; it takes about a second, so call it late.

    Raises:
        ImportError: torchvision is not installed.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    _declare()
    # What the failed import left behind would be taken for whole.
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    return importlib.import_module("torchvision")


def _declare() -> None:
    for name, schema in SCHEMAS.items():
        if not torch._C._jit_get_schemas_for_operator(name):
            torch.library.define(name, schema)
