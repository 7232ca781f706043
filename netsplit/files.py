"""Files replaced whole or not at all; the path on which workers import what the controller does."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from netsplit.errors import NetSplitError

__all__ = [
    "EXTRA",
    "METADATA",
    "absolute_path",
    "check_replaceable",
    "check_writable",
    "is_complete",
    "parsed_json",
    "plain",
    "shadowing",
    "standard_first",
    "write_atomically",
    "write_json",
    "write_text",
]

EXTRA, METADATA = "netsplit.json", ".metadata"  # a complete checkpoint has both


def is_complete(folder: Path) -> bool:
    """Whether a folder holds a complete checkpoint."""
    return (folder / METADATA).is_file() and (folder / EXTRA).is_file()


def check_replaceable(path: str | Path) -> None:
    """Refuse to replace what is no file: a folder, a device such as /dev/null, a pipe."""
    if os.path.lexists(path) and Path(path).exists() and not Path(path).is_file():
        raise NetSplitError(f"'{path}' is a folder or a device and cannot be replaced: give a file to write.")


def check_writable(path: str | Path) -> None:
    """Refuse a path that cannot be written, before work that may take long."""
    check_replaceable(path)
    nearest = next(parent for parent in Path(path).resolve().parents if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise NetSplitError(f"'{nearest}' is not a folder: give another path.") from error


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then move it there; follows links."""
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
            error.filename, error.filename2 = str(path), None  # not the temporary name
        raise


def write_text(path: str | Path, text: str) -> None:
    write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"))


def parsed_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: not JSON, as `json.JSONDecodeError` where the place is known, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def plain(value: Any) -> Any:
    """A copy with only dict, list, str, int, float, bool and None; configs are resolved."""
    from omegaconf import OmegaConf

    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value, resolve=True)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        value = sorted(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    if hasattr(value, "tolist"):  # arrays and scalars of NumPy and torch
        return value.tolist()
    return value.as_posix() if isinstance(value, Path) else str(value)


def write_json(path: str | Path, record: Any) -> None:
    """Write strict JSON, whole or not at all; non-finite numbers become null."""
    write_text(path, json.dumps(_finite(record), indent=1, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_STANDARD = os.path.dirname(os.__file__)


def absolute_path() -> tuple[str, ...]:
    return tuple(os.path.abspath(entry) for entry in sys.path if isinstance(entry, str))


def standard_first(path: Sequence[str]) -> list[str]:
    """The paths of the standard library, then all others, each in their order."""
    return sorted(path, key=lambda entry: not _is_standard(entry))


def shadowing(path: Sequence[str]) -> dict[str, str]:
    """Names of the standard library -> the file on the path that hides it."""
    files = {}
    for name in sorted(sys.stdlib_module_names - {*sys.builtin_module_names, "test"}):  # many have a `test`
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.has_location and spec.origin and not _is_standard(spec.origin):
            files[name] = spec.origin
    return files


def _is_standard(place: str) -> bool:
    """Whether a path belongs to the standard library, not to packages installed within it."""
    inside = os.path.relpath(place, _STANDARD) if os.path.isabs(place) else os.pardir
    return not inside.startswith((os.pardir, "site-packages", "dist-packages"))
