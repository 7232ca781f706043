"""What each strategy takes, beside the paper's formulas (AlpaComm, section 3.1)."""

from __future__ import annotations

import pytest

from netsplit.reshard import Layout, Mesh, ReshardPlan, plan_reshard
from tests.reshard.carried import mesh_of, network_for

SIZES = [(a, b) for a in range(1, 5) for b in range(1, 5)]
ELEMENTS = 48_000
T = 1.0


def to_all(a: int, b: int, strategy: str, chunks: int = 100) -> ReshardPlan:
    """One device to `a` hosts of `b` devices, in `T` for each time that the tensor passes a NIC."""
    left, right = Mesh(("a",), (1,)), mesh_of("b", (a, b))
    network = network_for(left, right, nic_bandwidth=ELEMENTS * 4 / T)
    return plan_reshard(
        Layout(left, "R"), Layout(right, "R"), (ELEMENTS,), 4, network, strategy, "naive", chunks
    )


@pytest.mark.parametrize(("a", "b"), SIZES)
def test_send_receive_takes_a_b_t(a: int, b: int) -> None:
    assert to_all(a, b, "send_receive").seconds == pytest.approx(a * b * T, rel=0.01)


@pytest.mark.parametrize(("a", "b"), SIZES)
def test_local_allgather_takes_a_t(a: int, b: int) -> None:
    assert to_all(a, b, "local_allgather").seconds == pytest.approx(a * T, rel=0.01)


@pytest.mark.parametrize(("a", "b"), SIZES)
def test_global_allgather_takes_2_t_less_what_each_has_already(a: int, b: int) -> None:
    """The paper's 2 t is for many devices: a ring passes all but one of its a b parts; none on one host."""
    expected = (2 - 1 / (a * b)) * T if a > 1 else T
    assert to_all(a, b, "global_allgather").seconds == pytest.approx(expected, rel=0.01)


def test_global_allgather_takes_the_papers_2_t_on_many() -> None:
    assert to_all(13, 4, "global_allgather").seconds == pytest.approx(2 * T, rel=0.01)


@pytest.mark.parametrize("chunks", [1, 2, 7, 30, 100])
@pytest.mark.parametrize(("a", "b"), SIZES)
def test_broadcast_takes_t_and_a_chunk_for_every_further_host(a: int, b: int, chunks: int) -> None:
    expected = T + (a - 1) * T / chunks
    assert to_all(a, b, "broadcast", chunks).seconds == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("strategy", ["broadcast", "local_allgather", "send_receive", "global_allgather"])
def test_no_strategy_is_below_the_bound(strategy: str) -> None:
    for a, b in SIZES:
        plan = to_all(a, b, strategy)
        assert plan.bound_s == pytest.approx(T)
        assert plan.seconds >= plan.bound_s * (1 - 1e-9)
