"""Python's collector of cycles rests while a plan is verified, and is as it was afterwards."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from netsplit.cycles import uncollected
from netsplit.errors import NetSplitError


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_and_is_as_before_whatever_is_raised(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    with pytest.raises(NetSplitError):
        _raises_within()
    assert gc.isenabled() == enabled


def test_the_collector_rests_until_the_last_thread_is_done() -> None:
    gc.enable()
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with uncollected():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with uncollected():
        thread.start()
        assert entered.wait(10)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


@uncollected()
def _raises_within() -> None:
    with uncollected():
        assert not gc.isenabled()
    assert not gc.isenabled()
    raise NetSplitError("ended early")
