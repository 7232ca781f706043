"""A page of `docs/` as its readers follow it: the files and the commands of a section, word for word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

__all__ = ["ROOT", "Block", "blocks", "follow", "sections"]

ROOT = Path(__file__).resolve().parents[2]
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
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
    return [Block(*parts) for parts in BLOCK.findall(text)]


def follow(section: str, folder: Path) -> str:
    """Save all files of a section in a folder, run its commands there; answers what they printed."""
    shell = ""
    for block in blocks(section):
        if block.file is not None:
            place = folder / block.file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(block.text, encoding="utf-8")
        else:
            assert block.language == "bash", f"neither a file nor a command: {block.text}"
            shell += block.text
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", shell],
        cwd=folder,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
