"""Orders of computation: laws for all schedules on any DAG of segments, the papers' orders on chains."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.errors import ConfigError
from netsplit.program.schedules import (
    SCHEDULES,
    ZBH1,
    AsyncOneFOneB,
    Compute,
    EagerOneFOneB,
    GPipe,
    Interleaved,
    OneFOneB,
    Pipeline,
    Schedule,
    SingleBatch,
)

LETTER = {"forward": "F", "backward": "B", "input": "I", "weight": "W"}


def chain(segments: int, devices: list[int] | None = None) -> Pipeline:
    """Segment s reads from s - 1; on device s unless `devices` says otherwise."""
    places = devices or list(range(segments))
    return Pipeline(
        tuple(() if s == 0 else (s - 1,) for s in range(segments)),
        tuple((f"d{place}",) for place in places),
        frozenset(range(segments)),
    )


def on(name: str, pipeline: Pipeline, order: list[Compute]) -> str:
    """What a device does, in short: "F0 B0 F1 B1" (micro-batches; segments where it has several)."""
    several = sum(name in devices for devices in pipeline.devices) > 1
    own = [task for task in order if pipeline.on(task[1], task[2]) == name]
    return " ".join(f"{LETTER[p]}{f'{s}.' if several else ''}{i}" for p, s, i in own)


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Any DAG; devices come back, some segments have replicas with any turns, some no backward."""
    count = draw(st.integers(1, 7))
    feeders = tuple(
        tuple(sorted(draw(st.sets(st.integers(0, s - 1), max_size=3)))) if s else () for s in range(count)
    )
    groups = draw(st.sampled_from([[("a",), ("b",), ("c",)], [("a", "x"), ("b",), ("c", "y", "z")]]))
    devices = tuple(draw(st.sampled_from(groups)) for _ in range(count))
    trained = draw(st.sets(st.integers(0, count - 1)))
    turns = {each: tuple(draw(st.permutations(each * 2))[:5]) for each in groups}
    whole = {each: own if {*own} == {*each} else each for each, own in turns.items()}
    return Pipeline(feeders, devices, frozenset(trained), tuple(whole[each] for each in devices))


def schedules() -> st.SearchStrategy[Schedule]:
    def built(name: str, microbatches: int, delay: bool, update: int, double: bool) -> Schedule:
        if name == "single_batch":
            return SingleBatch(delay_weights=delay)
        if SCHEDULES[name](1).delay_weights:  # type: ignore[call-arg]
            return SCHEDULES[name](microbatches)  # type: ignore[call-arg]
        if name == "pipedream":
            return AsyncOneFOneB(microbatches, update, "double" if double else "stashed", delay_weights=delay)
        return SCHEDULES[name](microbatches, delay_weights=delay)  # type: ignore[call-arg]

    flags = st.booleans()
    return st.builds(
        built, st.sampled_from(list(SCHEDULES)), st.integers(1, 6), flags, st.integers(1, 3), flags
    )


@settings(deadline=None)
@given(pipelines(), schedules())
def test_every_order_is_complete_and_respects_what_depends_on_what(
    pipeline: Pipeline, schedule: Schedule
) -> None:
    replicated = any(len(devices) > 1 for devices in pipeline.devices)
    if isinstance(schedule, AsyncOneFOneB) and schedule.weights == "double" and replicated:
        with pytest.raises(ConfigError, match="stashed"):
            schedule.order(pipeline)
        return
    order = schedule.order(pipeline)
    at = {task: n for n, task in enumerate(order)}
    m, readers = schedule.microbatches, pipeline.readers()
    assert len(at) == len(order)
    split = {(s, i) for phase, s, i in order if phase == "input"}
    for s in range(len(pipeline)):
        for i in range(m):
            assert all(at["forward", u, i] < at["forward", s, i] for u in pipeline.feeders[s])
            if s not in pipeline.trained:
                continue
            back = at["input" if (s, i) in split else "backward", s, i]
            assert at["forward", s, i] < back
            for v in readers[s]:
                if v in pipeline.trained:
                    assert at["input" if (v, i) in split else "backward", v, i] < back
            if (s, i) in split:
                assert back < at["weight", s, i]
    trained = len(pipeline.trained)
    assert len(order) == m * (2 * trained + len(pipeline) - trained) + len(split)
    for s, devices in enumerate(pipeline.devices):  # micro-batches of a replica follow one another
        for name in devices:
            for phase in LETTER:
                own = [i for p, t, i in order if (p, t) == (phase, s) and pipeline.on(s, i) == name]
                assert own == sorted(own)


def test_1f1b_on_a_chain_is_the_papers_order() -> None:
    pipeline = chain(3)
    order = OneFOneB(5).order(pipeline)
    assert on("d0", pipeline, order) == "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4"
    assert on("d1", pipeline, order) == "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4"
    assert on("d2", pipeline, order) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4"


def test_eager_1f1b_warms_up_with_two_forwards_for_every_stage_behind() -> None:
    pipeline = chain(3)
    order = EagerOneFOneB(7).order(pipeline)
    assert on("d0", pipeline, order).startswith("F0 F1 F2 F3 F4 B0 F5 B1 F6 B2")
    assert on("d1", pipeline, order).startswith("F0 F1 F2 B0 F3 B1")
    assert on("d2", pipeline, order).startswith("F0 B0 F1 B1")


