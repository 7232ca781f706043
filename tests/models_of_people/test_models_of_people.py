"""Code as people write it trains split as it trains whole, or is refused for the true reason."""

from __future__ import annotations

import pytest

from tests.golden.people import outcome_of
from tests.golden.recorded import recorded
from tests.models_of_people.cases import Case, all_cases
from tests.models_of_people.harness import as_expected, judge
from tests.models_of_people.known import KNOWN

CASES = all_cases()


def _marked(case: Case) -> object:
    marks = [pytest.mark.slow] if case.slow else []
    if case.name in KNOWN:
        marks.append(pytest.mark.xfail(reason=KNOWN[case.name], strict=True))
    return pytest.param(case, id=case.name, marks=marks)


@pytest.mark.parametrize("case", map(_marked, CASES.values()))
def test_trains_as_the_plain_loop_does_or_is_refused_with_the_true_reason(case: Case) -> None:
    outcome = judge(case)
    assert not as_expected(case, outcome), as_expected(case, outcome)
    assert outcome_of(outcome) == recorded("people")[case.name], "intended? see tests.golden.record"


def test_every_case_says_what_it_expects() -> None:
    assert len(CASES) >= 130
    assert not KNOWN.keys() - CASES.keys()
    for case in CASES.values():
        assert case.expect in ("equal", "refused", "either"), case.name
        assert bool(case.reason) == (case.expect != "equal"), case.name
