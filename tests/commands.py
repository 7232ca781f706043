"""A command as a user runs it: its words in, its exit code and what it wrote out."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from hydra._internal.hydra import Hydra

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
    # Hydra composes every config twice, first to see whether it sets this, which none of `conf/` does.
    if not any(word.startswith("hydra.mode") for word in words):
        monkeypatch.setattr(Hydra, "get_mode", lambda *_, **__: None)
    code = 0
    try:
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    return Ended(code, *capfd.readouterr())
