"""Processes that do not come to a meeting are named."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from netsplit.errors import WorkerError
from netsplit.runtime.resharding.meeting import Meeting
from netsplit.runtime.transport.process import ProcessTransport


class _NeverOver:
    def wait(self, timeout: object) -> None:
        raise RuntimeError("[unbound_buffer.cc:78] Timed out waiting\nfor recv operation to complete.")


@pytest.mark.parametrize("own", [0, 2])
def test_who_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch, own: int) -> None:
    """To the leader (0) the first that it waits for, to another one the leader."""
    monkeypatch.setattr(dist, "get_rank", lambda: own)
    for name in ("isend", "irecv"):
        monkeypatch.setattr(dist, name, lambda tensor, rank: _NeverOver())
    transport = ProcessTransport({str(rank): torch.device("cpu") for rank in range(3)}, str(own))
    meeting = Meeting(0, (0, 1, 2), transport, 2.5)
    with pytest.raises(WorkerError, match=f"rank {own} and rank {0 if own else 1} did not agree") as caught:
        meeting.objection("redistribution 1", "")
    assert "within 2.5 s" in str(caught.value)
    assert "\n" not in str(caught.value)
