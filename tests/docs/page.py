"""Pages as their readers follow them: the files and the commands of a section, word for word."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["PAGES", "ROOT", "Block", "blocks", "commands_of", "follow", "sections"]

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
BLOCK = re.compile(r"^( *)(`{3,}|~{3,})([^\n]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"(?:# @package .+\n)?# (\S+\.(?:py|yaml))\n")


class Block(NamedTuple):
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """Where the reader saves it: the path on its first line, which Hydra's own comes before."""
        match = FILE.match(self.text)
        return match and match[1]


def sections(page: str) -> dict[str, str]:
    """Heading -> what stands below it."""
    _, *parts = SECTION.split((ROOT / "docs" / page).read_text(encoding="utf-8"))
    return dict(zip(parts[::2], parts[1::2], strict=True))


def blocks(text: str) -> list[Block]:
    """All that stands between fences, those within lists too; the language is what follows the fence."""
    return [Block(match[3].strip(), textwrap.dedent(match[4])) for match in BLOCK.finditer(text)]


def commands_of(text: str) -> Iterator[str]:
    """Lines of a block of commands, those put together that a backslash parts; no empty ones, no remarks."""
    for line in text.replace("\\\n", " ").splitlines():
        if shlex.split(line, comments=True):
            yield line.strip()


def follow(section: str, folder: Path, limit_s: float = 280) -> str:
    """Save all files of a section in a folder, run its commands there; answers what they printed.

    Blocks of text are what the commands print.
    """
    shell = ""
    for block in blocks(section):
        if block.file is not None:
            place = folder / block.file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(block.text, encoding="utf-8")
        elif block.language != "text":
            assert block.language == "bash", f"neither a file nor a command: {block.text}"
            shell += block.text
    # A checkout's Python may have no `netsplit` beside it, and may have an older one.
    shell = f'netsplit() {{ "{sys.executable}" -m netsplit "$@"; }}\n{shell}'
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", shell],
        cwd=folder,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
