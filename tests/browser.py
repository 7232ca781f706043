"""Chromium without a window: `browse` a page that is whole at once, `watch` one that loads by parts."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

__all__ = ["BROWSER", "FLAGS", "browse", "needs_browser", "watch"]

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
]  # fmt: skip

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium is installed")


def browse(folder: Path, *arguments: str) -> str:
    """What the browser prints, whose profile is in `folder`."""
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, "--virtual-time-budget=2000", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run([*command, *arguments], capture_output=True, timeout=120, check=True)
    return done.stdout.decode()


def watch(folder: Path, address: str, script: str, seconds: float) -> Any:
    """What a script returns in the page, run until that is true or time is up; then ``page.png`` is taken."""
    assert BROWSER is not None
    command = [BROWSER, *FLAGS, "--window-size=1600,1100", f"--user-data-dir={folder / 'profile'}"]
    process = subprocess.Popen(
        [*command, "--remote-debugging-port=0", "about:blank"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        said = next(line for line in process.stderr if "DevTools listening on" in line)
        host = said.split("//")[1].partition("/")[0]
        with urllib.request.urlopen(f"http://{host}/json/list") as answer:
            (page,) = (each for each in json.load(answer) if each["type"] == "page")
        return asyncio.run(_watched(page["webSocketDebuggerUrl"], address, script, seconds, folder))
    finally:
        process.terminate()
        process.wait(30)


async def _watched(socket: str, address: str, script: str, seconds: float, folder: Path) -> Any:
    import aiohttp  # which MLflow brings

    async with aiohttp.ClientSession() as session, session.ws_connect(socket, max_msg_size=0) as page:

        async def ask(method: str, **given: Any) -> Any:
            await page.send_json({"id": 1, "method": method, "params": given})
            return (await page.receive_json())["result"]

        await ask("Page.navigate", url=address)
        end = time.monotonic() + seconds
        result = None
        while not result and time.monotonic() < end:
            await asyncio.sleep(0.5)
            answer = await ask("Runtime.evaluate", expression=script, returnByValue=True)
            result = answer["result"].get("value")
        await asyncio.sleep(1)  # until what was drawn last is seen
        picture = await ask("Page.captureScreenshot")
        (folder / "page.png").write_bytes(base64.b64decode(picture["data"]))
        return result
