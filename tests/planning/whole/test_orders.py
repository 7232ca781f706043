"""Which schedules placements are tried under, phase by phase."""

import time

from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.judge import Judge, Tried
from netsplit.planning.whole.search import NEAR, WholeSearch
from tests.planning.whole.test_search import problem_of

COUNTS = (2, 4)


def test_each_placement_is_first_tried_in_an_order_of_its_own() -> None:
    """The whole search for an order is for what is not far behind."""
    judge, now = Judge(lambda m: problem_of("chain", m, 2)), time.perf_counter()
    open_ = AutoSchedule(replicas=False)
    search = WholeSearch(COUNTS, open_, judge, None, now, now + 60)

    def several() -> list[Tried]:
        return [tried for tried in judge.seen.values() if tried is not None and len(tried.devices) > 1]

    search._structures(now + 60)
    assert several()
    assert {tried.schedule for tried in several()} <= {open_.quick(m) for m in COUNTS}
    search._schedules(NEAR, now + 60)
    near = {tried.where for tried in several() if tried.iteration_s <= judge.best_s}
    assert any(tried.where in near and tried.schedule.timed for tried in several())


def test_one_device_and_data_parallelism_are_tried_however_late_it_is() -> None:
    judge, now = Judge(lambda m: problem_of("chain", m, 2)), time.perf_counter()
    judge.deadline = now
    WholeSearch(COUNTS, AutoSchedule(), judge, None, now, now)._structures(now)
    fit = [tried for tried in judge.seen.values() if tried is not None]
    assert {len(tried.devices) for tried in fit} == {1, 2}
    assert any(tried.placement.replicas for tried in fit)
