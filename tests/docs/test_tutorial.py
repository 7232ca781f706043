"""`docs/tutorial.md`, followed word for word in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.docs.page import ROOT, follow


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_new_user_plans_trains_compares_and_reports(tmp_path: Path) -> None:
    printed = follow((ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"), tmp_path, limit_s=800)
    assert "All is well." in printed
    assert "TwoPaths · digits · tight" in printed
    assert "old " in printed
    assert "new " in printed
    (right,) = re.findall(r"([\d.]+)% of all digits", printed)
    assert float(right) > 80  # of ten classes
    state = torch.load(tmp_path / "trained" / "auto" / "checkpoint.pt", weights_only=True)
    assert state["head.weight"].shape == (10, 1024)
    assert {path.name for path in (tmp_path / "planned").iterdir()} >= {
        "summary.txt",
        "graph.png",
        "program.txt",
    }
    (table,) = (tmp_path / "outputs" / "compare").glob("runs/*/comparison.md")
    assert all(method in table.read_text() for method in ("auto", "m_topo", "single"))
    assert "failed" not in table.read_text()
    assert (tmp_path / "outputs" / "report.html").stat().st_size > 10_000
