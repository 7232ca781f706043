"""What README and `docs/` import and name is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

from netsplit.errors import NetSplitError
from tests.docs.page import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DOTTED = re.compile(r"\bnetsplit(?:\.\w+)+(?![\w/])(?<!\.json)")
PATH = re.compile(r"(?<![\w/.<-])(?:netsplit|runners|benchmarks|tests|examples|hydra_plugins)/[\w./]*\w")
IMPORT = re.compile(r"^from netsplit[\w.]* import (?:\([^)]*\)|.+)$", re.MULTILINE)


def names_of(page: Path) -> set[str]:
    """Dotted names of all that a page imports from NetSplit or names in full."""
    text = page.read_text(encoding="utf-8")
    names = set(DOTTED.findall(text))
    for line in IMPORT.findall(text):
        (statement,) = ast.parse(line.strip()).body
        assert isinstance(statement, ast.ImportFrom)
        names |= {f"{statement.module}.{alias.name}" for alias in statement.names}
    return names


def resolves(name: str) -> bool:
    """Whether it is a module, or something in one; skips where that needs an extra that is not installed."""
    try:
        resolve_name(name)
    except NetSplitError as error:
        pytest.skip(str(error))
    except (AttributeError, ImportError):
        return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_name_of_a_page_is_there(page: Path) -> None:
    for name in sorted(names_of(page)):
        assert resolves(name), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_path_of_a_page_is_there(page: Path) -> None:
    for path in sorted(set(PATH.findall(page.read_text(encoding="utf-8")))):
        assert (ROOT / path).exists(), path
