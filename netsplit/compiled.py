"""Functions compiled by numba, kept on disk.

Arrays are copied by loops in them: numba compiles for an assignment of a slice the text of its error too,
which took a tenth of all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Compiled", "Floats", "Ints", "Packed", "compiled", "inlined", "inner", "packed_rows"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Packed: TypeAlias = Ints
"""Rows of indices in one array: row i is ``p[p[i] : p[i + 1]]``, of ``p[0] - 1`` rows."""

log = logging.getLogger(__name__)


def packed_rows(rows: Sequence[Sequence[int]]) -> Packed:
    starts = accumulate(map(len, rows), initial=len(rows) + 1)
    return np.array([*starts, *(i for row in rows for i in row)], np.int64)


_NOT_FROM_PYTHON: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class Compiled:
    """A function that numba compiles at its first call, as importing numba takes half a second.

    Args:
        options: of `numba.njit`.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.function, self.options = function, options
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self.dispatcher(*arguments)
        except SystemError as error:
            # numba's error when a signal comes during the call
            cause: BaseException | None = error
            while isinstance(cause, SystemError):
                cause = cause.__cause__
            if cause is None:
                raise
            raise cause from None

    @cached_property
    def dispatcher(self) -> Any:
        return _kept(self.function, **self.options)

    @property
    def _numba_type_(self) -> Any:
        """The type that numba sees where a compiled function calls this one."""
        return self.dispatcher._numba_type_


def compiled(function: Callable[..., Any]) -> Compiled:
    """Compiled at the first call, kept on disk, run without the interpreter's lock; returns no NamedTuple, in
    whose class's call Ctrl-C would end the process."""
    return Compiled(function)


def inner(function: Callable[..., Any]) -> Compiled:
    """For functions that only compiled functions call: not callable from Python."""
    return Compiled(function, **_NOT_FROM_PYTHON)


def inlined(function: Callable[..., Any]) -> Compiled:
    """As `inner`, for functions that make no arrays."""
    return Compiled(function, forceinline=True, _nrt=False, **_NOT_FROM_PYTHON)


@cache
def _stamp() -> tuple[tuple[str, float, int], ...]:
    rooms = (Path(__file__).parent / room for room in ("partition", "simulate"))
    files = sorted(file for room in rooms for file in room.rglob("*.py"))
    own = (file for file in files if "netsplit.compiled import" in file.read_text(encoding="utf-8"))
    return tuple((str(file), (stat := file.stat()).st_mtime, stat.st_size) for file in own)


@cache
def _warn_once(words: str) -> None:
    """Warn users without a log, as compiling takes long."""
    log.warning(words)


@cache
def _listen() -> None:
    """Notice when numba compiles rather than loads from disk."""
    from numba.core import event

    class FirstCompiled(event.Listener):
        def on_start(self, event: event.Event) -> None:
            if event.data["dispatcher"].py_func.__module__.startswith(f"{__package__.partition('.')[0]}."):
                _warn_once("Compiling the simulator and the search: up to a minute, once per installation.")

        def on_end(self, event: event.Event) -> None:
            pass

    event.register("numba:compile", FirstCompiled())


def _kept(function: Callable[..., Any], **options: Any) -> Any:
    from numba import njit

    _listen()
    try:
        dispatcher = njit(cache=True, nogil=True, **options)(function)
    except RuntimeError:
        # Neither beside the package nor in the user's own folders can numba write. A folder elsewhere would
        # have a name that others know, and what lies there is unpickled.
        _warn_once(
            "Compiling anew in every process, as no cache folder is writable: name one in NUMBA_CACHE_DIR."
        )
        return njit(nogil=True, **options)(function)
    file = dispatcher._cache._cache_file
    file._source_stamp = _stamp()  # numba's own covers one file, without what it calls
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
