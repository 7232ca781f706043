"""Chromium without a window: `browse` a page that is whole at once."""

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["BROWSER", "FLAGS", "browse", "needs_browser"]

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
