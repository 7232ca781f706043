"""The solvers of max_load against plain recomputation and brute force."""

from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from netsplit.errors import InfeasibleError
from netsplit.partition import Problem
from netsplit.partition.common.instance import Instance
from netsplit.partition.max_load import solve_max_load
from netsplit.partition.max_load.chains import Order
from netsplit.partition.max_load.model import Hypergraph
from tests.builders import cluster_of, costs_of, graph_of
from tests.examples import tried
from tests.partition.builders import problems

FEW = settings(max_examples=tried(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def plain_load(instance: Instance, where: tuple[int, ...]) -> float:
    """The definition, word by word: seconds of the nodes, and a hop for every output sent or received."""
    total = [0.0] * len(instance.devices)
    for v, d in enumerate(where):
        total[d] += instance.forward_s[v, d] + instance.backward_s[v, d]
    for u, made in enumerate(instance.producer):
        readers = {where[v] for v in instance.consumers[u]}
        for d in range(len(total)):
            if where[made] == d and readers - {d}:
                total[d] += instance.hop_s[u, d]
            if where[made] != d and d in readers:
                total[d] += instance.hop_s[u, d]
    return max(total)


def placements(instance: Instance) -> list[tuple[int, ...]]:
    """All that keep atoms together and meet the memory."""
    devices = range(len(instance.devices))
    allowed = []
    for choice in product(devices, repeat=len(instance.atoms)):
        where = tuple(choice[a] for a in instance.atom_of)
        if instance.fits(np.array(where, np.int64)):
            allowed.append(where)
    return allowed


def is_chain(instance: Instance, where: tuple[int, ...]) -> bool:
    """Whether the devices can be ordered so that no edge goes back; backward nodes by themselves."""
    names = instance.problem.backward_nodes
    for kind in (False, True):
        arcs = {
            (where[u], where[int(v)])
            for u in range(instance.n)
            for v in instance.successors[u]
            if (instance.names[u] in names) == kind == (instance.names[int(v)] in names)
        }
        arcs = {(p, q) for p, q in arcs if p != q}
        while arcs:
            last = {p for p, _ in arcs}
            kept = {(p, q) for p, q in arcs if q in last}
            if kept == arcs:
                return False
            arcs = kept
    return True


def check(problem: Problem, contiguous: bool) -> None:
    instance = Instance.of(problem)
    fitting = placements(instance)
    if contiguous:
        fitting = [where for where in fitting if is_chain(instance, where)]
    if not fitting:
        with pytest.raises(InfeasibleError):
            solve_max_load(instance, 5.0, contiguous=contiguous)
        return
    best = min(plain_load(instance, where) for where in fitting)
    answer = solve_max_load(instance, 5.0, contiguous=contiguous, gap=1e-6)
    where = instance.encode(answer.device_of)
    assert tuple(where) in fitting
    assert answer.objective_s == float(instance.loads(where).max())
    assert answer.objective_s == pytest.approx(plain_load(instance, tuple(where)), rel=1e-9)
    assert answer.objective_s == pytest.approx(best, rel=1e-6, abs=1e-12)
    assert answer.bound_s is not None
    assert answer.bound_s <= best * (1 + 1e-9)
    if answer.status == "optimal":
        assert answer.bound_s == pytest.approx(best, rel=2e-6, abs=1e-12)


@FEW
@given(problems(max_nodes=6))
def test_contiguous_equals_brute_force(problem: Problem) -> None:
    check(problem, contiguous=True)


@settings(FEW, max_examples=12)
@given(problems(max_nodes=6))
def test_non_contiguous_equals_brute_force(problem: Problem) -> None:
    check(problem, contiguous=False)


def test_backward_edges_may_run_either_way() -> None:
    """Forward a -> b -> c with backward a' -> b' -> c' or c' -> b' -> a': no group has to be merged."""
    for tensors in ([("a'", 1, ["b'"]), ("b'", 1, ["c'"])], [("c'", 1, ["b'"]), ("b'", 1, ["a'"])]):
        names = ["a", "b", "c", *(["a'", "b'", "c'"] if tensors[0][0] == "a'" else ["c'", "b'", "a'"])]
        graph = graph_of(
            names,
            [("a", 1, ["b"]), ("b", 1, ["c"]), *tensors],
            colocated=[("a", "a'"), ("b", "b'"), ("c", "c'")],
        )
        backward = frozenset({"a'", "b'", "c'"})
        problem = Problem(graph, costs_of(graph), cluster_of([99] * 3), backward_nodes=backward)
        model, _ = Order.acyclic(Instance.of(problem), Hypergraph.of(Instance.of(problem)))
        assert model.count == 3
