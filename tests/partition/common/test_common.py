"""What methods have in common: turns, queues, groups of devices, replicas side by side, orders."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netsplit.cluster.cluster import Cluster, Link
from netsplit.graph.quotient import topological_priority
from netsplit.partition import Dpos, Problem
from netsplit.partition.common.homes import MUCH, devices_of_nodes, linked_groups
from netsplit.partition.common.instance import Instance, interchangeable
from netsplit.partition.methods.list_schedulers import fifo_starts
from netsplit.planning.verify import verify
from netsplit.planning.whole.stages import turns_for
from netsplit.rewrite import applied, replicate
from tests.builders import cpus, graph_of
from tests.examples import tried
from tests.partition.builders import problems
from tests.rewrite.models import STEPS

some_seconds = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=4)


def counts(devices: int, microbatches: int) -> Iterator[tuple[int, ...]]:
    """Every way to give so many micro-batches to so many devices."""
    if devices == 1:
        yield (microbatches,)
        return
    for own in range(microbatches + 1):
        for rest in counts(devices - 1, microbatches - own):
            yield (own, *rest)


def end_s(seconds: Sequence[float], taken: Sequence[int]) -> float:
    return max(each * count for each, count in zip(seconds, taken, strict=True))


@given(some_seconds, st.integers(1, 9))
def test_no_way_to_share_micro_batches_ends_earlier(seconds: list[float], microbatches: int) -> None:
    """Holds for the first few too: a smaller batch has the same turns."""
    turns = turns_for(seconds, microbatches)
    assert len(turns) == microbatches
    for batch in range(1, microbatches + 1):
        taken = [turns[:batch].count(place) for place in range(len(seconds))]
        assert end_s(seconds, taken) == min(end_s(seconds, each) for each in counts(len(seconds), batch))


def test_equal_devices_take_one_after_the_other_and_faster_ones_more() -> None:
    assert turns_for([1.0, 1.0, 1.0], 6) == (0, 1, 2, 0, 1, 2)
    assert turns_for([2.0, 1.0], 6) == (1, 0, 1, 1, 0, 1)
    assert turns_for([100.0, 1.0], 4) == (1, 1, 1, 1)


examples = settings(max_examples=tried(60), deadline=None, suppress_health_check=list(HealthCheck))


def by_definition(instance: Instance, where: Sequence[int]) -> dict[int, float]:
    """Starts, one after the other: of what is ready, on each device what came first."""
    start: dict[int, float] = {}
    end: dict[int, float] = {}
    free = [0.0] * len(instance.devices)
    while len(start) < instance.n:
        options = []
        for v in range(instance.n):
            p = where[v]
            feeds = [(int(instance.producer[k]), int(k)) for k in instance.reads[v]]
            if v in start or any(u not in end for u, _ in feeds):
                continue
            message_s = instance.latency_s[:, p] + instance.nbytes[:, None] * instance.seconds_per_byte[:, p]
            came = [end[u] + (where[u] != p) * message_s[k, where[u]] for u, k in feeds]
            ready = max(came, default=0.0)
            options.append((max(ready, free[p]), ready, v))
        # The one that starts first of all cannot be overtaken; on its device it is the first that came.
        begin, _, v = min(options)
        start[v] = begin
        end[v] = free[where[v]] = begin + float(instance.forward_s[v, where[v]])
    return start


@examples
@given(problems(roomy=True, colocate=False), st.data())
def test_starts_are_those_by_definition(problem: Problem, data: st.DataObject) -> None:
    instance = Instance.of(problem)
    place = st.integers(0, len(instance.devices) - 1)
    where = data.draw(st.lists(place, min_size=instance.n, max_size=instance.n))
    starts = fifo_starts(instance, where)
    wanted = by_definition(instance, where)
    assert [starts[name] for name in instance.names] == pytest.approx([wanted[v] for v in range(instance.n)])


@examples
@given(problems())
def test_a_queues_order_verifies(problem: Problem) -> None:
    instance = Instance.of(problem)
    if not np.all(instance.capacity > instance.state_bytes.sum() + instance.held_bytes.sum()):
        return
    verify(problem, Dpos(order="fifo").partition(problem)).require()


def servers(homes: list[int], times: float) -> Cluster:
    """A device for each, on that server; between servers a byte takes so many times as long."""
    cluster = cpus(len(homes))
    home = {device.name: s for device, s in zip(cluster.devices, homes, strict=True)}
    pairs = [(a, b) for a, b in product(home, home) if a != b]
    links = {(a, b): Link(1e-6, 1e-9 if home[a] == home[b] else times * 1e-9) for a, b in pairs}
    return replace(cluster, links=links)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.floats(MUCH, 100.0))
def test_groups_are_servers(homes: list[int], times: float) -> None:
    """Where some server has two devices, so that fast links are known; else one group of all."""
    cluster = servers(homes, times)
    known = len(set(homes)) < len(homes)
    kinds = dict.fromkeys(homes) if known else {0: None}
    wanted = [tuple(f"cpu:{i}" for i, s in enumerate(homes) if s == kind or not known) for kind in kinds]
    assert list(linked_groups(cluster)) == wanted


@pytest.mark.parametrize("name", ["mlp", "transformer", "recurrent"])
def test_no_weight_is_sent_to_a_replica(name: str) -> None:
    """Nor is one that two operators share, which a node of its own hands on to both."""
    graph = STEPS[name].graph()
    graph = applied(graph, replicate(graph, 3))
    device_of = devices_of_nodes(graph, cpus(3).names)
    assert set(device_of.values()) == {"cpu:0", "cpu:1", "cpu:2"}
    for node in graph:
        if node.initializers and not node.inputs and "~" in node.name:
            assert {device_of[v] for v in graph.successors[node.name]} == {device_of[node.name]}, node
    for group in graph.colocated:
        assert len({device_of[v] for v in group}) == 1


@given(st.integers(1, 5), st.data())
def test_two_devices_stand_in_one_set_just_where_their_exchange_changes_nothing(
    n: int, data: st.DataObject
) -> None:
    own = data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    cells = data.draw(st.lists(st.integers(0, 1), min_size=n * n, max_size=n * n))
    table = np.array(cells).reshape(n, n)
    table[np.diag_indices(n)] = 0
    sets = interchangeable(own, [table])
    assert sorted(v for group in sets for v in group) == list(range(n))
    together = {pair for group in sets for pair in combinations(group, 2)}
    for p, q in combinations(range(n), 2):
        swap = list(range(n))
        swap[p], swap[q] = q, p
        same = own[p] == own[q] and bool((table == table[np.ix_(swap, swap)]).all())
        assert ((p, q) in together) == same


def order(rank: dict[str, int]) -> str:
    return "".join(sorted(rank, key=rank.__getitem__))


def test_the_ready_node_with_the_least_key_comes_first_and_ties_go_to_captured_order():
    graph = graph_of("abcd", [("a", 1, "d")])
    assert order(topological_priority(graph, {"a": 5, "b": 1, "c": 1, "d": 0})) == "bcad"


def test_a_unit_stays_in_one_piece_and_in_captured_order():
    """Node d writes in place what c reads: c must run before it, though its key is larger."""
    graph = graph_of("abcd", [("a", 1, "cd"), ("b", 1, "c")], units=["acd"])
    assert order(topological_priority(graph, {"a": 0, "b": 3, "c": 9, "d": 1})) == "bacd"


@settings(deadline=None)
@given(problem=problems(max_nodes=12), data=st.data())
def test_any_key_gives_a_topological_order(problem, data):
    graph = problem.graph
    rank = topological_priority(graph, {name: data.draw(st.integers(0, 3)) for name in graph.nodes})
    assert sorted(rank.values()) == list(range(len(graph)))
    assert all(rank[u] < rank[v] for u, v, _ in graph.edges)
