"""Work that makes many small objects, and no circles of them, goes on without Python looking for circles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["uncollected"]


@contextmanager
def uncollected() -> Iterator[None]:
    """Within it the collector of cycles rests; afterwards it is as it was before.

    Of a program with hundreds of thousands of instructions, looking at all of them again and again for cycles
    took a third of the time of its verification. For work that ends soon: cycles of others stay so long, too.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
