"""Checkpoints written before operators had tasks are read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from netsplit.runtime.share import UpdateRule
from tests.rewrite.test_parts import ADAMW, LOSS, OTHERS, batches, mlp, workerless
from tests.runtime.checkpoint.test_checkpoint import restore
from tests.runtime.references import plain_loop

OLDER = Path(__file__).parent / "older"


def test_an_older_checkpoint_goes_on() -> None:
    """The checkpoint is of two batches, with moments and averages, in parts; here they are others."""
    rule = UpdateRule(ema_decay=0.5, clip_norm=0.3)
    after = workerless(OTHERS, rule)
    restore(after, OLDER / "checkpoint")
    losses = [after.train_batch(*batch) for batch in batches(4)[2:]]
    wanted = plain_loop(mlp(), LOSS, batches(4), 2, ADAMW, clip_norm=0.3)
    assert losses == pytest.approx(wanted.losses[2:], rel=1e-9)
    for k, tensor in after.state().items():
        torch.testing.assert_close(tensor, wanted.state[k], rtol=1e-9, atol=1e-9)
