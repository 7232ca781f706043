"""torchvision, also beside a build of torch that its compiled operators do not fit.

torchvision's wheels are compiled for torch with CUDA. Beside torch for CPUs alone their library does not
load, and ``import torchvision``, as Hugging Face's transformers does it, fails for want of two detection
operators. `import netsplit` has them declared just before torchvision is first imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

__all__ = ["import_torchvision", "install"]

SCHEMAS = {
    "torchvision::nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "torchvision::qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


class _BeforeTorchvision(MetaPathFinder):
    """Declares the operators before torchvision is imported; finds no module itself."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            _prepare()
        return None


def install() -> None:
    """Install the import hook; imports nothing."""
    installed = any(isinstance(finder, _BeforeTorchvision) for finder in sys.meta_path)
    if not installed and "torchvision" not in sys.modules:
        sys.meta_path.insert(0, _BeforeTorchvision())


def import_torchvision() -> ModuleType:
    """torchvision with ``models``, ``ops`` and ``transforms``; it takes about a second, so import it late.

    Raises:
        ImportError: torchvision is not installed.
    """
    install()
    return importlib.import_module("torchvision")


def _prepare() -> None:
    import torch

    spec = PathFinder.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    # A failed import leaves modules that would pass for complete.
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    try:
        for library in Path(spec.origin).parent.glob("_C*.so"):
            torch.ops.load_library(str(library))
    except OSError:
        for name, schema in SCHEMAS.items():
            if not torch._C._jit_get_schemas_for_operator(name):
                torch.library.define(name, schema)
