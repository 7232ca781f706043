"""`make docs` builds all pages without a warning; in a browser none sticks out or asks the network."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.browser import BROWSER, FLAGS, needs_browser
from tests.docs.page import PAGES, ROOT

pytestmark = pytest.mark.slow

TOO_WIDE = '<!DOCTYPE html><body><div class="md-content"><p style="width: 2000px">wide</p></div></body>'
PROBE = """<!DOCTYPE html><body><pre id="seen">nothing</pre><script>
const PAGES = %s, WIDTHS = [390, 1280], seen = [];
function scrolls(each) {
  for (let above = each.parentElement; above; above = above.parentElement)
    if (["auto", "scroll", "hidden"].includes(getComputedStyle(above).overflowX)) return true;
  return false;
}
async function look(page, width) {
  const frame = document.createElement("iframe");
  frame.width = width; frame.height = 900; frame.src = page;
  const loaded = new Promise(resolve => frame.onload = resolve);
  document.body.append(frame);
  await loaded; await new Promise(resolve => setTimeout(resolve, 100));
  const inside = frame.contentDocument;
  const beyond = each => each.getBoundingClientRect().right > width + 1;
  const faults = [
    ...Array.from(inside.querySelectorAll(".md-content *")).filter(each => beyond(each) && !scrolls(each)),
    ...Array.from(inside.images).filter(each => each.complete && !each.naturalWidth),
  ].map(each => each.outerHTML.slice(0, 120));
  const asked = frame.contentWindow.performance.getEntriesByType("resource").map(each => each.name);
  faults.push(...asked.filter(each => !each.startsWith(location.origin)));
  if (inside.documentElement.scrollWidth > width) faults.push("scrolls sideways");
  if (faults.length) seen.push([page, width, faults.slice(0, 5)]);
  frame.remove();
}
(async function () {
  for (const page of PAGES) for (const width of WIDTHS) await look(page, width);
  document.getElementById("seen").textContent = JSON.stringify(seen);
})();
</script></body>"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    for page in PAGES:
        name = {"README": "index", "CONTRIBUTING": "contributing"}.get(page.stem, page.stem)
        assert (site / f"{name}.html").is_file()
    for word, page in {
        "netsplit.parallelize": "netsplit",
        "save_safetensors": "integrations",
        "BatchError": "errors",
        "netsplit plan": "command",
        "on_nonfinite": "configuration",
    }.items():
        assert word in (site / "reference" / f"{page}.html").read_text(encoding="utf-8")


@needs_browser
def test_pages_fit_a_telephone_and_a_desk_and_ask_for_nothing(site: Path, tmp_path: Path) -> None:
    pages = [str(path.relative_to(site)) for path in sorted(site.rglob("*.html")) if path.stem != "404"]
    (site / "too_wide.html").write_text(TOO_WIDE)
    (site / "probe.html").write_text(PROBE % json.dumps([*pages, "too_wide.html"]))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/probe.html"
        flags = [*FLAGS, "--virtual-time-budget=120000", f"--user-data-dir={tmp_path / 'profile'}"]
        done = subprocess.run(
            [str(BROWSER), *flags, "--dump-dom", address], capture_output=True, timeout=280, check=True
        )
        server.shutdown()
    (text,) = re.findall(r'<pre id="seen">(.*?)</pre>', done.stdout.decode(), re.DOTALL)
    seen = json.loads(html.unescape(text))
    assert [each for each in seen if each[0] != "too_wide.html"] == []
    assert [each[:2] for each in seen] == [["too_wide.html", 390], ["too_wide.html", 1280]]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Requests are nothing to print."""
