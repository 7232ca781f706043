"""What is measured of a graph on one device kind, and where it is kept between runs.

digest of graph, device, optimiser, versions ──► <folder>/<digest>.json ──► Measured, if it is there
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, astuple, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from netsplit.errors import NetSplitError
from netsplit.files import parsed_json, write_text
from netsplit.graph.files import dumps
from netsplit.graph.ir import Graph
from netsplit.profile.costs import DeviceCosts, NodeBytes, NodeSeconds, PartCosts, TurnSeconds

__all__ = ["CACHE_VARIABLE", "Measured", "ProfileCache", "default_folder", "parts_digest", "profile_digest"]

log = logging.getLogger(__name__)

Read = TypeVar("Read")

VERSION = 10  # raise it where seconds come to mean something else, or are written otherwise
CACHE_VARIABLE = "NETSPLIT_CACHE"
_FORM = "netsplit profile"
_FORM_OF_PARTS = "netsplit parts"
_FORM_OF_SIZES = "netsplit sizes in turn"
_NO_NUMBERS = ("nodes", "transients", "rates", "parts", "unsure")


@dataclass(frozen=True)
class Measured:
    """Of one device kind; `reference_s` says how fast the machine was then (see `speed`)."""

    costs: DeviceCosts
    drift: float = 0.0
    reference_s: float = 0.0
    steady: bool = True
    """False: how devices slow one another was uncertain; it is at rest here, to be measured next time."""


def default_folder() -> Path:
    """`profiles` in the folder that NETSPLIT_CACHE names, else in the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named) / "profiles"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "netsplit" / "profiles"


def parts_digest(device: Mapping[str, Any], **conditions: Any) -> str:
    """Of all that measured seconds of parts depend on but what they do; arguments as of `profile_digest`."""
    said = {
        "version": VERSION,
        "device": dict(device),
        "conditions": {key: str(value) for key, value in conditions.items()},
    }
    return "parts-" + hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]


def profile_digest(graph: Graph, device: Mapping[str, Any], **conditions: Any) -> str:
    """Of all that measured seconds depend on.

    Args:
        device: kind, host, processor, threads, versions: what a worker says of itself.
        conditions: anything else: optimiser, micro-batches in flight, how many devices share the host, links
            that are stated (probed ones differ each time).
    """
    text = json.loads(dumps(graph))
    for node in text["nodes"]:
        node["source"] = ""  # a line moved in the model's file changes no seconds
    said = {
        "version": VERSION,
        "graph": text,
        "autocast": getattr(graph, "autocast", None),
        "device": dict(device),
        "conditions": {key: str(value) for key, value in conditions.items()},
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]


