"""Functions compiled by numba."""

from __future__ import annotations

from typing import Any

from numba import njit

__all__ = ["compiled", "inlined", "inner"]

_NOT_FROM_PYTHON: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

compiled: Any = njit(cache=True, nogil=True)
"""Compiled at the first call, kept on disk, and run without the interpreter's lock."""

inner: Any = njit(cache=True, nogil=True, **_NOT_FROM_PYTHON)
"""For what compiled functions alone call: nothing is compiled for calls from Python."""

inlined: Any = njit(cache=True, nogil=True, forceinline=True, **_NOT_FROM_PYTHON)
"""As `inner`, for small work in every turn of a loop: passing tuples of arrays on would take as long."""
