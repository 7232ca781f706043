"""What a report shows, as it was recorded: comparisons, their methods, the methods' epochs; studies."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from netsplit.tracking.database import server_of
from netsplit.tracking.metrics import COMMAND
from netsplit.tracking.table import ComparisonRow

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = [
    "ComparisonGroup", "ComparisonResult", "EpochFigures", "MethodResult", "PictureFile", "Place",
    "Report", "StudyRecord", "duration_s", "place_of", "source_of", "started",
]  # fmt: skip


def source_of(name: str, tags: Mapping[str, str]) -> str:
    """What a comparison is called; of a case the experiment that it is of, or its name without the case."""
    case = tags.get("case")
    return (tags.get("experiment") or name.removesuffix(f": {case}")) if case else name


@dataclass(frozen=True)
class EpochFigures:
    """One pass over the training half; None where a value is missing or no finite number."""

    index: int
    train_loss: float | None = None
    score: float | None = None  # of the metric on the test half
    seconds: float | None = None  # without the evaluation


@dataclass(frozen=True)
class Place:
    """Where a run is found."""

    run_id: str
    page: str | None = None  # its address on a tracking server
    folder: Path | None = None  # of its artifacts, where they are files of this machine
    trace: Path | str | None = None  # trace.json: a file of this machine, or an address

    @property
    def short_id(self) -> str:
        return self.run_id[:8]


@dataclass(frozen=True)
class MethodResult:
    """One method's run. `row` has its figures; its `throughput` was measured."""

    row: ComparisonRow
    place: Place
    state: str  # as MLflow has it: FINISHED, FAILED, KILLED, RUNNING
    predicted_throughput: float | None = None  # samples per second
    engine: str = ""
    bound_s: float | None = None
    started: datetime | None = None
    seconds: float | None = None  # from begin to end
    epochs: Sequence[EpochFigures] = ()
    published: float | None = None  # samples per second that others report
    decisions: Sequence[Mapping[str, Any]] = ()  # about its plan while it trained, as they were recorded
    over_capacity: str = ""  # devices whose capacity its plan exceeds

    @property
    def name(self) -> str:
        return self.row.method

    @property
    def throughput(self) -> float | None:
        """Samples per second: measured, or else predicted; None of a method that failed or gave no answer."""
        if self.row.failed or self.row.unanswered:
            return None
        return self.predicted_throughput if self.row.throughput is None else self.row.throughput

    @property
    def difference(self) -> float | None:
        """(ours - published) / published."""
        if self.throughput is None or not self.published:
            return None
        return self.throughput / self.published - 1

    @property
    def peaks(self) -> dict[str, int]:
        """Device -> peak bytes: measured, or else predicted."""
        return {**self.row.predicted_peak, **self.row.measured_peak}

    @property
    def too_large(self) -> bool:
        """A device holds, or was to hold, more than it may: a reference, of which nothing enforces it."""
        return bool(self.row.overfull or self.over_capacity)

    @property
    def outcome(self) -> str:
        """In a word: "finished", "failed", "interrupted", "running"; or that it is none, or too large."""
        if self.row.unanswered and not self.row.failed:
            return "no answer in time"
        if self.too_large and not self.row.failed:
            return "beyond capacity"
        return {"KILLED": "interrupted"}.get(self.state, self.state.lower())

    @property
    def only_predicted(self) -> bool:
        return self.row.throughput is None and self.throughput is not None

    def is_as_fast_as(self, best: MethodResult | None) -> bool:
        """It is within its capacities, and its throughput is that of `best`, measured or predicted alike."""
        if best is None or self.too_large:
            return False
        return self.throughput == best.throughput and self.only_predicted == best.only_predicted

    @property
    def elapsed_s(self) -> list[float | None]:
        """Seconds of training at the end of each epoch, as far as all before it are known."""
        known = [epoch.seconds for epoch in self.epochs]
        return list(accumulate(known, lambda a, b: None if a is None or b is None else a + b))

    @property
    def full_row(self) -> ComparisonRow:
        """`row` with the throughput that the report shows."""
        return replace(self.row, throughput=self.throughput)


@dataclass(frozen=True)
class ComparisonResult:
    """One comparison: what was compared on what, and each method's result."""

    name: str
    place: Place
    experiment: str
    state: str
    methods: Sequence[MethodResult] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    started: datetime | None = None
    seconds: float | None = None
    error: str | None = None
    detail: str = ""  # tells it from others of its name, or of its sweep
    older: int = 0  # comparisons of its name that are left out
    more: int = 0  # comparisons of its command that are left out

    @property
    def title(self) -> str:
        return f"{self.name} ({self.detail})" if self.detail else self.name

    @property
    def label(self) -> str:
        """What it is called among those of its group."""
        return self.case or self.detail or self.name

    @property
    def command(self) -> str:
        """The same of all that one command recorded; empty of runs of before there was one."""
        return self.tags.get(COMMAND, "")

    @property
    def planned(self) -> bool:
        """Nothing was trained: the figures are predictions."""
        return self.tags.get("mode") == "planned"

    @property
    def case(self) -> str:
        """Its name among the cases of an experiment; empty of one that stands alone."""
        return self.tags.get("case", "")

    @property
    def published(self) -> list[MethodResult]:
        """Those of which others published a throughput."""
        return [method for method in self.methods if method.published is not None]

    @property
    def contested(self) -> bool:
        """Two methods or more have a throughput, so that one of them is the fastest."""
        return sum(method.throughput is not None for method in self.methods) > 1

    @property
    def best(self) -> MethodResult | None:
        """The fastest within its devices' capacities; measured before only predicted."""
        return _fastest(self.methods)

    def won_by(self, method: MethodResult) -> bool:
        """It is the fastest of several, or exactly as fast."""
        return self.contested and method.is_as_fast_as(self.best)

    @property
    def failed(self) -> list[MethodResult]:
        return [method for method in self.methods if method.row.failed]