def test_interleaved_takes_its_segments_in_turn_by_groups_of_microbatches() -> None:
    pipeline = chain(4, [0, 1, 0, 1])
    order = Interleaved(4).order(pipeline)
    assert on("d0", pipeline, order).startswith("F0.0 F0.1 F2.0 F2.1 F0.2")
    assert on("d1", pipeline, order).startswith("F1.0 F1.1 F3.0 B3.0 F3.1 B3.1")


@pytest.mark.parametrize(("devices", "chunks", "microbatches"), [(2, 2, 4), (4, 3, 12), (8, 2, 48)])
def test_interleaved_has_the_papers_bubble(devices: int, chunks: int, microbatches: int) -> None:
    """(p - 1) (T_F + T_B) of one segment: section 2.2.2."""
    pipeline = chain(devices * chunks, [*range(devices)] * chunks)
    each = makespan(chain(1), OneFOneB(1).order(chain(1)))
    took = makespan(pipeline, Interleaved(microbatches).order(pipeline))
    assert took == pytest.approx((microbatches * chunks + devices - 1) * each)


def most_open(order: list[Compute], s: int, *end: str) -> int:
    """Most micro-batches of a segment between their forward and a phase of `end`."""
    now = most = 0
    for phase, t, _ in order:
        now += (t == s) * ((phase == "forward") - (phase in end))
        most = max(most, now)
    return most


@given(st.integers(1, 5), st.integers(1, 8))
def test_memory_of_1f1b_does_not_grow_with_the_microbatches(devices: int, microbatches: int) -> None:
    pipeline = chain(devices)
    order, gpipe = OneFOneB(microbatches).order(pipeline), GPipe(microbatches).order(pipeline)
    for s in range(devices):
        assert most_open(order, s, "backward") == min(microbatches, devices - s)
        assert most_open(gpipe, s, "backward") == microbatches
    assert OneFOneB(microbatches).in_flight(devices) == most_open(order, 0, "backward")


@given(st.integers(1, 5), st.integers(1, 8))
def test_zb_h1_stays_within_the_memory_of_1f1b_and_has_a_smaller_bubble(
    devices: int, microbatches: int
) -> None:
    pipeline = chain(devices)
    order = ZBH1(microbatches).order(pipeline)
    assert all(
        most_open(order, s, "weight", "backward") <= min(microbatches, devices) for s in range(devices)
    )
    plain = makespan(pipeline, OneFOneB(microbatches).order(pipeline))
    assert makespan(pipeline, order) <= plain
    if microbatches >= devices > 1:
        # (p - 1)(F + B + W) idle units in 1F1B, (p - 1)(F + B - W) in ZB-H1, all three one unit long
        assert plain == 3 * microbatches + 3 * (devices - 1)
        assert makespan(pipeline, order) <= 3 * microbatches + 2 * (devices - 1)


def makespan(pipeline: Pipeline, order: list[Compute]) -> int:
    """Units until all is done, every device going through its own tasks in this order."""
    end: dict[Compute, int] = {}
    free: Counter[str] = Counter()
    readers = pipeline.readers()
    for task in order:
        phase, s, i = task
        before: list[Compute] = []
        if phase == "forward":
            before = [("forward", u, i) for u in pipeline.feeders[s]]
        elif phase in ("backward", "input"):
            before = [("forward", s, i), *((phase, v, i) for v in readers[s])]
        else:
            before = [("input", s, i)]
        name = pipeline.on(s, i)
        start = max([free[name], *(end[each] for each in before)])
        free[name] = end[task] = start + (2 if phase == "backward" else 1)
    return max(end.values())


def test_a_replicated_stage_warms_up_as_pipedream_says() -> None:
    pipeline = Pipeline(((), (0,)), (("a", "b", "c"), ("d",)), frozenset({0, 1}))
    order = OneFOneB(9).order(pipeline)
    for first, name in enumerate("abc"):  # ceil(4 / 3) in flight
        begin = on(name, pipeline, order).split()[:3]
        assert begin == [f"F{first}", f"F{first + 3}", f"B{first}"]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"delay_weights is false.*1f1b"):
        ZBH1(4, delay_weights=False)
    with pytest.raises(ConfigError, match=r"schedule.update_every is 0"):
        AsyncOneFOneB(4, update_every=0)
    with pytest.raises(ConfigError, match=r"schedule.weights is 'triple'"):
        AsyncOneFOneB(4, weights="triple")  # type: ignore[arg-type]
    for kind in (GPipe, OneFOneB, ZBH1, AsyncOneFOneB):
        for count in (0, 1.5, "4", True):
            with pytest.raises(ConfigError, match=rf"schedule\.microbatches is {count!r}: give .*at least 1"):
                kind(count)
    with pytest.raises(ConfigError, match=r"recompute is 'no': give true, false, auto, selective or full"):
        SingleBatch(recompute="no")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"schedule\.update_every is 1\.5: give a whole number"):
        AsyncOneFOneB(4, update_every=1.5)  # type: ignore[arg-type]
