"""Every block of every page is of a known kind, and what its kind asks for is done: no code is only printed.

| language | |
|---|---|
| python | runs, in order within a page, with what `given.py` gives; a file is saved where it is followed |
| bash | each command is one, and the cheap ones run: `test_commands.py` |
| yaml | is an option of a config group, and composes |
| text | what a command prints, a layout, a drawing |
"""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir

from netsplit.partition import METHODS, Auto
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.runtime.workers.messages import Worker
from tests.docs.given import GIVEN
from tests.docs.page import PAGES, ROOT, Block, blocks
from tests.docs.test_commands import FOLLOWED
from tests.workers import Pools, lent_to_sessions

LANGUAGES = {"python", "bash", "yaml", "toml", "text"}
COMMAND = re.compile(r"^\W*(python -m|make [a-z]|pip install|eval|netsplit (?!optimal)[a-z])", re.MULTILINE)
NEEDS = {"large_models.md": "safetensors"}  # page -> an extra's package


def of_language(page: Path, language: str) -> list[Block]:
    return [block for block in blocks(page.read_text(encoding="utf-8")) if block.language == language]


SNIPPETS = [page for page in PAGES if page.name not in FOLLOWED and of_language(page, "python")]
OPTIONS = [
    (page.name, block) for page in PAGES if page.name not in FOLLOWED for block in of_language(page, "yaml")
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_what_it_is(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    on_page = blocks(text)
    fences = re.findall(r"^ *(?:`{3,}|~{3,})", text, re.MULTILINE)
    assert len(fences) == 2 * len(on_page)
    assert {block.language for block in on_page} <= LANGUAGES
    for block in on_page:
        if block.language == "toml":
            assert tomllib.loads(block.text)
        if block.language == "text":
            assert not COMMAND.search(block.text), f"a command in a block that is no bash: {block.text}"


def test_what_is_given_is_of_a_page_with_code() -> None:
    assert {page.name for page in SNIPPETS} == GIVEN.keys()


@pytest.mark.parametrize("page", SNIPPETS, ids=lambda page: page.name)
@pytest.mark.usefixtures("unmeasured")
def test_the_python_of_a_page_runs(
    page: Path, pools: Pools, tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In order, in an empty folder, on workers that are there already; `auto` has a tenth of a second."""
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(METHODS, "auto", lambda: Auto(time_limit_s=0.1))  # type: ignore[arg-type]
    monkeypatch.setattr(AutoSchedule.__init__, "__defaults__", (None, None, True, True, False, 0.5))
    (tmp_path / "outputs").mkdir()
    shutil.copy(empty_database, tmp_path / "outputs" / "mlflow.db")
    generator = torch.get_rng_state()
    before = pools(2).call(_enter, str(tmp_path))[0]
    with lent_to_sessions(pools):
        names = GIVEN[page.name]()
        for block in of_language(page, "python"):
            exec(compile(block.text, str(page), "exec"), names)
    pools(2).call(_enter, before)
    torch.set_rng_state(generator)


def _enter(_: Worker, folder: str) -> str:
    """Workers of one's own are started where one is; answers where these were before."""
    before = os.getcwd()
    os.chdir(folder)
    return before


@pytest.mark.parametrize(("page", "block"), OPTIONS, ids=lambda each: str(each)[:40])
def test_an_option_composes(page: str, block: Block, tmp_path: Path) -> None:
    assert block.file is not None, f"{page}: say in the first line where it is saved"
    place = tmp_path / block.file
    place.parent.mkdir(parents=True)
    place.write_text(block.text, encoding="utf-8")
    folder, own = place.parents[1], ROOT / "conf"
    home, config = (ROOT / "reproduce/conf", "study") if "\nstudy:" in block.text else (own, "config")
    words = [f"hydra.searchpath=[file://{folder},file://{own}]", f"{place.parent.name}={place.stem}"]
    with initialize_config_dir(str(home), version_base="1.3"):
        assert compose(config, overrides=words)
