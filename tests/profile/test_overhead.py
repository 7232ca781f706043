"""What an instruction costs."""

import pytest

from netsplit.cluster.cluster import Cluster, Device, Link
from netsplit.profile.overhead import with_messages


def test_an_instruction_on_cpus_costs_at_least_the_latency_of_a_message() -> None:
    devices = (Device("a", "cpu", 1), Device("b", "cpu", 1), Device("c", "gpu", 1, "cuda:0"))
    links = {("a", "b"): Link(1e-4, 0.0), ("b", "a"): Link(3e-4, 0.0), ("a", "c"): Link(1.0, 0.0)}
    found = with_messages({"cpu": 1e-5, "gpu": 2e-5}, Cluster("mixed", devices, links))
    assert found == {"cpu": pytest.approx(2e-4), "gpu": 2e-5}
