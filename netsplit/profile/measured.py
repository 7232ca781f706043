"""What is measured of a graph on one device kind, and where it is kept between runs.

digest of graph, device, optimiser, versions ──► <folder>/<digest>.json ──► Measured, if it is there
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from netsplit.errors import NetSplitError
from netsplit.files import write_text
from netsplit.graph.files import dumps
from netsplit.graph.ir import Graph
from netsplit.profile.costs import DeviceCosts

__all__ = ["CACHE_VARIABLE", "Measured", "ProfileCache", "default_folder", "parts_digest", "profile_digest"]

log = logging.getLogger(__name__)

Kept = TypeVar("Kept")

VERSION = 11  # raise it where seconds come to mean something else, or are written otherwise
CACHE_VARIABLE = "NETSPLIT_CACHE"


@dataclass(frozen=True)
class Measured:
    """Measured costs of one device kind; `reference_s` says how fast the machine was then (see `speed`)."""

    costs: DeviceCosts
    drift: float = 0.0
    reference_s: float = 0.0
    steady: bool = True
    """False: contention was unclear and is measured again next time."""
    measured_at: float = field(default_factory=time.time)


def default_folder() -> Path:
    """`profiles` in the folder that NETSPLIT_CACHE names, else in the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named) / "profiles"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "netsplit" / "profiles"


def parts_digest(device: Mapping[str, Any], **conditions: Any) -> str:
    """A digest of what seconds of parts depend on beside their operators; see `profile_digest`."""
    return f"parts-{_digest({}, device, conditions)}"


def profile_digest(graph: Graph, device: Mapping[str, Any], **conditions: Any) -> str:
    """A digest of all that measured seconds depend on.

    Args:
        device: kind, host, processor, threads, versions: what a worker reports of itself.
        conditions: anything else: optimiser, micro-batches in flight, devices on the host, links that are
            stated (probed ones differ each time).
    """
    text = json.loads(dumps(graph))
    for node in text["nodes"]:
        node["source"] = ""  # a line moved in the model's file changes no seconds
    return _digest({"graph": text, "autocast": graph.autocast}, device, conditions)


def _digest(graph: dict[str, Any], device: Mapping[str, Any], conditions: Mapping[str, Any]) -> str:
    facts = {"version": VERSION, **graph, "device": dict(device)}
    facts["conditions"] = {key: str(value) for key, value in conditions.items()}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


@dataclass
class ProfileCache:
    """Measurements as files; with None as the folder nothing is kept."""

    folder: Path | None
    refresh: bool = False  # measure anew, and keep that; also once what was kept is out of date

    def get(self, digest: str, kind: type[Kept]) -> Kept | None:
        """The measurement of this type; a file that cannot be read is ignored with a warning."""
        if self.folder is None or self.refresh:
            return None
        path = self.folder / f"{digest}.json"
        try:
            text = path.read_bytes()
            from pydantic import TypeAdapter  # 40 ms, which only a file takes

            return TypeAdapter(kind).validate_json(text)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            log.warning("Cannot read the measurement in %s (%s): measuring again.", path, reason)
            return None

    def put(self, digest: str, value: object) -> None:
        """Save a measurement; a file that cannot be written costs a warning."""
        if self.folder is None:
            return
        from pydantic_core import to_json

        try:
            write_text(self.folder / f"{digest}.json", to_json(value).decode())
        except (OSError, NetSplitError) as error:
            log.warning("Cannot save a measurement in %s (%s).", self.folder, str(error).rstrip("."))
