"""The best of all placements, by trying them all."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import pytest

from netsplit.errors import InfeasibleError
from netsplit.graph.quotient import atoms_of
from netsplit.partition import Partitioner, Problem, SolverReport
from netsplit.profile.memory import static_model

__all__ = ["assert_best_of_all", "fitting", "least"]

Groups = Sequence[Sequence[str]]
Score = Callable[[Problem, dict[str, str]], float]  # of (problem, device of each node)


def fitting(problem: Problem, groups: Groups) -> Iterator[dict[str, str]]:
    """The device of each node, for all placements of the groups within the capacities."""
    for chosen in product(problem.cluster.devices, repeat=len(groups)):
        device_of = {n: d.name for group, d in zip(groups, chosen, strict=True) for n in group}
        used = static_model(problem.graph, problem.costs.alpha, problem.copies).by_device(device_of)
        if all(nbytes <= problem.cluster.device(name).capacity_bytes for name, nbytes in used.items()):
            yield device_of


def least(problem: Problem, groups: Groups, score: Score) -> float | None:
    """The least score of these; None where nothing fits."""
    return min((score(problem, device_of) for device_of in fitting(problem, groups)), default=None)


def assert_best_of_all(method: Partitioner, problem: Problem, score: Score) -> SolverReport | None:
    """The report of an answer that no placement beats; None where it is true that none fits."""
    best = least(problem, atoms_of(problem.graph), score)
    try:
        placement = method.partition(problem)
    except InfeasibleError:
        assert best is None
        return None
    report = placement.report
    assert report.status == "optimal"
    assert report.objective is not None
    assert report.bound is not None
    assert report.objective == pytest.approx(score(problem, placement.device_of), rel=1e-9, abs=1e-12)
    assert report.objective == pytest.approx(best, rel=1e-6, abs=1e-6)
    assert report.bound <= report.objective
    return report
