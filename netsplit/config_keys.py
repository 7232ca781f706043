"""Keys of config nodes: as the command line has them, and which of those a config leaves out there are."""

from __future__ import annotations

import re
from typing import Any

from omegaconf import DictConfig

from netsplit.errors import ConfigError
from netsplit.signature import locate, signature_of

__all__ = ["PARTIAL", "TARGET", "is_left_out", "key_as_given"]

TARGET = "_target_"
PARTIAL = "_partial_"


def is_left_out(config: DictConfig, key: str) -> bool:
    """Whether a key that a node leaves out is a parameter of its target, or of what an entry of one is."""
    path: list[str] = []
    node: Any = config
    while node is not None and not (isinstance(node, DictConfig) and TARGET in node):
        if isinstance(node._key(), str):  # not the place in a list
            path.append(node._key())
        node = node._get_parent()
    if node is None:
        return False
    try:
        signature = signature_of(locate(str(node[TARGET])), str(node[TARGET]))
    except ConfigError:
        return False
    for name in reversed(path):
        if name not in signature or (kind := signature[name].item) is None:
            return False
        signature = signature_of(kind, kind.__name__)
    return key in signature


def key_as_given(key: str) -> str:
    """A full key as the command line has it: `cluster.devices[0]` is `cluster.devices.0` there."""
    return re.sub(r"\[(\d+)\]", r".\1", key)
