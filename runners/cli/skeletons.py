"""Files to begin with, for what users add from a folder of their own (docs/extending.md)."""

from __future__ import annotations

from pathlib import Path
from string import Template

import click

from netsplit.errors import ConfigError
from netsplit.files import write_text

__all__ = ["new"]

TEMPLATES = Path(__file__).parent / "templates"
HOW = {
    "partitioner": "partitioner=[{name},single] model=vgg19_small cluster=titan_rtx3 tracking=none",
    "cluster": "cluster={name} partitioner=[balanced] model=vgg19_small tracking=none",
    "dataset": "dataset={name} model=vgg19_small model.num_classes=2 partitioner=[balanced] "
    "cluster=titan_rtx3 tracking=none",
}


def new(kind: str, name: str) -> None:
    """Write `NAME.py` and `conf/KIND/NAME.yaml` here, and print the command that uses them.

    Raises:
        ConfigError: a name that Python does not take, or a file that is there already.
    """
    if not name.isidentifier() or not name.islower():
        raise ConfigError(f"NAME is '{name}': give small letters, digits and _, as Python names modules.")
    words = {"name": name, "Name": "".join(part.title() for part in name.split("_")) or name}
    files = {
        Path("conf", kind, f"{name}.yaml"): TEMPLATES / f"{kind}.yaml.txt",
        Path(f"{name}.py"): TEMPLATES / f"{kind}.py.txt",
    }
    files = {path: template for path, template in files.items() if template.is_file()}
    for path in files:
        if path.exists():
            raise ConfigError(f"{path} is there already: choose another name, or remove it.")
    for path, template in files.items():
        write_text(path, Template(template.read_text(encoding="utf-8")).substitute(words))
        click.echo(f"wrote {path}")
    click.echo(f"try:  netsplit compare --config-dir conf {HOW[kind].format(name=name)}")
