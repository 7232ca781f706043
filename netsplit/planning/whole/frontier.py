"""What a whole plan was chosen from: the best of every kind, and why each of the others loses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from netsplit.partition.partitioner import Partitioner
from netsplit.planning.explanation.notation import counted, listed
from netsplit.planning.whole.judge import KINDS, Judge, Kind, Tried, identity
from netsplit.rewrite.records import folded
from netsplit.tables import Column, Table, nbytes

__all__ = ["FrontierRow", "absent_kinds", "frontier_of", "frontier_table"]

PER_KIND = 3
_WORDS: dict[Kind, str] = {"single": "one-device", "operators": "operator-by-operator"}
SHOWN = 0.001  # relative: no less is told apart
SHOWN_S = 5e-5  # what rounds to 0.1 ms
_COLUMNS = (
    Column("kind", text=True),
    Column("placement", text=True),
    Column("schedule", text=True),
    Column("micro-batches"),
    Column("devices"),
    Column("samples/s", ",.1f"),
    Column("peak", in_bytes=True),
    Column("why not", text=True, below=True),
)


@dataclass(frozen=True)
class FrontierRow:
    """One of the plans that were looked at."""

    kind: str
    placement: str
    schedule: str
    microbatches: int
    devices: int
    samples_per_s: float | None  # None: it does not fit
    peak_bytes: int  # of the device that has most alive
    why_not: str  # "" of the one that was chosen
    parts: int = 0  # operators that are in parts
    recomputes: bool = False
    slices: str = ""  # what replicas keep in slices, and what the other levels would take

    @property
    def cells(self) -> tuple[Any, ...]:
        told = (self.why_not or "chosen", self.in_parts, "recomputes" * self.recomputes, self.slices)
        return (
            self.kind, self.placement, self.schedule, self.microbatches, self.devices, self.samples_per_s,
            self.peak_bytes, "; ".join(filter(None, told)),
        )  # fmt: skip

    @property
    def in_parts(self) -> str:
        """How many operators are, in words; "" for none."""
        return f"{counted(self.parts, 'operator')} in parts" if self.parts else ""


def frontier_of(judge: Judge, winner: Tried, batch_size: int) -> tuple[FrontierRow, ...]:
    """The best few placements of every kind, each under its best schedule; the chosen one first."""
    rows = [_row(winner, winner, batch_size, judge.levels.get(identity(winner.placement), ()))]
    for kind in (*KINDS, "parts"):
        seen = [winner] if kind == winner.kind else []
        own = sorted((t for t in judge.tried if t.kind == kind), key=lambda tried: tried.rank)
        for tried in own:
            if any(_alike(tried, other) for other in seen):
                continue
            shown = len(seen) - (kind == winner.kind)
            if shown == PER_KIND or (shown > 0 and not tried.fits):
                break
            seen.append(tried)
            rows.append(_row(tried, winner, batch_size))
    return tuple(rows)


def absent_kinds(judge: Judge, reasons: Mapping[Kind, str], method: Partitioner | None) -> tuple[str, ...]:
    """Sentences for the kinds that have no row, those of one reason in one.

    Args:
        reasons: why nothing was tried of a kind.
        method: whose placements alone were wanted.
    """
    shown = {tried.kind for tried in judge.tried}
    usual = "all that were tried were refused" if method is None else f"only {method.name} was asked for"
    skipped: dict[str, list[str]] = {}
    for kind in KINDS:
        if kind not in shown:
            skipped.setdefault(reasons.get(kind, usual), []).append(_WORDS.get(kind, kind))
    return tuple(
        f"{listed(kinds).capitalize()} plans skipped: {reason}." for reason, kinds in skipped.items()
    )


def frontier_table(rows: Iterable[FrontierRow]) -> Table:
    """For a terminal, a file, a notebook."""
    title = "Plans of each kind, the chosen one first:"
    return Table(_COLUMNS, [row.cells for row in rows], title, marked={0: "best"})


def _alike(tried: Tried, shown: Tried) -> bool:
    """Plans of one origin that differ in their cuts or micro-batches alone are one to people; and those that
    are as fast, too."""
    as_fast = tried.rank[:2] == shown.rank[:2]
    return tried.origin == shown.origin and (as_fast or _order(tried) == _order(shown))


def _order(tried: Tried) -> str:
    """The schedule's name; "" where it orders nothing: one device, replicas of all, one micro-batch."""
    ordered = tried.kind not in ("single", "data parallel") and tried.schedule.microbatches > 1
    return tried.schedule.name if ordered else ""


def _row(tried: Tried, winner: Tried, batch_size: int, levels: Sequence[Tried] = ()) -> FrontierRow:
    schedule = tried.schedule
    return FrontierRow(
        tried.kind,
        tried.origin,
        schedule.name,
        schedule.microbatches,
        len(tried.devices),
        batch_size / tried.iteration_s if tried.fits else None,
        max(tried.peak_bytes.values(), default=0),
        "" if tried is winner else _why_not(tried, winner),
        sum(bool(each.cuts) for each in folded(tried.placement.rewrites).values()),
        tried.recomputes,
        _slices(tried, levels),
    )


def _slices(tried: Tried, levels: Sequence[Tried]) -> str:
    """As "shard=parameters (none: 10.58 GiB missing, optimizer: 2,010.0 ms)"; "" for whole states."""
    if not tried.placement.shards:
        return ""
    own = _level(tried)
    others = {
        _level(each): _ms(each.iteration_s) if each.fits else f"{nbytes(each.missing_bytes)} missing"
        for each in levels
        if _level(each) != own
    }
    told = ", ".join(f"{level}: {much}" for level, much in others.items())
    return f"shard={own}" + (f" ({told})" if told else "")


def _level(tried: Tried) -> str:
    shards = tried.placement.shards
    return shards[0].level if shards else "none"


def _why_not(tried: Tried, winner: Tried) -> str:
    """What it has more of than the chosen plan, where that is most."""
    if not tried.fits:
        return f"does not fit: {tried.missing_on} lacks {nbytes(tried.missing_bytes)}"
    more = {
        f"{tried.busiest} sums gradients for {{}} more": tried.sums_s - winner.sums_s,
        f"{tried.busiest} recomputes activations for {{}} more": tried.recompute_s - winner.recompute_s,
        f"{tried.busiest} computes {{}} more": (tried.compute_s - tried.recompute_s)
        - (winner.compute_s - winner.recompute_s),
        f"{tried.busiest} waits {{}} more (bubbles, transfers, overheads)": tried.wait_s - winner.wait_s,
    }
    behind = tried.iteration_s / winner.iteration_s - 1
    if behind <= SHOWN:
        return "as fast within 0.1 %, " + _second_to(tried, winner)
    words = max(more, key=lambda key: more[key])
    much = f"{100 * behind:.1f} % longer" if behind < 1.0 else f"{1.0 + behind:,.1f} times as long"
    return f"takes {much}: " + words.format(_ms(more[words]))


def _second_to(tried: Tried, winner: Tried) -> str:
    """Why it comes after a plan that takes as long."""
    if len(tried.devices) > len(winner.devices):
        return "on more devices"
    if max(tried.peak_bytes.values(), default=0) > max(winner.peak_bytes.values(), default=0):
        return "with more bytes"
    if tried.schedule.microbatches > winner.schedule.microbatches:
        return "with more micro-batches"
    return "though no faster"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms" if seconds >= SHOWN_S else f"{1e3 * seconds:.1g} ms"
