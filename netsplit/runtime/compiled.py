"""Segments compiled by `torch.compile`, where that leaves what they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from netsplit.errors import ConfigError

if TYPE_CHECKING:
    from torch import fx

__all__ = ["COMPILING_S", "check_backend", "compiled_call"]


COMPILING_S = 900.0
"""That a first iteration may take, and devices wait for one another in it, before they count as hung."""


def check_backend(backend: str | None, devices: Iterable[str], autocast: str | None = None) -> None:
    """Check the backend for `devices`, as torch names them, before any worker starts.

    Raises:
        ConfigError: torch has no such backend, it keeps outputs in CUDA graphs, there is an `autocast`, or no
            C++ compiler for CPUs.
    """
    if backend is None:
        return
    from torch._dynamo import list_backends

    known = list_backends(exclude_tags=())
    if backend not in known:
        usual = [each for each in known if "TESTING" not in each and "minifier" not in each]
        raise ConfigError(
            f"compile_backend is {backend!r}, which torch.compile does not know: choose one of "
            f"{', '.join(usual)}."
        )
    if backend == "cudagraphs":
        raise ConfigError(
            "compile_backend is 'cudagraphs', which reuses one output buffer for every call, so "
            "micro-batches would overwrite each other: use 'inductor'."
        )
    if autocast is not None:
        raise ConfigError("compile_backend and autocast cannot be combined: leave one of them out.")
    if backend == "inductor" and any(each.startswith("cpu") for each in devices):
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            get_cpp_compiler()
        except Exception as error:
            raise ConfigError(
                "compile_backend is 'inductor', which needs a C++ compiler on CPUs, and none was found: "
                "install one, or use 'aot_eager'."
            ) from error


def compiled_call(
    module: fx.GraphModule, backend: str, drawing: Iterable[fx.Node] = ()
) -> Callable[..., Any]:
    """A rebuilt module's call, compiled when it is first called, for the shapes it is called with.

    In this process, without helpers: a worker has one thread, and others wait for it.

    Args:
        drawing: its calls that draw: what is compiled ends before each and begins anew after it, so that
            torch's own kernels draw by the seeds that the iteration gives them.
    """
    import torch

    for call in drawing:
        call.target = torch.compiler.disable(call.target)
    module.recompile()

    if backend == "inductor":
        import torch._inductor.config as settings

        settings.compile_threads = 1
    return torch.compile(module, backend=backend, fullgraph=False, dynamic=False)
