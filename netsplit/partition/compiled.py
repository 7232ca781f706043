"""Functions compiled by numba, for modules that are imported lazily: numba takes a second to load."""

from typing import Any

from numba import njit

__all__ = ["compiled"]

compiled: Any = njit(cache=True, nogil=True)
"""Compiled at the first call, kept on disk, and run without the interpreter's lock."""
