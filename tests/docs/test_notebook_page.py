"""`docs/notebook.md`: its cells, one after another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.page import ROOT, blocks
from tests.workers import Pools, lent_to_sessions


@pytest.mark.usefixtures("unmeasured")
def test_the_cells_run(pools: Pools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [
        block.text for block in blocks((ROOT / "docs/notebook.md").read_text()) if block.language == "python"
    ]
    with lent_to_sessions(pools):
        for cell in cells:
            exec(compile(cell, "notebook.md", "exec"), names)
    assert len(cells) == 5
    assert names["done"] == 5
    assert {path.name for path in tmp_path.iterdir()} == {"graph.svg", "memory.png"}
