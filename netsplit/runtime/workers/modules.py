"""Workers import the modules that the controller imports, whatever files lie in the folder they start in.

sys.path ──standard library first──► the agent, which loads torch
         └─as it is────────────────► a worker, once torch is loaded there
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from types import ModuleType

__all__ = ["ModulesSeen", "shadowing", "standard_first"]

_STANDARD = os.path.dirname(os.__file__)


@dataclass(frozen=True)
class ModulesSeen:
    """What a process imports from.

    Args:
        path: its `sys.path`, absolute.
        others: modules that it has, or would find, under names of the standard library, and that are not the
            standard library's.
    """

    path: tuple[str, ...]
    others: tuple[str, ...]

    @classmethod
    def here(cls) -> ModulesSeen:
        """The modules of this process."""
        path = tuple(os.path.abspath(entry) for entry in sys.path if isinstance(entry, str))
        return cls(path, tuple(shadowing(path, sys.modules)))

    def take_over(self) -> None:
        """Import from the same in this process, in the same order."""
        sys.path[:] = self.path
        for name in self.others:
            for loaded in [each for each in sys.modules if each == name or each.startswith(f"{name}.")]:
                del sys.modules[loaded]


def standard_first(path: Sequence[str]) -> list[str]:
    """The entries of the standard library, then the others, both in their order."""
    return sorted(path, key=lambda entry: not _is_standard(entry))


def shadowing(path: Sequence[str], loaded: Mapping[str, ModuleType] | None = None) -> dict[str, str]:
    """Names of the standard library -> the file that stands before its own.

    Args:
        path: searched for modules that are not `loaded`.
    """
    files = {}
    for name in sorted(sys.stdlib_module_names - {*sys.builtin_module_names, "test"}):  # many have a `test`
        if loaded is not None and name in loaded:
            file = getattr(loaded[name], "__file__", None)
        else:
            spec = PathFinder.find_spec(name, path)
            file = spec.origin if spec is not None and spec.has_location else None
        if file is not None and not _is_standard(file):
            files[name] = file
    return files


def _is_standard(place: str) -> bool:
    """Whether a file or a folder is the standard library's: not so what is installed within its folder."""
    inside = os.path.relpath(place, _STANDARD) if os.path.isabs(place) else os.pardir
    return not inside.startswith((os.pardir, "site-packages", "dist-packages"))
