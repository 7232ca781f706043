"""What was recorded, and on which machine."""

from __future__ import annotations

import json
import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch

__all__ = ["FILES", "machine", "recorded"]

FILES = {name: Path(__file__).with_name(f"{name}.json") for name in ("cases", "people", "grid")}


@cache
def recorded(name: str) -> dict[str, Any]:
    """The contents of one of `FILES`."""
    contents: dict[str, Any] = json.loads(FILES[name].read_text())
    return contents


def machine() -> dict[str, str]:
    """What the last bits of a result depend on: where it is the same they are compared, too."""
    return {
        "torch": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
