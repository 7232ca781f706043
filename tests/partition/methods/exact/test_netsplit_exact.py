"""`netsplit_exact` against enumeration: same optimum, same verdict on memory; a law of its bounds."""

from dataclasses import replace

from netsplit.partition.methods.exact import netsplit_exact
from netsplit.partition.methods.exact.netsplit_exact import NetSplitExact, solve_latency
from tests.partition.builders import large_problem


def test_the_time_limit_of_the_problem_takes_precedence(monkeypatch):
    given_s = []

    def solve(instance, time_limit_s, *more, **options):
        given_s.append(time_limit_s)
        return solve_latency(instance, time_limit_s, *more, **options)

    monkeypatch.setattr(netsplit_exact, "solve_latency", solve)
    problem = replace(large_problem(100), time_limit_s=2.0)
    report = NetSplitExact(time_limit_s=600).partition(problem).report
    assert 0 < given_s[0] <= 2.0
    assert report.bound is not None
    assert 0 < report.bound <= report.objective
