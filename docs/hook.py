"""What `make docs` adds to the pages of `docs/`: README and changes as pages, and a reference from the code.

mkdocs calls the functions by their names (https://www.mkdocs.org/user-guide/configuration/#hooks).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml
from mkdocs.structure.files import File, Files

from netsplit import __all__ as names
from netsplit import errors, integrations, training
from netsplit.runners.cli.command import RUNNERS, netsplit

ROOT = Path(__file__).resolve().parent.parent
FIRST = ("parallelize", "ParallelModel")  # what most readers look for
WHOLE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
PARTS = {
    "partition": ("Partitioner", "Problem", "Choice"),
    "rewrite": ("Split", "ReadWeights", "applied", "split_axes"),
    "program.schedules": ("Schedule", "Pipeline"),
    "cluster.described": ("described_cluster", "DescribedDevice", "DescribedLink", "LinkCost"),
    "data": ("Data",),
    "report": ("read_report", "write_report"),
    "tracking": ("Tracker",),
}
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")
PICTURE = re.compile(r"!\[([^\]]*)\]\(docs/")
FIRST_KEY = re.compile(r"^[a-z_@]", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    for source, page in WHOLE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for name, content in reference():
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to what is in the repository and no page of the site become its name."""
    home = ROOT if page.file.src_uri in WHOLE.values() else ROOT / "docs"
    if page.file.src_uri.startswith("reference/"):
        return markdown

    def of_site(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        place = (home / target).resolve()
        whole = WHOLE.get(place.relative_to(ROOT).as_posix()) if place.is_relative_to(ROOT) else None
        if whole is not None:
            return f"[{text}]({whole}{anchor})"
        if place.is_relative_to(ROOT / "docs") and place.is_file():
            return f"[{text}]({place.relative_to(ROOT / 'docs').as_posix()}{anchor})"
        return text

    return PICTURE.sub(r"![\1](", LINK.sub(of_site, markdown))


def reference() -> Iterator[tuple[str, str]]:
    """Names of pages below `reference/`, and their Markdown."""
    others = (name for name in names if name not in (*FIRST, *errors.__all__))
    own = (*FIRST, *others)
    yield "netsplit", _objects("The package netsplit", {"netsplit": own})
    yield "training", _objects("Training", {"netsplit.training": tuple(training.__all__)})
    yield "integrations", _objects("Integrations", {"netsplit.integrations": tuple(integrations.__all__)})
    yield "errors", _objects("Errors", {"netsplit.errors": tuple(errors.__all__)})
    yield "parts", _objects("Parts to build with", {f"netsplit.{room}": each for room, each in PARTS.items()})
    yield "command", _command()
    yield "configuration", _configuration()


def _objects(title: str, members: dict[str, tuple[str, ...]]) -> str:
    lines = [f"# {title}"]
    for room, each in members.items():
        homes = _homes(room)
        for name in each:
            place = ".".join(filter(None, (room, homes.get(name), name)))
            lines.append(f"::: {place}\n    options:\n      heading: {room}.{name}\n      toc_label: {name}")
    return "\n\n".join(lines)


def _homes(room: str) -> dict[str, str]:
    """Name -> the module that has it, of a package that imports when asked: what reads sources cannot ask."""
    file = ROOT.joinpath(*room.split("."), "__init__.py")
    tree = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module([], [])
    tables = [each for each in ast.walk(tree) if isinstance(each, ast.Dict)]
    return {key: value for table in tables for key, value in ast.literal_eval(table).items()}


def _command() -> str:
    """`--help` of every command that click knows; those of Hydra list groups, which the next page has."""
    with click.Context(netsplit, info_name="netsplit") as above:
        parts = ["# The command netsplit", f"```text\n{netsplit.get_help(above)}\n```"]
        for name, command in netsplit.commands.items():
            parts.append(f"## netsplit {name}")
            if name in RUNNERS:
                keys = "Takes Hydra's overrides: the keys are in [Configuration](configuration.md)."
                parts.append(f"{RUNNERS[name]} {keys}")
            else:
                with click.Context(command, info_name=f"netsplit {name}") as context:
                    parts.append(f"```text\n{command.get_help(context)}\n```")
    return "\n\n".join(parts)


def _configuration() -> str:
    """The files of `conf/` as they are: every key has its explanation beside it."""
    conf = ROOT / "conf"
    parts = [
        "# Configuration",
        "Any key can be set on the command line, `key=value`, and any group's option chosen, `group=option`.",
    ]
    for path in sorted(conf.glob("*.yaml")):
        parts += [f"## {path.stem}.yaml", f"```yaml\n{path.read_text(encoding='utf-8')}```"]
    for group in sorted(path for path in conf.iterdir() if path.is_dir() and path.name != "hydra"):
        parts.append(f"## {group.name}=")
        for path in sorted(group.glob("*.yaml")):
            text = path.read_text(encoding="utf-8")
            assert yaml.safe_load(text) is None or FIRST_KEY.search(text)
            parts += [f"### {group.name}={path.stem}", f"```yaml\n{text}```"]
    return "\n\n".join(parts)
