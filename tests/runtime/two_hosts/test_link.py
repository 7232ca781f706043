"""Two hosts are apart but for their link, which has the rate it was given; nothing of them is left."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from benchmarks.two_hosts.hosts import Host, TwoHosts

PORT = 5001


def seconds_over_link(source: Host, target: Host, nbytes: int) -> float:
    """From the begin of sending to the last byte's arrival."""
    with target.entered(), socket.create_server((target.address, PORT)) as door:
        with source.entered():
            sender = socket.create_connection((target.address, PORT))
        receiver, _ = door.accept()
    thread = threading.Thread(target=lambda: (sender.sendall(bytes(nbytes)), sender.close()))
    began = time.perf_counter()
    thread.start()
    with receiver:
        left = nbytes
        while left:
            left -= len(receiver.recv(min(left, 1 << 20)))
        seconds = time.perf_counter() - began
    thread.join()
    return seconds


@pytest.mark.parametrize("rate_mbit", [50.0, 200.0])
def test_the_link_has_the_rate_that_it_was_given_either_way(hosts: TwoHosts, rate_mbit: float) -> None:
    """Faster by what may pass at once, a two-hundredth here; slower while others have the processors."""
    hosts.shape(rate_mbit)
    nbytes = 2_000_000
    for ends in ((hosts.a, hosts.b), (hosts.b, hosts.a)):
        rate = nbytes / min(seconds_over_link(*ends, nbytes) for _ in range(3))
        assert 0.9 * hosts.bytes_per_s < rate < 1.01 * hosts.bytes_per_s


def test_a_pulled_cable_is_silent_and_works_again_once_plugged_in(hosts: TwoHosts) -> None:
    hosts.pull()
    with hosts.a.entered(), pytest.raises(OSError, match=r"timed out|No route"):
        socket.create_connection((hosts.b.address, PORT), timeout=0.5)
    hosts.plug()
    assert seconds_over_link(hosts.a, hosts.b, 1000) < 5