@dataclass(frozen=True)
class ComparisonGroup:
    """The cases of an experiment, the jobs of a sweep, or one comparison alone."""

    title: str
    comparisons: Sequence[ComparisonResult]

    @property
    def alone(self) -> bool:
        return len(self.comparisons) == 1

    @property
    def is_sweep(self) -> bool:
        return not self.alone and not self.comparisons[0].case

    @property
    def best(self) -> MethodResult | None:
        """The fastest of all, as `ComparisonResult.best`."""
        return _fastest([method for comparison in self.comparisons for method in comparison.methods])

    def won_by(self, comparison: ComparisonResult, method: MethodResult) -> bool:
        """It is the fastest of its case, or of the whole sweep."""
        if not self.is_sweep:
            return comparison.won_by(method)
        known = [each for one in self.comparisons for each in one.methods if each.throughput is not None]
        return len(known) > 1 and method.is_as_fast_as(self.best)


@dataclass(frozen=True)
class PictureFile:
    """A picture as it was recorded."""

    name: str
    kind: str  # "image/svg+xml", "image/png"
    content: bytes = field(repr=False)

    @property
    def address(self) -> str:
        """The whole picture as an address."""
        return f"data:{self.kind};base64,{base64.b64encode(self.content).decode('ascii')}"


@dataclass(frozen=True)
class StudyRecord:
    """One study: its table as it was shown, its notes and its pictures."""

    name: str
    place: Place
    experiment: str
    about: str
    headings: Sequence[str] = ()
    numeric: Sequence[bool] = ()  # of each heading: figures, which stand to the right
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    pictures: Sequence[PictureFile] = ()
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    started: datetime | None = None
    detail: str = ""  # tells it from others of its name

    @property
    def title(self) -> str:
        name = f"{self.name} ({self.detail})" if self.detail else self.name
        return f"{name}: {self.about}" if self.about else name


@dataclass(frozen=True)
class Report:
    """Comparisons and studies in the order in which they are shown; cases beside one another."""

    title: str
    groups: Sequence[ComparisonGroup]
    source: str  # the database, without a password
    written: datetime
    studies: Sequence[StudyRecord] = ()

    @property
    def comparisons(self) -> list[ComparisonResult]:
        return [comparison for group in self.groups for comparison in group.comparisons]

    def counted(self) -> str:
        """``4 comparisons, 2 studies``."""
        comparisons, studies = len(self.comparisons), len(self.studies)
        parts = [f"{comparisons} comparison{'s' * (comparisons != 1)}"] if comparisons else []
        parts += [f"{studies} {'study' if studies == 1 else 'studies'}"] if studies else []
        return ", ".join(parts)

    @property
    def methods(self) -> list[str]:
        """Names of all methods, in order of first appearance."""
        return list(dict.fromkeys(method.name for _, method in self))

    def __iter__(self) -> Iterator[tuple[ComparisonResult, MethodResult]]:
        return ((comparison, method) for comparison in self.comparisons for method in comparison.methods)


def _fastest(methods: Sequence[MethodResult]) -> MethodResult | None:
    """Within its devices' capacities; measured before only predicted."""
    known = [method for method in methods if method.throughput is not None and not method.too_large]
    measured = [method for method in known if not method.only_predicted]
    return max(measured or known, key=lambda method: method.throughput or 0.0, default=None)


_TRACE = "trace.json"


def place_of(client: MlflowClient, uri: str, run: Run) -> Place:
    """Its files where they are on this machine, and its page on a tracking server."""
    run_id, artifacts = str(run.info.run_id), urlsplit(run.info.artifact_uri or "")
    page = None
    if server := server_of(uri):
        page = f"{server}#/experiments/{quote(run.info.experiment_id)}/runs/{quote(run_id)}"
    if artifacts.scheme in ("", "file"):
        folder = Path(unquote(artifacts.path))
        is_here = bool(artifacts.path) and folder.is_dir()
        trace = folder / _TRACE
        return Place(run_id, page, folder if is_here else None, trace if trace.is_file() else None)
    if page is None or all(each.path != _TRACE for each in client.list_artifacts(run_id)):
        return Place(run_id, page)
    return Place(run_id, page, trace=f"{page}/artifacts/{_TRACE}")


def started(run: Run) -> datetime | None:
    begin = run.info.start_time
    return None if begin is None else datetime.fromtimestamp(begin / 1e3, UTC)


def duration_s(run: Run) -> float | None:
    begin, end = run.info.start_time, run.info.end_time
    return None if begin is None or end is None else (end - begin) / 1e3
