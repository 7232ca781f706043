"""Compiled functions: where nothing can be written beside the package or at home, and under Ctrl-C."""

import logging
import os
import signal
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import njit

from netsplit import compiled


def _twice(x: int) -> int:
    return 2 * x


class _Row(NamedTuple):
    numbers: compiled.Floats


def _long(row: _Row) -> tuple[compiled.Floats, float]:
    x = row.numbers[0]
    for k in range(30_000_000):
        x = 0.5 * x + k
    return row.numbers + x, x


def test_ctrl_c_within_one_is_a_keyboard_interrupt() -> None:
    function = compiled.compiled(_long)
    row = _Row(np.ones(1))
    function(row)
    pressed = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT))
    pressed.start()
    with pytest.raises(KeyboardInterrupt):
        function(row)
    pressed.join()


def test_where_nothing_can_be_kept_they_compute_all_the_same_and_leave_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A folder for all to write to would have a name that others know, and what lies there is unpickled."""

    def refused(cache: bool = False, **options: Any) -> Any:
        """As numba, where it finds no place for its cache."""
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return njit(**options)

    assert njit(_twice)(4) == 8  # numba loads the rest of itself at its first use
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("numba.njit", refused)
    compiled._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, logger="netsplit"):
        made = [kind(_twice) for kind in (compiled.compiled, compiled.compiled)]
    assert [function(4) for function in made] == [8, 8]
    assert caplog.text.count("Compiling anew in every process") == 1
    assert not list(tmp_path.iterdir())