@dataclass
class ProfileCache:
    """Measurements as files; None as the folder: nothing is kept.

    `unsure` has those, by digest, whose trial run was not steady: not for a file, but good enough for the
    further jobs of a command.
    """

    folder: Path | None
    refresh: bool = False  # measure anew, and keep that; also once what was kept is out of date
    unsure: dict[str, Measured] = field(default_factory=dict)

    def get(self, digest: str, nodes: Collection[str] | None = None) -> tuple[Measured, float] | None:
        """What was measured, and its age in seconds.

        What cannot be read, or has seconds of others than `nodes` (None: any), is ignored with a warning.
        """

        def read(data: dict[str, Any]) -> tuple[Measured, float]:
            return _read(data, digest, nodes), max(time.time() - float(data["measured_at"]), 0.0)

        return self._kept(digest, "profile", read)

    def put(self, digest: str, measured: Measured, age_s: float = 0.0) -> None:
        """Keep a measurement that was made `age_s` ago; what cannot be written costs a warning."""
        if self.folder is None:
            return
        data = {"form": _FORM, "digest": digest, "measured_at": time.time() - age_s, **asdict(measured)}
        nodes = measured.costs.nodes.items()
        data["costs"]["nodes"] = {name: [s.forward_s, s.backward_s, s.weight_s] for name, s in nodes}
        transients = measured.costs.transients.items()
        data["costs"]["transients"] = {name: [each.forward, each.backward] for name, each in transients}
        del data["costs"]["parts"]  # which have a file for all graphs
        del data["costs"]["unsure"]  # `steady` says it
        self._put(digest, data, "the profile")

    def parts(self, digest: str) -> dict[str, PartCosts]:
        """Costs of operators that rewrites made, by what they do; what cannot be read is ignored with a
        warning."""
        return self._kept(digest, "parts", lambda data: _read_parts(data, digest)) or {}

    def add_parts(self, digest: str, parts: Mapping[str, PartCosts]) -> None:
        """Keep more of them; what cannot be written costs a warning."""
        if self.folder is None:
            return
        every = {**self.parts(digest), **parts}
        rows = {
            key: [*astuple(each.seconds), each.transient.forward, each.transient.backward]
            for key, each in every.items()
        }
        self._put(digest, {"form": _FORM_OF_PARTS, "digest": digest, "parts": rows}, "parts")

    def sizes(self, digest: str) -> TurnSeconds:
        """Of whole micro-batches; what cannot be read is ignored with a warning."""
        return self._kept(_of_sizes(digest), "sizes", lambda data: _read_sizes(data, digest)) or TurnSeconds()

    def add_sizes(self, digest: str, turns: TurnSeconds) -> None:
        """Keep them; what cannot be written costs a warning."""
        rows = [[samples, s, turns.contention.get(samples)] for samples, s in turns.seconds.items()]
        self._put(_of_sizes(digest), {"form": _FORM_OF_SIZES, "digest": digest, "sizes": rows}, "sizes")

    def _kept(self, name: str, what: str, read: Callable[[dict[str, Any]], Read]) -> Read | None:
        if self.folder is None or self.refresh:
            return None
        path = self._path(name)
        try:
            return read(parsed_json(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning(
                "%s holds no %s that can be read (%s): measuring again.", path, what, _in_words(error)
            )
            return None

    def _put(self, name: str, data: dict[str, Any], what: str) -> None:
        if self.folder is None:
            return
        try:
            write_text(self._path(name), json.dumps(data))
        except (OSError, NetSplitError) as error:
            log.warning("%s could not be kept in %s (%s).", what, self.folder, _in_words(error))

    def _path(self, digest: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{digest}.json"


def _read(data: dict[str, Any], digest: str, nodes: Collection[str] | None) -> Measured:
    if data["form"] != _FORM or data["digest"] != digest:
        raise ValueError("it is something else's file")
    costs, about = data["costs"], {key: float(data[key]) for key in ("drift", "reference_s")}
    seconds = {name: NodeSeconds(*map(float, each)) for name, each in costs["nodes"].items()}
    if nodes is not None and (strange := seconds.keys() ^ set(nodes)):
        raise ValueError(f"it has no seconds of the same operators, as of '{min(strange)}'")
    keys = [each.name for each in fields(DeviceCosts) if each.name not in _NO_NUMBERS]
    rates: dict[str, Any] = {
        key: float(costs[key]) for key in keys if (key, costs[key]) != ("message_s", None)
    }
    numbers = [s for each in seconds.values() for s in (each.forward_s, each.backward_s, each.weight_s)]
    numbers += [*rates.values(), *about.values()]
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        raise ValueError("a time is no finite number of 0 or more")
    if rates["contention"] < 1:
        raise ValueError("contention is less than 1")
    if not isinstance(data["steady"], bool):
        raise ValueError("steady is neither true nor false")
    transients = {name: NodeBytes(*map(int, each)) for name, each in costs["transients"].items()}
    if any(each.forward < 0 or each.backward < 0 for each in transients.values()):
        raise ValueError("bytes are less than 0")
    return Measured(DeviceCosts(seconds, **rates, transients=transients), **about, steady=data["steady"])


def _read_parts(data: dict[str, Any], digest: str) -> dict[str, PartCosts]:
    if data["form"] != _FORM_OF_PARTS or data["digest"] != digest:
        raise ValueError("it is something else's file")
    parts = {}
    for key, (forward_s, backward_s, weight_s, forward, backward) in data["parts"].items():
        seconds = NodeSeconds(float(forward_s), float(backward_s), float(weight_s))
        transient = NodeBytes(int(forward), int(backward))
        if not all(math.isfinite(each) and each >= 0 for each in (*astuple(seconds), *astuple(transient))):
            raise ValueError("a number is not finite, or less than 0")
        parts[str(key)] = PartCosts(seconds, transient)
    return parts


def _of_sizes(digest: str) -> str:
    return f"sizes-{digest}"


def _read_sizes(data: dict[str, Any], digest: str) -> TurnSeconds:
    if data["form"] != _FORM_OF_SIZES or data["digest"] != digest:
        raise ValueError("it is something else's file")
    seconds = {int(samples): float(s) for samples, s, _ in data["sizes"]}
    contention = {int(samples): float(ratio) for samples, _, ratio in data["sizes"] if ratio is not None}
    if not all(math.isfinite(s) and s > 0 for s in seconds.values()):
        raise ValueError("a time is no finite number above 0")
    if not all(math.isfinite(ratio) and ratio >= 1 for ratio in contention.values()):
        raise ValueError("a contention is no finite number from 1")
    return TurnSeconds(seconds, contention)


def _in_words(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error).rstrip(".")
