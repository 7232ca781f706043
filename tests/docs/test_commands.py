"""Every command that the pages print composes: its groups, keys and values are there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser

from tests.docs.page import ROOT, blocks

CONFIGS = {
    "compare": "config", "train": "train", "partition": "partition", "simulate": "simulate",
    "study": "study", "report": "report",
}  # fmt: skip
ELSEWHERE = ("extending.md",)  # followed word for word, with the files it has one save (test_extending.py)
COMMAND = re.compile(r"^python -m runners\.(\w+)(.*)$", re.MULTILINE)
OPEN = re.compile(r"<[^>]*>|=\.\.\.")  # what the reader fills in


def commands() -> Iterator[tuple[str, str, str]]:
    """Page, command and what follows it, without the remark behind."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        if page.name in ELSEWHERE:
            continue
        for block in blocks(page.read_text(encoding="utf-8")):
            for name, rest in COMMAND.findall(block.text.replace("\\\n", " ")):
                yield page.name, name, rest


PRINTED = list(commands())


def test_there_are_many() -> None:
    assert len(PRINTED) > 40
    assert {name for _, name, _ in PRINTED} == CONFIGS.keys()


@pytest.mark.parametrize(("page", "name", "rest"), PRINTED, ids=lambda each: str(each)[:70])
def test_a_printed_command_composes(page: str, name: str, rest: str) -> None:
    """Of a sweep its first job, without what the reader fills in. Nothing is run, and no file is opened."""
    words = [word for word in shlex.split(OPEN.sub("=OPEN", rest), comments=True) if "OPEN" not in word]
    parsed = OverridesParser.create().parse_overrides([word for word in words if word != "--multirun"])
    first = [
        f"{each.get_key_element()}={next(each.sweep_string_iterator())}"
        if each.is_sweep_override()
        else str(each.input_line)
        for each in parsed
        if not str(each.key_or_group).startswith("hydra")
    ]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose(CONFIGS[name], overrides=first)
    assert len(cfg) > 0
