"""A command as a user runs it: its words in, its exit code and what it wrote out."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

__all__ = ["Command", "Ended", "run_command"]


class Ended(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Ended]
"""Takes what is to be called, then the words of its command line, the name first."""


def run_command(
    main: Callable[[], object],
    *words: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Ended:
    monkeypatch.setattr("sys.argv", list(words))
    code = 0
    try:
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    return Ended(code, *capfd.readouterr())
