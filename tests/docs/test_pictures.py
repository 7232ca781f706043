"""`make pictures`: the pages' pictures, made anew by the pages' own commands."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from tests.browser import browse, needs_browser, watch
from tests.docs.page import ROOT, follow, sections
from tests.tracking.test_charts import CHARTS, served

PICTURES = ROOT / "docs" / "pictures"
WIDEST = 2400  # pixels
RUN = "outputs/compare/runs/*"
# MLflow opens its assistant beside the charts, which leaves these little room.
CLOSED = f"""(() => {{
  const assistant = [...document.querySelectorAll("button[aria-label]")].filter(
    each => /close/i.test(each.ariaLabel) && each.getBoundingClientRect().x > innerWidth - 200);
  if (assistant.length) {{ assistant[0].click(); return null; }}
  return {CHARTS};
}})()"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif("NETSPLIT_PICTURES" not in os.environ, reason="`make pictures` asks for it"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the gallery's commands ran."""
    folder = tmp_path_factory.mktemp("gallery")
    for heading in ("A comparison", "In a browser"):
        follow(sections("gallery.md")[heading], folder, limit_s=800)
    return folder


def keep(path: Path, name: str) -> None:
    """Put a picture beside the pages, no wider than a screen and of 256 colours, the rare ones among them."""
    picture = Image.open(path).convert("RGB")
    picture.thumbnail((WIDEST, WIDEST))
    picture.quantize(256, Image.Quantize.MAXCOVERAGE).save(PICTURES / name, optimize=True)


def test_a_comparison_s_own(folder: Path) -> None:
    for name in ("comparison", "throughput", "training", "auto/graph", "auto/timeline"):
        (path,) = folder.glob(f"{RUN}/{name}.png")
        keep(path, path.name)


def test_the_tutorial_s_plan(tmp_path: Path) -> None:
    parts = sections("tutorial.md")
    follow(parts["The model"] + parts["Plan"], tmp_path)
    keep(tmp_path / "planned" / "graph.png", "own_model.png")


@needs_browser
def test_what_a_browser_shows(folder: Path) -> None:
    address = (folder / "outputs" / "report.html").as_uri()
    browse(folder, "--window-size=1180,1150", f"--screenshot={folder / 'report.png'}", address)
    keep(folder / "report.png", "report.png")
    for charts in served(f"sqlite:///{folder / 'outputs' / 'mlflow.db'}", folder):
        assert watch(folder, charts, CLOSED, seconds=60), (
            f"no charts; {folder / 'page.png'} is what there was"
        )
    keep(folder / "page.png", "mlflow.png")
