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
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, fields
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
    """Measured costs of one device kind; `reference_s` says how fast the machine was then (see `speed`)."""

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
    """A digest of what seconds of parts depend on beside what they do; arguments as of `profile_digest`."""
    said = {
        "version": VERSION,
        "device": dict(device),
        "conditions": {key: str(value) for key, value in conditions.items()},
    }
    return "parts-" + hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]


def profile_digest(graph: Graph, device: Mapping[str, Any], **conditions: Any) -> str:
    """A digest of all that measured seconds depend on.

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
    """Measurements as files; None as the folder: nothing is kept."""

    folder: Path | None
    refresh: bool = False  # measure anew, and keep that; also once what was kept is out of date

    def get(self, digest: str, nodes: Collection[str] | None = None) -> tuple[Measured, float] | None:
        """What was measured, and its age in seconds.

        What cannot be read, or has seconds of others than `nodes` (None: any), is ignored with a warning.
        """

        def read(data: dict[str, Any]) -> tuple[Measured, float]:
            return _read(data, nodes), max(time.time() - float(data["measured_at"]), 0.0)

        return self._kept(digest, digest, _FORM, read)

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
        return self._kept(digest, digest, _FORM_OF_PARTS, _read_parts) or {}

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
        """Seconds of whole micro-batches; what cannot be read is ignored with a warning."""
        return self._kept(_of_sizes(digest), digest, _FORM_OF_SIZES, _read_sizes) or TurnSeconds()

    def add_sizes(self, digest: str, turns: TurnSeconds) -> None:
        """Keep them; what cannot be written costs a warning."""
        rows = [[samples, s, turns.contention.get(samples)] for samples, s in turns.seconds.items()]
        self._put(_of_sizes(digest), {"form": _FORM_OF_SIZES, "digest": digest, "sizes": rows}, "sizes")

    def _kept(self, name: str, digest: str, form: str, read: Callable[[dict[str, Any]], Read]) -> Read | None:
        if self.folder is None or self.refresh:
            return None
        path = self._path(name)
        try:
            data = parsed_json(path.read_text(encoding="utf-8"))
            if data["form"] != form or data["digest"] != digest:
                raise ValueError("it is something else's file")
            return read(data)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning(
                "%s holds no %s that can be read (%s): measuring again.", path, form, _in_words(error)
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


def _read(data: dict[str, Any], nodes: Collection[str] | None) -> Measured:
    costs, about = data["costs"], {key: float(data[key]) for key in ("drift", "reference_s")}
    seconds = {name: NodeSeconds(*_numbers(each)) for name, each in costs["nodes"].items()}
    if nodes is not None and (strange := seconds.keys() ^ set(nodes)):
        raise ValueError(f"it has no seconds of the same operators, as of '{min(strange)}'")
    keys = [each.name for each in fields(DeviceCosts) if each.name not in _NO_NUMBERS]
    keys = [key for key in keys if (key, costs[key]) != ("message_s", None)]
    rates: dict[str, Any] = dict(zip(keys, _numbers(costs[key] for key in keys), strict=True))
    _numbers(about.values())
    _numbers([rates["contention"]], least=1.0)
    if not isinstance(data["steady"], bool):
        raise ValueError("steady is neither true nor false")
    transients = {name: NodeBytes(*map(int, _numbers(each))) for name, each in costs["transients"].items()}
    return Measured(DeviceCosts(seconds, **rates, transients=transients), **about, steady=data["steady"])


def _read_parts(data: dict[str, Any]) -> dict[str, PartCosts]:
    rows = {str(key): _numbers(row) for key, row in data["parts"].items()}
    return {key: PartCosts(NodeSeconds(*row[:3]), NodeBytes(*map(int, row[3:]))) for key, row in rows.items()}


def _of_sizes(digest: str) -> str:
    return f"sizes-{digest}"


def _read_sizes(data: dict[str, Any]) -> TurnSeconds:
    seconds = {int(samples): _numbers([s], least=1e-15)[0] for samples, s, _ in data["sizes"]}
    known = {int(samples): ratio for samples, _, ratio in data["sizes"] if ratio is not None}
    return TurnSeconds(seconds, dict(zip(known, _numbers(known.values(), least=1.0), strict=True)))


def _numbers(values: Iterable[Any], least: float = 0.0) -> list[float]:
    """Raises ValueError: one is not finite, or less than the least."""
    numbers = [float(value) for value in values]
    if not all(math.isfinite(number) and number >= least for number in numbers):
        raise ValueError(f"a number is not finite, or less than {least:g}")
    return numbers


def _in_words(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error).rstrip(".")
