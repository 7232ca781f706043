"""Checkpoints of trainings with moments on the host: the same files, read back to where they belong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from netsplit.experiment.session import Session
from netsplit.graph import initial_values
from netsplit.optim import buckets
from netsplit.planning.plan import Plan
from netsplit.profile.costs import Offload
from netsplit.profile.offload import offloaded
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.share import Share, UpdateRule
from tests.builders import cpus
from tests.nets import CASES
from tests.runtime.checkpoint.test_checkpoint import (
    ADAM,
    captured_of,
    planned,
    program_of,
    restore,
    save,
    train,
)
from tests.workers import Pools, lent_session

CHAIN = CASES["chain"]
BOTH = Offload.of("both")


def runtime(offload: Offload | None, devices: int) -> LocalRuntime:
    program = program_of(captured_of(CHAIN), devices)
    values = initial_values(CHAIN.fresh(), program.graph)
    return LocalRuntime(program, cpus(devices), values, ADAM, UpdateRule(ema_decay=0.9), offload=offload)


def kept(share: Share) -> list[torch.Tensor]:
    """Moments and averages."""
    assert share.optimizer is not None
    assert share.averages is not None
    states = share.optimizer.state.values()
    moments = [t for state in states for t in state.values() if t.dim()]
    return [*moments, *share.averages.values.values()]


@pytest.mark.parametrize("first", [None, BOTH], ids=["from_the_device", "from_the_host"])
@pytest.mark.parametrize("then", [None, BOTH], ids=["to_the_device", "to_the_host"])
def test_training_goes_on_from_either_to_either(
    first: Offload | None, then: Offload | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps on two devices, two on three, bit for bit as four without checkpoint and offload."""
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 1)
    before, after, whole = runtime(first, 2), runtime(then, 3), runtime(None, 2)
    losses = train(before, CHAIN, 2)
    save(before, CHAIN, tmp_path / "one")
    restore(after, tmp_path / "one")
    losses += train(after, CHAIN, 2)
    assert losses == train(whole, CHAIN, 4)
    state, wanted = after.state(), whole.state()
    assert all(torch.equal(state[key], wanted[key]) for key in wanted)
    for share in after.shares.values():
        if share.optimizer is not None and share.parameters:
            assert all(
                (share.host is not None and t in share.host) == (then is not None) for t in kept(share)
            )


def test_workers_save_and_load_what_is_on_the_host(pools: Pools, tmp_path: Path) -> None:
    """As somebody trains: `Session.deploy`, two batches, a checkpoint, a new deployment, two more."""
    with lent_session(pools, tmp_path / "workers") as session:
        planner, plan = planned(CHAIN, ADAM)
        plain = trained(session, planner, plan, tmp_path / "plain")
        costs = offloaded(planner.costs, planner.graph, "both")
        other = replace(planner, costs=costs)
        assert trained(session, other, plan, tmp_path / "other") == plain
        model = session.deploy(other, plan)
        _, timeline = model.measure_batch(CHAIN.inputs, CHAIN.targets, bytes_too=True)
        assert timeline.host_bytes.keys() == timeline.peak_bytes.keys()
        assert min(timeline.host_bytes.values()) > 0


def trained(session: Session, planner: Any, plan: Plan, folder: Path) -> tuple[list[float], list[Any]]:
    model = session.deploy(planner, plan)
    losses = [model.train_batch(CHAIN.inputs, CHAIN.targets) for _ in range(2)]
    model.save_checkpoint(folder)
    model = session.deploy(planner, plan)
    model.load_checkpoint(folder)
    losses += [model.train_batch(CHAIN.inputs, CHAIN.targets) for _ in range(2)]
    return losses, [(key, tensor.tolist()) for key, tensor in model.state_dict().items()]
