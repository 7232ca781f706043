"""Files replaced whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from netsplit.errors import NetSplitError

__all__ = ["check_replaceable", "write_atomically", "write_text"]


def check_replaceable(path: str | Path) -> None:
    """Refuse what is there and is no file: a folder, a device such as /dev/null, a pipe.

    Raises:
        NetSplitError: it is one.
    """
    if os.path.lexists(path) and Path(path).exists() and not Path(path).is_file():
        raise NetSplitError(f"'{path}' is a folder or a device and cannot be replaced: give a file to write.")


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in its place; links are followed.

    Raises:
        NetSplitError: `path` is there and is no file.
        OSError: as from writing `path` itself, whose name it has.
    """
    check_replaceable(path)
    target = Path(path).resolve()
    start = f".{target.name}."
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=start, suffix=target.suffix)
        os.close(handle)
        temporary = Path(name)
        try:
            write(temporary)
            temporary.chmod(0o644)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        if error.filename is None or Path(os.fsdecode(error.filename)).name.startswith(start):
            error.filename, error.filename2 = str(path), None  # not the temporary one, which no one knows
        raise


def write_text(path: str | Path, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"))
