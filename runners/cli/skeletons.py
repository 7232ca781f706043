"""Files to begin with, for what users add from a folder of their own (docs/extending.md)."""

from __future__ import annotations

import keyword
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from string import Template

import click

from netsplit.errors import ConfigError
from netsplit.files import write_text

from .._entry import CONF

__all__ = ["new"]

_NAME = re.compile(r"(?=.*[a-z])[a-z_][a-z0-9_]*")
TEMPLATES = Path(__file__).parent / "templates"
HOW = {
    "partitioner": "partitioner=[{name},single] model=vgg19_small cluster=titan_rtx3 tracking=none",
    "cluster": "cluster={name} partitioner=[balanced] model=vgg19_small tracking=none",
    "dataset": "dataset={name} model=vgg19_small model.num_classes=2 partitioner=[balanced] "
    "cluster=titan_rtx3 tracking=none",
}


def new(kind: str, name: str) -> None:
    """Write `NAME.py` and `conf/KIND/NAME.yaml` here, and print the command that uses them.

    Of a plugin: the package `NAME/`, which brings its options wherever it is installed.

    Raises:
        ConfigError: a name that Python does not take, or a file that is there already.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"NAME is '{name}': give small letters, digits and _, as in Python module names.")
    if why := _taken(kind, name):
        raise ConfigError(f"NAME is '{name}', {why}: choose another.")
    words = {"name": name, "Name": "".join(part.title() for part in name.split("_")) or name}
    files = _plugin(name) if kind == "plugin" else _files(kind, name)
    for path in files:
        if path.exists():
            raise ConfigError(f"{path} already exists: choose another name, or remove it.")
    for path, template in files.items():
        write_text(path, Template(template).substitute(words))
        click.echo(f"wrote {path}")
    if kind == "plugin":
        click.echo(f"try:  pip install -e {name} && netsplit compare {HOW['partitioner'].format(name=name)}")
    else:
        click.echo(f"try:  netsplit compare --config-dir conf {HOW[kind].format(name=name)}")


def _taken(kind: str, name: str) -> str:
    """Why a name cannot be used; "" if it can."""
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        return "a Python keyword"
    group = "partitioner" if kind == "plugin" else kind
    if (CONF / group / f"{name}.yaml").is_file():
        return f"which NetSplit's own {group} already has"
    here = Path(f"{name}.py").exists() or Path(name).exists()
    if name in sys.stdlib_module_names or (not here and _is_installed(name)):
        return "which would hide an existing module"
    return ""


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):
        return True


def _files(kind: str, name: str) -> dict[Path, str]:
    files = {
        Path("conf", kind, f"{name}.yaml"): TEMPLATES / f"{kind}.yaml.txt",
        Path(f"{name}.py"): TEMPLATES / f"{kind}.py.txt",
    }
    return {path: _read(template) for path, template in files.items() if template.is_file()}


def _plugin(name: str) -> dict[Path, str]:
    """An installable package with a partitioner."""
    package = Path(name, name)
    return {
        Path(name, "pyproject.toml"): _read(TEMPLATES / "plugin.toml.txt"),
        package / "__init__.py": _read(TEMPLATES / "partitioner.py.txt"),
        package / "conf" / "__init__.py": "",
        package / "conf" / "partitioner" / f"{name}.yaml": _read(TEMPLATES / "partitioner.yaml.txt"),
    }


def _read(template: Path) -> str:
    return template.read_text(encoding="utf-8")
