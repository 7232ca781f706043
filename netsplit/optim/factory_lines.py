"""The line of a user's factory that an error came through."""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path

import torch

__all__ = ["where_of"]

_OTHERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent), "<")


def where_of(error: BaseException) -> str:
    """ " at file:line ('code')" of the innermost that is neither torch's nor NetSplit's; "" without one."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not frame.filename.startswith(_OTHERS)]
    if not users:
        return ""
    place = f"{users[-1].filename}:{users[-1].lineno}"
    code = linecache.getline(users[-1].filename, users[-1].lineno or 0).strip()
    return f" at {place} ('{code}')" if code else f" at {place}"
