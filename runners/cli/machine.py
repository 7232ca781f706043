"""What there is to compute on, and the links between it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import psutil

from netsplit import session as sessions
from netsplit.cluster.described import ClusterDescription
from netsplit.cluster.local import ClusterSpec
from netsplit.cluster.nvml import Gpus, found_gpus
from netsplit.config import build
from netsplit.errors import ConfigError, NetSplitError
from netsplit.tables import Column, Table
from netsplit.tracking.host import host_tags

from .._entry import console_of
from .composed import composed

__all__ = ["devices", "probe"]


def devices() -> None:
    console, tags = console_of(), host_tags()
    rows: list[tuple[str, ...]] = [
        (
            "cpu",
            tags.get("host.cpu", ""),
            _gib(psutil.virtual_memory().total),
            f"{tags['host.cores']} cores",
        )
    ]
    gpus: Gpus | None = None
    reason = ""
    try:
        gpus = found_gpus()
    except NetSplitError as error:
        reason = " ".join(str(error).split())
    for gpu in gpus.gpus if gpus is not None else ():
        rows.append((gpu.device, gpu.name, _gib(gpu.memory_bytes), ""))
    columns = [Column("device", text=True), Column("name", text=True), Column("GiB"), Column("", text=True)]
    console.print(Table(columns, rows).terminal())
    if gpus is None:
        console.print(f"No GPU: {reason}.", highlight=False, markup=False, soft_wrap=True)
    elif gpus.ways:
        ways = [
            (gpus.gpus[p].device, gpus.gpus[q].device, way, f"{1e-9 / gpus.links[p, q].seconds_per_byte:.1f}")
            for (p, q), way in gpus.ways.items()
        ]
        names = [Column(each, text=True) for each in ("from", "to", "way")]
        console.print(Table([*names, Column("GB/s")], ways).terminal())


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f}"


def probe(cluster: str, folder: str | None) -> None:
    """Measure the links of a cluster that runs, and print them.

    Raises:
        ConfigError: it is a described one.
    """
    spec: ClusterSpec | ClusterDescription = build(composed([f"cluster={cluster}"], folder).cluster)
    if isinstance(spec, ClusterDescription):
        raise ConfigError(f"cluster '{spec.name}' is only described: give one that runs, such as cpu2.")
    console = console_of()
    with (
        tempfile.TemporaryDirectory(prefix="netsplit-probe-") as logs,
        sessions.Session(spec, Path(logs)) as session,
    ):
        with console.status(f"Starting {len(spec.devices)} workers and probing their links"):
            links = session.cluster.links
        how = "given" if spec.bandwidth is not None else "probed"
    columns = [
        Column("from", text=True),
        Column("to", text=True),
        Column("latency us", ".1f", 1e6),
        Column("GB/s", ".2f"),
        Column("R²", ".3f"),
    ]
    rows = [
        (
            p,
            q,
            link.latency_s,
            1e-9 / link.seconds_per_byte if link.seconds_per_byte else "",
            link.r_squared,
        )
        for (p, q), link in links.items()
    ]
    console.print(Table(columns, rows).terminal())
    console.print(f"{len(links)} links of {spec.name}, {how}.", highlight=False)
