"""What lies between a join and its immediate dominator."""

import time

import numpy as np

from netsplit.partition.bounds.dominators import dominated_sets


def test_a_join_is_bounded_by_what_lies_between_it_and_its_dominator():
    #     0 -> 1, 2 -> 3 -> 4
    before = [[], [0], [0], [1, 2], [3]]
    assert dominated_sets(before, np.ones(5)) == [(0, 3, [1, 2])]


def test_after_the_deadline_there_are_none():
    assert dominated_sets([[], [0], [0], [1, 2]], np.ones(4), time.perf_counter()) == []
