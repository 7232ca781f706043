"""Functions compiled by numba, kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

__all__ = ["compiled", "inlined", "inner"]

_NOT_FROM_PYTHON: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def compiled(function: Callable[..., Any]) -> Any:
    """Compiled at the first call, kept on disk, and run without the interpreter's lock."""
    return _kept(function)


def inner(function: Callable[..., Any]) -> Any:
    """For what compiled functions alone call: nothing is compiled for calls from Python."""
    return _kept(function, **_NOT_FROM_PYTHON)


def inlined(function: Callable[..., Any]) -> Any:
    """As `inner`, for what makes no arrays: counting references to those of its tuples would take as long.

    The caller counts them.
    """
    return _kept(function, forceinline=True, _nrt=False, **_NOT_FROM_PYTHON)


def _kept(function: Callable[..., Any], **options: Any) -> Any:
    dispatcher = njit(cache=True, nogil=True, **options)(function)
    file = dispatcher._cache._cache_file
    load = file._load_index

    def load_index() -> Any:
        # The index on disk names the classes of arguments: of an older version of this package perhaps
        # classes that are gone, and numba compares versions of the source only after it has read them.
        try:
            return load()
        except (AttributeError, ImportError):
            return {}

    file._load_index = load_index
    return dispatcher
