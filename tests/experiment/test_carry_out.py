"""One comparison a case: what fails stops no other, and is told with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from netsplit.errors import NetSplitError
from netsplit.experiment.records import Comparison
from netsplit.tracking import ComparisonRow
from runners._carry_out import comparisons_of


def test_a_case_that_fails_stops_no_other() -> None:
    requests: Any = {name: SimpleNamespace(published={"auto": 2.0}) for name in ("one", "two", "three")}
    failed = ComparisonRow("m_topo", "failed", error="no room")
    told: list[Mapping[str, str]] = []

    def compare_case(case: str, request: object, published: Mapping[str, str]) -> Comparison:
        told.append(published)
        if case == "one":
            raise NetSplitError("too\n large")
        return Comparison(
            Path(case), [ComparisonRow("auto", "optimal"), *([failed] if case == "two" else [])]
        )

    cases = comparisons_of(requests, compare_case)
    assert list(cases.comparisons) == ["two", "three"]
    assert list(cases.reasons) == ["one", "two"]
    assert cases.reasons["one"] == "too large"
    assert all(word in cases.reasons["two"] for word in ("1 of 2", "m_topo", "no room"))
    assert cases.published == {name: {"auto": 2.0} for name in requests}
    assert all("2.0" in tags.values() for tags in told)
    assert len(told) == 3
