"""Devices that take turns on the processors of their host."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from netsplit.cluster.cluster import Cluster, Link
from netsplit.profile.costs import Costs, DeviceCosts, NodeSeconds
from netsplit.program import GPipe
from netsplit.simulate import simulate
from netsplit.simulate.tasks import DeviceSeconds
from netsplit.simulate.timeline import Timeline
from tests.builders import compile_placed, linked
from tests.simulate.drawn import chain


def here(devices: int, processors: float | None, kinds: str = "") -> Cluster:
    cluster = linked([f"cpu:{rank}" for rank in range(devices)], Link(0.0, 0.0))
    kinds = kinds or "a" * devices
    each = zip(cluster.devices, kinds, strict=True)
    return replace(
        cluster,
        devices=tuple(replace(d, kind=k, host="here", processors=processors) for d, k in each),
    )


def at_once(cluster: Cluster, seconds: dict[str, float], contention: float = 1.0) -> Timeline:
    """Every device computes one forward, of the seconds of its kind."""
    graph, names = chain(1), tuple(device.name for device in cluster.devices)
    replicas = {names[0]: names} if len(names) > 1 else {}
    program = compile_placed(
        graph, {"n0": names[0]}, graph.position, cluster, GPipe(len(names)), False, replicas
    )
    costs = {
        kind: DeviceCosts({"n0": NodeSeconds(s, 0.0)}, contention=contention) for kind, s in seconds.items()
    }
    return simulate(program, cluster, Costs(costs, 2))


@settings(deadline=None)
@given(
    devices=st.integers(1, 9),
    processors=st.none() | st.integers(1, 9) | st.floats(0.25, 9.0),
    seconds=st.floats(1e-3, 1e3),
    contention=st.floats(1.0, 4.0),
)
def test_equal_devices_at_once_take_as_many_times_as_long_as_there_are_too_many(
    devices: int, processors: float | None, seconds: float, contention: float
) -> None:
    """n on c processors: n / c times, and not slowed where there are enough; one alone never is."""
    turns = max(devices / max(processors, 1.0), 1.0) if processors is not None else 1.0
    expected = seconds * turns * (contention if devices > 1 else 1.0)
    assert at_once(here(devices, processors), {"a": seconds}, contention).iteration_s == pytest.approx(
        expected
    )


def test_who_has_a_processor_of_its_own_disturbs_nobody() -> None:
    def slowed(cluster: Cluster) -> bool:
        return DeviceSeconds.of(cluster.devices, (), Costs({"a": DeviceCosts({})}, 2)).slowed

    assert not slowed(here(4, 4))
    assert not slowed(here(4, None))
    assert slowed(here(4, 3.5))
    assert slowed(here(2, 0.5))
    assert not slowed(here(1, 0.5))
    apart = tuple(replace(d, host=d.name) for d in here(4, 1).devices)
    assert not slowed(replace(here(4, 1), devices=apart))
    gpus = tuple(replace(d, torch_device=f"cuda:{p}") for p, d in enumerate(here(4, 1).devices))
    assert not slowed(replace(here(4, 1), devices=gpus))
