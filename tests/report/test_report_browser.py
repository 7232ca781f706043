"""The page in a real browser: it fits a telephone, asks for nothing, and sorts its tables."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from netsplit.report import html_page
from tests.browser import browse, needs_browser
from tests.tracking.reports import HOSTILE, cases, report, study, trained

# The page in a frame of a telephone's width, since a browser's own window may not become so narrow.
FRAME = """<!DOCTYPE html><body><iframe src="page.html" width="{width}" height="800"></iframe>
<pre id="found">nothing</pre><script>
addEventListener("message", function (event) {{
  document.getElementById("found").textContent = event.data; }});
</script></body>"""
PROBE = """<script>addEventListener("load", function () {
  var rows = function () {
    return Array.from(document.querySelector("#c1 table").tBodies[0].rows, function (row) {
      return row.cells[0].textContent; });
  };
  var before = rows();
  document.querySelectorAll("#c1 table thead th")[1].click();
  parent.postMessage(JSON.stringify({
    inner: innerWidth, scroll: document.documentElement.scrollWidth,
    boxes: Array.from(document.querySelectorAll("svg, dl, p, h1, h2, figure, nav"), function (each) {
      return each.getBoundingClientRect().right; }),
    clipped: Array.from(document.querySelectorAll("figure svg text, .bar span")).filter(function (each) {
      var inner = each.getBoundingClientRect(), outer = each.closest("figure").getBoundingClientRect();
      return inner.left < outer.left || inner.right > outer.right;
    }).map(function (each) { return each.textContent; }),
    covered: Array.from(document.querySelectorAll("figure .bar")).filter(function (each) {
      var parts = each.querySelectorAll("span");
      return parts[0].getBoundingClientRect().right > parts[1].getBoundingClientRect().left;
    }).map(function (each) { return each.textContent; }),
    pictures: Array.from(document.images, function (each) { return each.naturalWidth; }),
    heights: Array.from(document.querySelectorAll("figure svg"), function (each) {
      return each.getBoundingClientRect().height; }),
    resources: performance.getEntriesByType("resource").length,
    scripts: document.scripts.length, before: before, after: rows()
  }), "*");
});</script>"""

pytestmark = needs_browser


def look(folder: Path, page: str, width: int) -> dict[str, Any]:
    """What a script in a copy of the page finds, in a frame of so many pixels."""
    (folder / "page.html").write_text(page.replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    (folder / "frame.html").write_text(FRAME.format(width=width))
    dom = browse(folder, "--dump-dom", (folder / "frame.html").as_uri())
    answer = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    assert answer is not None
    return dict(json.loads(answer[1]))


def test_a_telephone_shows_it_without_scrolling_sideways(tmp_path: Path) -> None:
    shown = report(trained(f"{HOSTILE} {'a_long_name_without_space' * 5}"), *cases(), studies=[study()])
    seen = look(tmp_path, html_page(shown, tmp_path), 360)
    assert seen["inner"] == 360
    assert seen["scroll"] == 360
    assert max(seen["boxes"]) <= 360
    assert min(seen["heights"]) > 20
    assert seen["resources"] == 0
    assert seen["pictures"] == [672]  # of 504 points
    assert seen["scripts"] == 2  # the page's own and the probe: no name became a third
    assert seen["before"] == ["netsplit", "m_topo", "m_sct", "single"]
    assert seen["after"] == ["single", "m_topo", "netsplit", "m_sct"]
