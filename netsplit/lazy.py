"""What is imported when first used: a package's public names, as torch alone takes seconds, and extras."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from netsplit.errors import NetSplitError

__all__ = ["lazy_names", "of_extra"]


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names, those that it imports ``if TYPE_CHECKING``, are
    imported when first used. None must be that of a module of the package, which Python puts in its place."""
    module = sys.modules[package]
    homes = _under_type_checking(Path(str(module.__file__)))

    def attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(import_module(homes[name]), name)
        setattr(module, name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(module), *homes})

    return attribute, names


def _under_type_checking(file: Path) -> dict[str, str]:
    """Name -> module it is imported from under `TYPE_CHECKING`."""
    return {
        alias.name: str(statement.module)
        for block in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


def of_extra(extra: str, what: str, package: str, *modules: str) -> ModuleType:
    """Import the modules that `what` needs of `package`, which `extra` installs; the first one."""
    try:
        first, *_ = [import_module(module) for module in modules]
    except ModuleNotFoundError as error:
        raise NetSplitError(
            f"{what} needs {package}: `pip install 'netsplit[{extra}]'` brings it."
        ) from error
    return first
