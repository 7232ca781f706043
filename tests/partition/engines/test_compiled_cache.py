"""Compiled functions where nothing can be written beside the package or at home."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba import njit

from netsplit.partition.engines import compiled


def _twice(x: int) -> int:
    return 2 * x


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
    compiled._say_that_nothing_is_kept.cache_clear()
    with caplog.at_level(logging.WARNING, logger="netsplit"):
        made = [kind(_twice) for kind in (compiled.compiled, compiled.compiled)]
    assert [function(4) for function in made] == [8, 8]
    assert caplog.text.count("compiled anew each time") == 1
    assert not list(tmp_path.iterdir())


def test_what_is_compiled_first_is_said_once_and_not_of_other_packages(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others' functions are none of ours, and a second of ours is not the first."""
    compiled._listen()
    compiled._say_that_it_compiles.cache_clear()
    assert njit(lambda x: 3 * x)(4) == 12
    assert not caplog.records
    monkeypatch.setattr(_twice, "__module__", f"{compiled.__name__}.made")
    functions = [njit(_twice), njit(_twice)]
    assert [function(4) for function in functions for _ in range(2)] == [8] * 4
    (said,) = caplog.messages
    assert "Compiling the search" in said


@pytest.mark.slow
def test_a_second_process_loads_what_the_first_compiled_and_says_nothing(tmp_path: Path) -> None:
    words = "from netsplit.partition.engines.search import load_kernels; load_kernels()"
    said = [
        subprocess.run(
            [sys.executable, "-c", words],
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        ).stderr
        for _ in range(2)
    ]
    assert said[0].count("Compiling the search") == 1
    assert said[1] == ""
