"""Seconds against bytes: links measured on this machine, and described ones (thesis, Figures 4-3 and 6-1)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from netsplit.cluster.cluster import Link
from netsplit.cluster.described import ClusterDescription
from netsplit.cluster.local import ClusterSpec
from netsplit.errors import ConfigError
from netsplit.pictures.drawing import PALETTE
from netsplit.session.session import Session
from netsplit.tables import Cell, Column
from reproduce.cases import WORKERS, ByName
from reproduce.result import Picture, StudyResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LinkCase", "link_lines"]

log = logging.getLogger(__name__)

POINTS = 41  # of a line that is drawn
MARKERS = "osD^vP*X"


@dataclass(frozen=True)
class LinkCase:
    """The links of a cluster, or one of them.

    Args:
        cluster: of this machine, whose links are probed; or described.
        pair: two device names, source and target; None: all links, of equal ones the first.
        label: what the case is called; None: its name.
    """

    cluster: ClusterSpec | ClusterDescription
    pair: Sequence[str] | None = None
    label: str | None = None


@dataclass(frozen=True)
class _FittedLine:
    label: str
    link: Link
    points: Sequence[tuple[int, float]] = field(default_factory=tuple)


def link_lines(
    cases: ByName[LinkCase], folder: Path = WORKERS, smallest: int = 64, largest: int = 2**28
) -> StudyResult:
    """Latency and bandwidth of links, and the seconds that packets take.

    Args:
        folder: for the logs of the workers.
        smallest: bytes of a packet, where the lines begin.
        largest: where they end.

    Raises:
        ConfigError: a pair that a cluster does not have.
        WorkerError: the workers of a cluster do not meet.
    """
    if not 0 < smallest < largest:
        raise ConfigError(
            f"study.smallest is {smallest}, study.largest is {largest}: give a rising range above 0."
        )
    lines = [line for name, case in cases.items() for line in _lines(name, case, folder / name)]
    rows: list[tuple[Cell, ...]] = [
        (
            line.label,
            "measured" if line.points else "described",
            line.link.latency_s,
            line.link.bandwidth,
            line.link.r_squared,
            line.link.seconds(10**6),
            line.link.seconds(10**8),
        )
        for line in lines
    ]
    metrics: dict[str, float] = {}
    for line in lines:
        metrics |= {
            f"latency_s.{line.label}": line.link.latency_s,
            f"bandwidth.{line.label}": line.link.bandwidth,
        }
    return StudyResult(
        "Links: seconds against bytes",
        (
            Column("link", text=True),
            Column("kind", text=True),
            Column("latency (µs)", ",.1f", 1e6),
            Column("bandwidth (GB/s)", ",.2f", 1e-9),
            Column("R²", ".4f"),
            Column("1 MB (ms)", ",.3f", 1e3),
            Column("100 MB (ms)", ",.1f", 1e3),
        ),
        tuple(rows),
        ("seconds = latency + bytes / bandwidth; measured links are fitted to packets of 64 B to 8 MiB.",),
        (_picture(lines, smallest, largest),),
        metrics,
    )


def _lines(name: str, case: LinkCase, folder: Path) -> list[_FittedLine]:
    label = case.label or name
    if isinstance(case.cluster, ClusterDescription):
        chosen = _chosen(name, case, case.cluster.links)
        if case.pair is not None or len(chosen) == 1:
            return [_FittedLine(label, link) for link in chosen.values()]
        return [_FittedLine(f"{label}: {p} → {q}", link) for (p, q), link in chosen.items()]
    log.info("%s: probing the links of cluster '%s'", name, case.cluster.name)
    with Session(case.cluster, folder) as session:
        chosen = _chosen(name, case, session.cluster.links)
        samples = session.link_samples
    return [
        _FittedLine(f"{label}: {p} → {q}", link, samples.get((p, q), ())) for (p, q), link in chosen.items()
    ]


def _chosen(name: str, case: LinkCase, links: Mapping[tuple[str, str], Link]) -> dict[tuple[str, str], Link]:
    if case.pair is None:
        first: dict[Link, tuple[str, str]] = {}
        for pair, link in links.items():
            first.setdefault(link, pair)
        if not first:
            raise ConfigError(f"the cluster of case '{name}' has one device and no link: choose another.")
        return {pair: link for link, pair in first.items()}
    chosen = {pair: link for pair, link in links.items() if pair == tuple(case.pair)}
    if not chosen:
        known = ", ".join(sorted({device for each in links for device in each}))
        raise ConfigError(f"pair of case '{name}' is [{', '.join(case.pair)}]: give two of {known}.")
    return chosen


def _picture(lines: Sequence[_FittedLine], smallest: int, largest: int) -> Picture:
    ratio = (largest / smallest) ** (1 / (POINTS - 1))
    sizes = [round(smallest * ratio**n) for n in range(POINTS)]

    def draw(figure: Figure) -> None:
        from matplotlib.ticker import EngFormatter

        axes = figure.subplots()
        for index, line in enumerate(lines):
            colour = PALETTE[index % len(PALETTE)]
            fit = "" if line.link.r_squared is None else f", R² {line.link.r_squared:.4f}"
            about = f"{1e6 * line.link.latency_s:.0f} µs, {line.link.bandwidth / 1e9:.2f} GB/s{fit}"
            if line.points:
                axes.scatter(
                    [nbytes for nbytes, _ in line.points], [seconds for _, seconds in line.points],
                    color=colour, marker=MARKERS[index % len(MARKERS)], s=28, alpha=0.7, linewidths=0,
                )  # fmt: skip
            axes.plot(
                sizes, [line.link.seconds(nbytes) for nbytes in sizes], color=colour, linewidth=2,
                linestyle="-" if line.points else "--", label=f"{line.label}: {about}",
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(EngFormatter("B"))
        axes.yaxis.set_major_formatter(EngFormatter("s"))
        axes.set_xlabel("bytes")
        axes.set_ylabel("time")
        axes.grid(alpha=0.3)
        axes.set_title("Points and solid lines: measured and fitted; dashed lines: described", fontsize=11)
        axes.legend(loc="upper left", fontsize=9)

    rows: list[tuple[Cell, ...]] = [
        (line.label, "measured", nbytes, seconds) for line in lines for nbytes, seconds in line.points
    ]
    rows += [(line.label, "line", nbytes, line.link.seconds(nbytes)) for line in lines for nbytes in sizes]
    return Picture("links", (9, 6), draw, ("link", "kind", "bytes", "seconds"), rows)
