"""Functions compiled by numba."""

from __future__ import annotations

from typing import Any

from numba import njit

__all__ = ["compiled"]

compiled: Any = njit(cache=True, nogil=True)
"""Compiled at the first call, kept on disk, and run without the interpreter's lock."""
