"""Cases that do not come out yet as their files say, with what comes of them instead."""

from __future__ import annotations

__all__ = ["KNOWN"]

KNOWN: dict[str, str] = {}
