"""What holds of the tree of files as a whole, beside the contracts of `make lint`."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import networkx as nx

from tests.docs.page import blocks

ROOT = Path(__file__).resolve().parent.parent
FILES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for top in ("netsplit", "benchmarks", "runners", "hydra_plugins")
    for file in (ROOT / top).rglob("*.py")
}


def imported(module: str) -> Iterator[str]:
    """Modules of the project that a module imports, at its top or inside functions."""
    for statement in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(statement, ast.Import):
            yield from (each.name for each in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            assert not statement.level, f"{module} imports by a relative name"
            home = statement.module or ""
            for each in statement.names:
                inner = f"{home}.{each.name}"
                yield inner if inner in FILES else home


def test_no_circle_among_files() -> None:
    """With packages' own files, and benchmarks, which the contract on siblings does not see."""
    arrows = [(module, other) for module in FILES for other in imported(module) if other in FILES]
    circles = [sorted(each) for each in nx.strongly_connected_components(nx.DiGraph(arrows)) if len(each) > 1]
    assert len(arrows) > 1000
    assert not circles


def test_a_class_name_means_one_class() -> None:
    """Private ones too: an underscore does not make another word of it."""
    names = Counter(
        statement.name.lstrip("_")
        for module, file in FILES.items()
        if module.startswith("netsplit")
        for statement in ast.parse(file.read_text()).body
        if isinstance(statement, ast.ClassDef)
    )
    assert not [name for name, count in names.items() if count > 1]


def test_a_folder_has_at_most_fifteen_files() -> None:
    count = Counter(file.parent for file in FILES.values())
    assert not {folder: files for folder, files in count.items() if files > 15}


def test_no_variable_is_called_found() -> None:
    """It says that something is there, not what: a noun does. In the docs' examples too."""
    sources = {module: file.read_text() for module, file in FILES.items()} | {
        f"{page.name}, block {number}": block.text
        for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        for number, block in enumerate(blocks(page.read_text()), 1)
        if block.language == "python"
    }
    named = [
        f"{place}:{name.lineno}"
        for place, source in sources.items()
        for name in ast.walk(ast.parse(source))
        if "found" in (getattr(name, "id", None), getattr(name, "arg", None), getattr(name, "attr", None))
    ]
    assert len(sources) > len(FILES)
    assert not named
