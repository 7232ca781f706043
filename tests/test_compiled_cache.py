"""Compiled functions where nothing can be written beside the package or at home."""

import logging
from pathlib import Path
from typing import Any

import pytest
from numba import njit

from netsplit import compiled


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
