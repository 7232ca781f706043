"""Checkpoints of trainings with moments on the host: the same files, read back to where they belong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from netsplit.graph import initial_values
from netsplit.optim import optimizers
from netsplit.profile.costs import Offload
from netsplit.runtime.local import LocalRuntime
from netsplit.runtime.share import Share, UpdateRule
from tests.builders import cpus
from tests.nets import CASES
from tests.runtime.checkpoint.test_checkpoint import (
    ADAM,
    captured_of,
    program_of,
    restore,
    save,
    train,
)

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
    monkeypatch.setattr(optimizers, "BUCKET_BYTES", 1)
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
