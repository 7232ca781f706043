"""Hashes of texts: every Python process has others, so code that runs on workers must not go by them."""

from __future__ import annotations

import os
from types import FunctionType

from netsplit.errors import CaptureError
from netsplit.graph.ir import Graph
from netsplit.graph.recording.whole import FunctionCall, ModuleCall
from netsplit.graph.surroundings.reach import is_own_file, names_in, within

__all__ = ["refuse_hashes"]


def refuse_hashes(name: str, graph: Graph) -> None:
    """Refuse code that stays whole and calls ``hash``; what is captured has called it here, once and for all.

    Raises:
        CaptureError: names the function and its line.
    """
    if os.environ.get("PYTHONHASHSEED", "random") != "random":
        return  # workers have the same
    roots = [
        call.module if isinstance(call, ModuleCall) else call.function
        for call in graph.calls.values()
        if isinstance(call, ModuleCall | FunctionCall)
    ]
    for _, value in within(("", root) for root in roots):
        if not isinstance(value, FunctionType) or not is_own_file(value.__code__.co_filename):
            continue
        code = value.__code__
        if "hash" in names_in(code) and "hash" not in value.__globals__:
            raise CaptureError(
                f"{name} has code that stays whole and calls hash() ({value.__name__}, {code.co_filename}:"
                f"{code.co_firstlineno}), for texts another number in every process: take zlib.crc32 "
                f"of the text, or set PYTHONHASHSEED before Python starts."
            )
