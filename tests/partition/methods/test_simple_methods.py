from dataclasses import replace

import pytest

from netsplit.errors import ConfigError
from netsplit.partition import Problem, Random, Single
from tests.builders import chain, cluster_of, costs_of
from tests.partition.builders import large_problem


def test_single_takes_the_first_device_or_the_one_it_is_told():
    graph = chain([4, 4])
    problem = Problem(graph, costs_of(graph), cluster_of([0, 0]))
    assert set(Single().partition(problem).device_of.values()) == {"d0"}
    assert set(Single(device="d1").partition(problem).device_of.values()) == {"d1"}


def test_single_refuses_a_device_that_the_cluster_lacks():
    graph = chain([4])
    with pytest.raises(ConfigError, match="no device 'd7'"):
        Single(device="d7").partition(Problem(graph, costs_of(graph), cluster_of([0])))
    with pytest.raises(ConfigError, match=r"single\.device is empty"):
        Single(device="")


def test_random_uses_every_device_about_equally_and_its_seed_matters():
    problem = large_problem(600)
    first = Random().partition(problem).device_of
    other = Random().partition(replace(problem, seed=1)).device_of
    counts = [list(first.values()).count(f"d{p}") for p in range(3)]
    assert min(counts) > 150
    assert first != other
