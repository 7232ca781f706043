"""Plans carried out by processes: every element of every new piece is the whole tensor's, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from netsplit.errors import ReshardError
from netsplit.reshard import ORDERS, STRATEGIES, Box, Layout, Mesh, Network, ReshardPlan, plan_reshard
from netsplit.runtime.resharding.reshard_piece import reshard_piece
from netsplit.runtime.workers.messages import Worker
from tests.cover import covering
from tests.examples import tried
from tests.workers import Pools, by_gloo

COUNT = 6
NAMES = [f"cpu:{rank}" for rank in range(COUNT)]
DTYPES = (torch.float64, torch.bfloat16, torch.bool, torch.int64, torch.complex64)
LIMIT_S = 30.0


@dataclass(frozen=True)
class Move:
    """From a layout to a layout, on hosts of so many devices."""

    source: Layout
    destination: Layout
    shape: tuple[int, ...]
    per_host: int
    strategy: str = "auto"
    order: str = "auto"
    chunks: int | None = None

    @property
    def plan(self) -> ReshardPlan:
        hosts = {f"host {i}": NAMES[i : i + self.per_host] for i in range(0, COUNT, self.per_host)}
        network = Network.uniform(hosts, 1e9, 1e10, 1e-5, 1e-6)
        return plan_reshard(
            self.source, self.destination, self.shape, 8, network, self.strategy, self.order, self.chunks
        )


def whole_of(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    draw = torch.Generator().manual_seed(11)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(tuple(shape), generator=draw, dtype=torch.float64).to(dtype)
    return torch.randint(0, 2**40 if dtype == torch.int64 else 2, tuple(shape), generator=draw).to(dtype)


def cut(whole: Tensor, box: Box) -> Tensor:
    return whole[tuple(slice(*ends) for ends in box)]


def _moved(worker: Worker, plan: ReshardPlan, dtype: torch.dtype) -> bool:
    """Whether this worker has now what the destination's layout says, all of it and nothing else."""
    own, whole = worker.device.name, whole_of(plan.shape, dtype)
    mine = own in plan.source.mesh.devices
    piece = cut(whole, plan.source.region(own, plan.shape)).clone() if mine else None
    kind = torch.empty(0, dtype=dtype)
    new = reshard_piece(plan, own, piece, worker.transport, kind, LIMIT_S)
    if own not in plan.destination.mesh.devices:
        return new is None
    assert new is not None
    expected = cut(whole, plan.destination.region(own, plan.shape))
    return new.shape == expected.shape and new.is_contiguous() and torch.equal(new, expected)


@st.composite
def layouts(draw: st.DrawFn, dimensions: int) -> Layout:
    shape = draw(st.sampled_from([(1,), (2,), (3,), (2, 2), (3, 2), (2, 3), (6,), (1, 5), (2, 1, 3)]))
    count = torch.Size(shape).numel()
    devices = draw(st.permutations(NAMES))[:count]
    letters = [""] * dimensions
    for axis in draw(st.permutations(range(len(shape)))):
        where = draw(st.integers(-1, dimensions - 1))
        if where >= 0:
            letters[where] += str(axis)
    return Layout(Mesh(tuple(devices), shape), "".join(f"S{each}" if each else "R" for each in letters))


@st.composite
def moves(draw: st.DrawFn) -> Move:
    """Prime and small sizes, so that pieces are uneven or empty; meshes apart, overlapping, or the same."""
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 5, 7, 13]), min_size=0, max_size=3)))
    return Move(
        draw(layouts(len(shape))),
        draw(layouts(len(shape))),
        shape,
        draw(st.sampled_from([1, 2, 3, 6])),
        draw(st.sampled_from(["auto", *STRATEGIES])),
        draw(st.sampled_from(["auto", *ORDERS])),
        draw(st.sampled_from([None, 1, 3, 8])),
    )


@settings(max_examples=tried(120), deadline=None)
@given(moves(), st.sampled_from(DTYPES))
def test_every_element_arrives_bit_for_bit(pools: Pools, move: Move, dtype: torch.dtype) -> None:
    assert all(pools(COUNT).call(_moved, move.plan, dtype))


LEFT, RIGHT = Mesh(tuple(NAMES), (3, 2)), Mesh(tuple(NAMES), (2, 3))
NAMED = {
    "(3, 2) to (2, 3)": Move(Layout(LEFT, "S0S1"), Layout(RIGHT, "S0S1"), (13, 11), 2),
    "S10 against S01": Move(Layout(LEFT, "S10R"), Layout(LEFT, "S01R"), (17, 5), 3),
    "one to all": Move(Layout(Mesh(("cpu:0",), (1,)), "RR"), Layout(RIGHT, "RR"), (64, 33), 2, "broadcast"),
    "empty pieces": Move(Layout(LEFT, "S01R"), Layout(RIGHT, "RS10"), (3, 4), 2),
    "scalar": Move(Layout(LEFT, ""), Layout(RIGHT, ""), (), 2),
}


@covering(name=NAMED, strategy=STRATEGIES)
def test_also_by_gloo_as_between_hosts(pools: Pools, name: str, strategy: str) -> None:
    with by_gloo(pools(COUNT)) as pool:
        plan = plan_reshard(
            NAMED[name].source, NAMED[name].destination, NAMED[name].shape, 8, NAMED[name].plan.network,
            strategy, chunks=4,
        )  # fmt: skip
        assert all(pool.call(_moved, plan, torch.float64))


def _refused(worker: Worker, plan: ReshardPlan) -> str:
    try:
        reshard_piece(plan, worker.device.name, torch.zeros(3), worker.transport, torch.empty(0), LIMIT_S)
    except ReshardError as error:
        return str(error)
    return ""


def test_a_piece_of_another_size_is_refused(pools: Pools) -> None:
    plan = Move(Layout(LEFT, "S01"), Layout(RIGHT, "R"), (12,), 2).plan
    assert all("piece of shape (3,)" in said and "(2,)" in said for said in pools(COUNT).call(_refused, plan))
