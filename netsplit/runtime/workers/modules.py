"""Workers import what the controller imports, whatever files lie in the folder they start in.

sys.path ──standard library first──► the agent, which loads torch
         └─as it is────────────────► a worker, once torch is loaded there
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder

__all__ = ["absolute_path", "shadowing", "standard_first"]

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
