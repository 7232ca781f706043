"""Functions compiled by numba, kept on disk.

Arrays are copied by loops in them: numba compiles for an assignment of a slice the text of its error too,
which took a tenth of all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import event

__all__ = ["compiled", "inlined", "inner"]

log = logging.getLogger(__name__)

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


@cache
def _stamp() -> tuple[tuple[str, float, int], ...]:
    """Of all files with compiled functions."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    own = (file for file in files if "engines.compiled import" in file.read_text(encoding="utf-8"))
    return tuple((str(file), (stat := file.stat()).st_mtime, stat.st_size) for file in own)


@cache
def _say_that_nothing_is_kept() -> None:
    log.warning("compiled anew each time, as nothing can be kept: NUMBA_CACHE_DIR may name a folder.")


@cache
def _say_that_it_compiles() -> None:
    """To a user of Python too, who set up no log: nothing else is seen meanwhile."""
    log.warning("Compiling the search: up to a minute, once per installation.")


class _FirstCompiled(event.Listener):
    """Hears of what numba compiles, and not of what it finds on disk."""

    def on_start(self, event: event.Event) -> None:
        if event.data["dispatcher"].py_func.__module__.startswith(f"{__package__.partition('.')[0]}."):
            _say_that_it_compiles()

    def on_end(self, event: event.Event) -> None:
        pass


event.register("numba:compile", _FirstCompiled())


def _kept(function: Callable[..., Any], **options: Any) -> Any:
    try:
        dispatcher = njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:
        # Neither beside the package nor in the user's own folders can numba write. A folder elsewhere would
        # have a name that others know, and what lies there is unpickled.
        _say_that_nothing_is_kept()
        return njit(nogil=True, **options)(function)
    file = dispatcher._cache._cache_file
    file._source_stamp = _stamp()  # numba's own is of one file, and knows no change of what it calls
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
