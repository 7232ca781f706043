"""Whether a checkpoint is whole, and its files what was written: torch's own reader takes a flipped bit for a
number.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from netsplit.errors import NetSplitError
from netsplit.files import parsed_json

__all__ = ["CHECKSUMS", "EXTRA", "METADATA", "checksums_of", "is_complete", "require_unharmed"]

CHECKSUMS = "checksums.json"
EXTRA = "netsplit.json"
METADATA = ".metadata"
_CHUNK = 2**24  # bytes
_AT_ONCE = 4  # files: zlib leaves Python's lock


def is_complete(folder: Path) -> bool:
    """Whether a folder holds a whole checkpoint of ours."""
    return (folder / METADATA).is_file() and (folder / EXTRA).is_file()


def checksums_of(folder: Path, names: Iterable[str]) -> str:
    """JSON of the CRC-32 of files of `folder`, by name."""
    names = sorted(names)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return json.dumps(
            dict(zip(names, pool.map(_checksum, (folder / name for name in names)), strict=True))
        )


def require_unharmed(folder: Path) -> None:
    """Compare all files with what was noted of them; of a checkpoint of an earlier version nothing was.

    Raises:
        NetSplitError: one is another now, or gone.
    """
    noted = folder / CHECKSUMS
    if not noted.is_file():
        return
    try:
        expected = parsed_json(noted.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        expected = None
    if not isinstance(expected, dict):
        raise NetSplitError(f"checkpoint '{folder}' cannot be read: its {CHECKSUMS} is no list of checksums.")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        now = pool.map(_checksum, (folder / str(name) for name in expected))
        for name, before, after in zip(expected, expected.values(), now, strict=True):
            if after != before:
                what = "is not there any more" if after is None else "is not what was written"
                raise NetSplitError(
                    f"checkpoint '{folder}' is damaged: its {name} {what}; take an earlier checkpoint."
                )


def _checksum(path: Path) -> int | None:
    value = 0
    try:
        with path.open("rb") as file:
            while part := file.read(_CHUNK):
                value = zlib.crc32(part, value)
    except OSError:
        return None
    return value
