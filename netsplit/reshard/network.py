"""Hosts and their NICs, as AlpaComm models a cluster (section 3).

    host A   a ─┐               ┌─ c   host B
             b ─┴─ NIC ═══ NIC ─┴─ d

One NIC a host, in both directions at once, shared by its devices; between the NICs nothing is scarce. Inside
a host each device sends and receives one thing at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from netsplit.cluster.cluster import Cluster
from netsplit.errors import ReshardError
from netsplit.layout import DeviceName

__all__ = ["Network", "network_of"]


@dataclass(frozen=True)
class Network:
    """Where every device is, and what a byte takes. Seconds, and seconds per byte.

    Args:
        host_of: device -> its host.
        nic: host -> of its NIC; two hosts are as fast as the slower of theirs.
        inside: host -> between two of its devices.
        nic_latency_s: of a message between hosts.
        inside_latency_s: and of one inside.

    Raises:
        ReshardError: a negative figure, or a host without figures.
    """

    host_of: Mapping[DeviceName, str]
    nic: Mapping[str, float] = field(repr=False)
    inside: Mapping[str, float] = field(repr=False)
    nic_latency_s: float = 0.0
    inside_latency_s: float = 0.0

    def __post_init__(self) -> None:
        for host in dict.fromkeys(self.host_of.values()):
            if host not in self.nic or host not in self.inside:
                raise ReshardError(
                    f"host '{host}' has no seconds per byte: give those of its NIC and within the host."
                )
        figures = [*self.nic.values(), *self.inside.values(), self.nic_latency_s, self.inside_latency_s]
        if not all(0.0 <= figure < float("inf") for figure in figures):
            raise ReshardError("a network has a negative or infinite cost: give finite numbers of 0 or more.")

    @classmethod
    def uniform(
        cls,
        hosts: Mapping[str, Sequence[DeviceName]],
        nic_bandwidth: float,
        inside_bandwidth: float = float("inf"),
        nic_latency_s: float = 0.0,
        inside_latency_s: float = 0.0,
    ) -> Network:
        """Equal hosts; bandwidths in bytes per second."""
        return cls(
            {device: host for host, devices in hosts.items() for device in devices},
            dict.fromkeys(hosts, 1.0 / nic_bandwidth),
            dict.fromkeys(hosts, 1.0 / inside_bandwidth),
            nic_latency_s,
            inside_latency_s,
        )

    def host(self, device: DeviceName) -> str:
        """The host of a device.

        Raises:
            ReshardError: the network does not have it.
        """
        if device not in self.host_of:
            raise ReshardError(
                f"device '{device}' is on no host of the network: {sorted(set(self.host_of.values()))}."
            )
        return self.host_of[device]

    def seconds(self, nbytes: int, source: DeviceName, target: DeviceName) -> float:
        """Seconds of one message between two devices, without others on its way."""
        a, b = self.host_of[source], self.host_of[target]
        if a == b:
            return self.inside_latency_s + nbytes * self.inside[a]
        return self.nic_latency_s + nbytes * max(self.nic[a], self.nic[b])


def network_of(cluster: Cluster) -> Network:
    """What a cluster says of its hosts: NICs, each as fast as the slower of its directions.

    A host without NICs is as fast as the fastest link that leaves it; a device without a host is its own.
    """
    host_of: dict[DeviceName, str] = {each.name: each.host or f"only {each.name}" for each in cluster.devices}
    host_of |= {name: nic.host for nic in cluster.nics for name in nic.devices}
    nic: dict[str, float] = {}
    inside: dict[str, float] = {}
    latency = {True: 0.0, False: 0.0}
    for (source, target), link in cluster.links.items():
        host, same = host_of[source], host_of[source] == host_of[target]
        rates = inside if same else nic
        rates[host] = min(rates.get(host, link.seconds_per_byte), link.seconds_per_byte)
        latency[same] = max(latency[same], link.latency_s)
    for host in host_of.values():
        nic.setdefault(host, 0.0)
        inside.setdefault(host, 0.0)
    nic |= {each.host: max(each.out_s_per_byte, each.in_s_per_byte) for each in cluster.nics}
    return Network(host_of, nic, inside, latency[False], latency[True])
