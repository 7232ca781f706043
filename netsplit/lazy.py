"""What is imported when first used: a package's public names, as torch alone takes seconds, and extras."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from netsplit.errors import NetSplitError

__all__ = ["imports_of", "of_extra"]


def imports_of(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        homes: public name -> the module that has it, within `package`.
    """

    def attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return attribute


def of_extra(extra: str, what: str, package: str, *modules: str) -> ModuleType:
    """The first of the modules, all of them imported.

    Args:
        extra: of `netsplit` that installs them.
        what: needs them, as a sentence begins.
        package: that has them, as it is called where packages are installed from.

    Raises:
        NetSplitError: they are not installed.
    """
    try:
        first, *_ = [import_module(module) for module in modules]
    except ModuleNotFoundError as error:
        raise NetSplitError(
            f"{what} needs {package}: `pip install 'netsplit[{extra}]'` brings it."
        ) from error
    return first
