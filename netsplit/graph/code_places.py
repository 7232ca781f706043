"""Places and reasons in the words of an error: lines of the user's code, not of torch's or of this room's."""

from __future__ import annotations

import linecache
import sys
from pathlib import Path
from typing import Any

import torch

__all__ = ["frame_of", "is_users", "line_of", "quoted", "user_frame", "where_of"]

_LONGEST = 120  # characters of a line of code that is quoted
_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)
_STEP = str(Path(__file__).parent / "recording" / "step.py")


def quoted(frame: str) -> str:
    """``file:line`` with the code that is there."""
    file, _, line = frame.rpartition(":")
    code = linecache.getline(file, int(line)).strip() if line.isdigit() else ""
    code = code if len(code) <= _LONGEST else f"{code[:_LONGEST]} …"
    return f"{frame} ('{code}')" if code else frame


def where_of(error: BaseException) -> str:
    """ " at file:line ('code')" of the user's innermost line; "" where there is none."""
    frame = frame_of(error)
    return f" at {quoted(frame)}" if frame else ""


def frame_of(error: BaseException) -> str:
    """``file:line`` of the user's innermost line that an error came through."""
    frame, trace = "", error.__traceback__
    while trace is not None:
        if is_users(trace.tb_frame.f_code.co_filename):
            frame = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return frame


def line_of(error: BaseException) -> str:
    """The first line of its message."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__).rstrip(".")


def user_frame() -> str:
    """``file:line`` of the innermost frame that is neither torch's nor of this room; "" where there is none.

    What called the training step is no part of the model: it is not looked at.
    """
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _STEP:
        if is_users(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


_USERS: dict[str, bool] = {}


def is_users(file: str) -> bool:
    """Whether a source file is neither torch's nor of this room."""
    known = _USERS.get(file)
    if known is None:
        known = not file.startswith((_TORCH, _HERE, "<")) and not file.endswith("contextlib.py")
        _USERS[file] = known
    return known
