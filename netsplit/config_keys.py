"""Keys of config nodes, as the command line has them."""

from __future__ import annotations

import re

__all__ = ["PARTIAL", "TARGET", "key_as_given"]

TARGET = "_target_"
PARTIAL = "_partial_"


def key_as_given(key: str) -> str:
    """A full key as the command line has it: `cluster.devices[0]` is `cluster.devices.0` there."""
    return re.sub(r"\[(\d+)\]", r".\1", key)
