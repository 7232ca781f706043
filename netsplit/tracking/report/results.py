"""What a report shows, as it was recorded: comparisons, their methods, the methods' epochs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import accumulate
from pathlib import Path

from netsplit.tracking.table import ComparisonRow

__all__ = ["ComparisonResult", "EpochFigures", "MethodResult", "Place", "Report"]


@dataclass(frozen=True)
class EpochFigures:
    """One pass over the training half; None where a value is missing or no finite number."""

    index: int
    train_loss: float | None = None
    accuracy: float | None = None  # fraction
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

    @property
    def name(self) -> str:
        return self.row.method

    @property
    def throughput(self) -> float | None:
        """Samples per second: measured, or else predicted; None of a method that failed."""
        if self.row.failed:
            return None
        return self.predicted_throughput if self.row.throughput is None else self.row.throughput

    @property
    def peaks(self) -> dict[str, int]:
        """Device -> peak bytes: measured, or else predicted."""
        return {**self.row.predicted_peak, **self.row.measured_peak}

    @property
    def too_large(self) -> bool:
        """A device holds more than it may: a reference that only ran because nothing enforces the limit."""
        return any(peak > self.row.capacity.get(device, peak) for device, peak in self.peaks.items())

    @property
    def outcome(self) -> str:
        """In a word: "finished", "failed", "interrupted", "running"; or that it is beyond a capacity."""
        if self.too_large and not self.row.failed:
            return "beyond capacity"
        return {"KILLED": "interrupted"}.get(self.state, self.state.lower())

    @property
    def only_predicted(self) -> bool:
        return self.row.throughput is None and self.throughput is not None

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
    detail: str = ""  # tells it from others of its name

    @property
    def title(self) -> str:
        return f"{self.name} ({self.detail})" if self.detail else self.name

    @property
    def planned(self) -> bool:
        """Nothing was trained: the figures are predictions."""
        return self.tags.get("mode") == "planned"

    @property
    def best(self) -> MethodResult | None:
        """The fastest within its devices' capacities; measured before only predicted."""
        known = [method for method in self.methods if method.throughput is not None and not method.too_large]
        measured = [method for method in known if not method.only_predicted]
        return max(measured or known, key=lambda method: method.throughput or 0.0, default=None)

    @property
    def failed(self) -> list[MethodResult]:
        return [method for method in self.methods if method.row.failed]


@dataclass(frozen=True)
class Report:
    """Comparisons in the order in which they are shown."""

    title: str
    comparisons: Sequence[ComparisonResult]
    source: str  # the database, without a password
    written: datetime

    @property
    def methods(self) -> list[str]:
        """Names of all methods, in order of first appearance."""
        return list(dict.fromkeys(method.name for _, method in self))

    def __iter__(self) -> Iterator[tuple[ComparisonResult, MethodResult]]:
        return ((comparison, method) for comparison in self.comparisons for method in comparison.methods)
