"""Work that makes many small objects, and no circles of them, goes on without Python looking for circles."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["uncollected"]

_lock = threading.Lock()
_inside = 0  # calls that are going on, in all threads
_was_enabled = False


@contextmanager
def uncollected() -> Iterator[None]:
    """Within it, in any thread, the collector of cycles rests; afterwards it is as it was before the first.

    Of a program with hundreds of thousands of instructions, looking at all of them again and again for cycles
    took a third of the time of its verification. For work that ends soon: cycles of others stay so long, too.
    """
    global _inside, _was_enabled
    with _lock:
        if not _inside:
            _was_enabled = gc.isenabled()
            gc.disable()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and _was_enabled:
                gc.enable()
