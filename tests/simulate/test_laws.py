"""Laws of any timeline: it computes the step, and its critical path and times add up to the iteration."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.planning.explanation import critical_path, totals
from netsplit.simulate import simulate
from netsplit.simulate.timeline import Event, device_times, waits
from tests.examples import tried
from tests.simulate.drawn import Drawn, assert_engines_agree, programs
from tests.simulate.timeline_check import wrong_in

EXACT = 1e-9  # seconds; sums of a few hundred numbers below 10, in double precision


@settings(max_examples=tried(100), deadline=None)
@given(drawn=programs())
def test_every_schedules_timeline_computes_its_step(drawn: Drawn) -> None:
    assert wrong_in(drawn.problem, drawn.placement, drawn.program, drawn.timeline) == []


@settings(max_examples=tried(60), deadline=None)
@given(drawn=programs(), data=st.data())
def test_an_event_that_is_missing_doubled_too_early_or_too_short_is_noticed(
    drawn: Drawn, data: st.DataObject
) -> None:
    events = [e for e in drawn.timeline.events if e.kind in ("forward", "backward", "send", "step")]
    e = data.draw(st.sampled_from(events))
    late_s = drawn.timeline.iteration_s + 1
    changed = {
        "missing": (),
        "doubled": (e, e._replace(start_s=e.start_s + late_s, end_s=e.end_s + late_s)),
        "too late": (e._replace(start_s=e.start_s + late_s, end_s=e.end_s + late_s),),
        "too short": (e._replace(end_s=e.start_s - 1),),
    }
    for instead in changed.values():
        others = tuple(other for other in drawn.timeline.events if other is not e)
        timeline = replace(drawn.timeline, events=(*others, *instead))
        assert wrong_in(drawn.problem, drawn.placement, drawn.program, timeline)


@settings(max_examples=tried(100), deadline=None)
@given(drawn=programs())
def test_the_critical_path_is_contiguous_and_adds_up_to_the_iteration(drawn: Drawn) -> None:
    path = critical_path(drawn.timeline, drawn.program)
    assert path[0].start_s == 0.0
    assert path[-1].end_s == drawn.timeline.iteration_s
    assert all(a.end_s == b.start_s for a, b in pairwise(path))
    assert sum(span.seconds for span in path) == pytest.approx(drawn.timeline.iteration_s, abs=EXACT)
    assert sum(totals(path).values()) == pytest.approx(drawn.timeline.iteration_s, abs=EXACT)


@settings(max_examples=tried(100), deadline=None)
@given(drawn=programs())
def test_the_critical_path_is_made_of_events_and_what_lies_between_instructions(drawn: Drawn) -> None:
    events = {(e.name, e.microbatch, e.start_s, e.end_s) for e in drawn.timeline.events if e.kind != "wait"}
    for span in critical_path(drawn.timeline, drawn.program):
        if span.what != "overhead":
            assert (span.name, span.microbatch, span.start_s, span.end_s) in events
            assert span.what != "wait"


@settings(max_examples=tried(100), deadline=None)
@given(drawn=programs(disturbed=False))
def test_without_disturbance_both_engines_agree_bit_for_bit(drawn: Drawn) -> None:
    assert_engines_agree(drawn)


@settings(max_examples=tried(100), deadline=None)
@given(drawn=programs(disturbed=True))
def test_a_disturbed_computation_does_all_its_work(drawn: Drawn) -> None:
    """Undisturbed seconds, worked off at the rates that the other devices' spans and transfers imply."""
    costs, kinds = drawn.costs, {d.name: d.kind for d in drawn.cluster.devices}
    hosts = {d.name: d.host for d in drawn.cluster.devices}
    alone = {kind: replace(c, contention=1.0, copy_s_per_byte=0.0) for kind, c in costs.devices.items()}
    apart = replace(drawn.cluster, devices=tuple(replace(d, host=None) for d in drawn.cluster.devices))
    free = simulate(drawn.program, apart, replace(costs, devices=alone))
    processors = drawn.cluster.devices[0].processors
    own = {(e.device, e.kind, e.name, e.microbatch): e.seconds for e in free.events}
    work = [e for e in drawn.timeline.events if e.kind not in ("send", "wait", "reduce")]
    moving = [e for e in drawn.timeline.events if e.kind in ("send", "reduce")]
    for e in work:
        its = costs.devices[kinds[e.device]]
        slower, copying = its.contention, its.copy_s_per_byte
        cuts = sorted(
            {t for other in (*work, *moving) for t in (other.start_s, other.end_s)} | {e.start_s, e.end_s}
        )
        done = 0.0
        for start, end in pairwise(t for t in cuts if e.start_s <= t <= e.end_s):
            at = [o for o in (*work, *moving) if o.start_s <= start and end <= o.end_s and end > start]
            copied = (
                sum(_copied_bytes(o, e.device) * copying / o.seconds for o in at if o.seconds > 0)
                if copying
                else 0
            )
            rate = max(1 - copied, 0.0)
            others = [o for o in at if o in work and o.device != e.device]
            mates = {o.device for o in others if hosts[o.device] == hosts[e.device] is not None}
            rate /= slower if mates else 1.0
            rate *= 1.0 if processors is None or not mates else min(processors / (1 + len(mates)), 1.0)
            done += (end - start) * rate
        if not copying or all(_copied_bytes(o, e.device) * copying <= o.seconds for o in moving):
            assert done == pytest.approx(own[e.device, e.kind, e.name, e.microbatch], abs=1e-7)


def _copied_bytes(event: Event, device: str) -> float:
    if event.kind == "send":
        return event.nbytes * (device in (event.device, event.peer))
    if event.kind == "reduce" and event.device == device:
        r = len(event.name.rpartition(" over ")[2].split(", "))
        return 4 * (r - 1) / r * event.nbytes
    return 0.0


@settings(max_examples=tried(60), deadline=None)
@given(drawn=programs())
def test_times_and_waits_add_up(drawn: Drawn) -> None:
    timeline = drawn.timeline
    devices = device_times(timeline, drawn.program.devices)
    for times in devices:
        assert times.busy_s + times.wait_s + times.idle_s == pytest.approx(timeline.iteration_s, abs=EXACT)
        assert times.busy_s == pytest.approx(timeline.busy_s(times.device), abs=EXACT)
        assert -EXACT <= times.hidden_s <= min(times.busy_s, times.transfer_s) + EXACT
    waiting = waits(timeline)
    assert [w.seconds for w in waiting] == sorted((w.seconds for w in waiting), reverse=True)
    assert sum(w.seconds for w in waiting) == pytest.approx(sum(s.wait_s for s in devices), abs=EXACT)
    assert sum(w.count for w in waiting) == sum(e.kind == "wait" for e in timeline.events)
