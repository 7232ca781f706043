"""The page in a real browser: it fits a telephone, asks for nothing, and sorts its tables."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from netsplit.report import Section, html_page
from netsplit.tables import Column, Table
from netsplit.tracking import comparison_table
from tests.browser import browse, needs_browser
from tests.tracking.reports import HOSTILE, report
from tests.tracking.samples import rows

# The page in a frame of a telephone's width, since a browser's own window may not become so narrow.
FRAME = """<!DOCTYPE html><body><iframe src="page.html" width="{width}" height="800"></iframe>
<pre id="found">nothing</pre><script>
addEventListener("message", function (event) {{
  document.getElementById("found").textContent = event.data; }});
</script></body>"""
PROBE = """<script>addEventListener("load", function () {
  var rows = function () {
    return Array.from(document.querySelector("#s1 table").tBodies[0].rows, function (row) {
      return row.cells[0].textContent; });
  };
  var before = rows();
  document.querySelectorAll("#s1 table thead th")[5].click();
  parent.postMessage(JSON.stringify({
    inner: innerWidth, scroll: document.documentElement.scrollWidth,
    boxes: Array.from(document.querySelectorAll("p, h1, h2, figure, nav, .scroll"), function (each) {
      return each.getBoundingClientRect().right; }),
    tables: Array.from(document.querySelectorAll("section > .scroll > table"), function (each) {
      return each.getBoundingClientRect().right; }),
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


LONG = f"{HOSTILE} {'a_long_name_without_space' * 5}"


def test_a_telephone_shows_it_without_scrolling_sideways(tmp_path: Path) -> None:
    shown = report(Section(LONG, [LONG], [LONG], [comparison_table(rows())]))
    seen = look(tmp_path, html_page(shown, tmp_path), 360)
    assert (seen["inner"], seen["scroll"]) == (360, 360)
    assert max(seen["boxes"]) <= 360
    assert seen["resources"] == 0
    assert seen["scripts"] == 2  # the page's own and the probe: no name became a third
    assert seen["before"] == ["netsplit", "m_topo", "m_sct", "single"]
    assert seen["after"] == ["single", "m_topo", "netsplit", "m_sct"]


def test_no_table_is_cut_at_1400_pixels(tmp_path: Path) -> None:
    devices = {f"gpu{p}": 2**30 for p in range(16)}
    wide = [replace(row, method=f"{row.method}_{LONG}", predicted_peak=devices) for row in rows()]
    pairs = Table([Column("Key", text=True), Column("Value", text=True)], [("x" * 90, LONG)])
    seen = look(
        tmp_path, html_page(report(Section("x", tables=[comparison_table(wide), pairs])), tmp_path), 1400
    )
    assert len(seen["tables"]) == 2
    assert max(seen["tables"]) <= max(seen["boxes"]) <= 1400
