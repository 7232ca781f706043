"""What holds of the tree of files as a whole, beside the contracts of `make lint`."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import networkx as nx

from tests.docs.page import blocks

ROOT = Path(__file__).resolve().parent.parent
FILES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for top in ("netsplit", "benchmarks", "reproduce", "runners", "hydra_plugins")
    for file in (ROOT / top).rglob("*.py")
}
TREES = {module: ast.parse(file.read_text()) for module, file in FILES.items()}
TESTS = sorted((ROOT / "tests").rglob("*.py"))
SHARE = re.compile(r"(?:^|_)(?i:shares?)(?:_|$)|(?:^|[a-z])Shares?(?:[A-Z]|$)")


def imported(module: str) -> Iterator[str]:
    """Modules of the project that a module imports, at its top or inside functions."""
    for statement in ast.walk(TREES[module]):
        if isinstance(statement, ast.Import):
            yield from (each.name for each in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            base = _base(module, statement.level)
            home = ".".join([*base, *(statement.module or "").split(".")]).strip(".")
            own = module.split(".")[0] == "runners" and home.split(".")[0] == "runners"
            assert bool(statement.level) == own, f"{module} imports {home} by the other kind of name"
            for each in statement.names:
                inner = f"{home}.{each.name}"
                yield inner if inner in FILES else home


def _base(module: str, level: int) -> list[str]:
    """What a relative name begins with: commands have them for one another, as the wheel moves them."""
    parts = module.split(".")
    inner = len(parts) - (0 if FILES[module].name == "__init__.py" else 1)
    return parts[: inner - level + 1] if level else []


def test_no_circle_among_files() -> None:
    """With packages' own files, and benchmarks, which the contract on siblings does not see.

    All but the names of `netsplit` itself, which stand for what is imported when they are first used.
    """
    own = [module for module in FILES if module != "netsplit"]
    arrows = [(module, other) for module in own for other in imported(module) if other in FILES]
    circles = [sorted(each) for each in nx.strongly_connected_components(nx.DiGraph(arrows)) if len(each) > 1]
    assert len(arrows) > 1000
    assert not circles


def test_the_library_imports_itself_at_the_top_of_its_files() -> None:
    """So that a reader sees there what a file stands on; `lazy.py` takes names that are given.

    The command itself is begun with handlers of signals, before it imports anything.
    """
    inside = [
        f"{module}, {function.name}"
        for module, tree in TREES.items()
        if module.startswith("netsplit") and module != "netsplit.__main__"
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in ast.walk(function)
        if "netsplit" in {name.partition(".")[0] for name in _imports(statement)}
    ]
    assert not inside


def _imports(statement: ast.AST) -> Iterator[str]:
    """Modules that a statement names, and the constant first argument of a call of `import_module`."""
    match statement:
        case ast.Import(names=names):
            yield from (each.name for each in names)
        case ast.ImportFrom(module=str(home)):
            yield home
        case ast.Call(func=ast.Name(called) | ast.Attribute(attr=called), args=[ast.Constant(str(home)), *_]):
            yield from (home,) if called == "import_module" else ()


def test_a_class_name_means_one_class() -> None:
    """Private ones too: an underscore does not make another word of it."""
    names = Counter(
        statement.name.lstrip("_")
        for module, tree in TREES.items()
        if module.startswith("netsplit")
        for statement in tree.body
        if isinstance(statement, ast.ClassDef)
    )
    assert not [name for name, count in names.items() if count > 1]


def test_a_public_function_name_means_one_thing() -> None:
    """One of two has the longer name; those left are of one idea, on two kinds of data."""
    names = Counter(
        statement.name
        for module, tree in TREES.items()
        if module.startswith("netsplit")
        for statement in tree.body
        if isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_")
    )
    repeated = {name for name, count in names.items() if count > 1}
    assert repeated <= {"main", "list_schedule", "makespan"}


def test_no_variable_is_called_found() -> None:
    """It says that something is there, not what: a noun does. In tests and in the docs' examples too."""
    texts = {str(file.relative_to(ROOT)): file.read_text() for file in (*FILES.values(), *TESTS)} | {
        f"{page.name}, block {number}": block.text
        for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        for number, block in enumerate(blocks(page.read_text()), 1)
        if block.language == "python"
    }
    trees = {place: ast.parse(text) for place, text in texts.items() if "found" in text}
    named = [
        f"{place}:{name.lineno}"
        for place, tree in trees.items()
        for name in ast.walk(tree)
        if "found" in (getattr(name, "id", None), getattr(name, "arg", None), getattr(name, "attr", None))
    ]
    assert len(texts) > len(FILES) + len(TESTS) > 600
    assert trees
    assert not named


def test_share_means_what_a_device_holds() -> None:
    """`runtime.share.Share` and what works on it; parts of a whole are fractions, and a plan's are loads."""
    allowed = [f"netsplit.runtime.{name}" for name in ("share", "checkpoint.shares", "executor")]
    named = [
        f"{module}:{name.lineno} {word}"
        for module, tree in TREES.items()
        if module not in allowed and "Share" not in _imported_names(tree)
        for name in ast.walk(tree)
        for word in (getattr(name, key, None) for key in ("id", "arg", "attr", "name"))
        if isinstance(word, str) and not isinstance(name, ast.alias) and re.search(SHARE, word)
    ]
    assert sum("Share" in _imported_names(tree) for tree in TREES.values()) > 3
    assert not named


def _imported_names(tree: ast.Module) -> set[str]:
    return {each.name for line in tree.body if isinstance(line, ast.ImportFrom) for each in line.names}
