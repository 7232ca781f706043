"""How a variable gets to the devices that read it elsewhere.

    send_receive   p ─► q0, p ─► q1, p ─► q2        its home sends it to each
    broadcast      p ─► q0 ─► q1 ─► q2              who has it hands it on; gradients come back added up

Where devices are behind the NICs of hosts, a chain passes each of them once, in both directions (Zhuang et
al., AlpaComm, section 3.1: `reshard` plans such chains for tensors outside programs).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Exchange", "ExchangeName", "chain"]

ExchangeName = Literal["auto", "send_receive", "broadcast"]
"""What a user asks for; auto: a broadcast where that is simulated to take less."""


@dataclass(frozen=True)
class Exchange:
    """The hops of a variable, from a device that has it to one that reads it; by homes, not replicas.

    A hop's source is the variable's home, or the destination of an earlier hop. Gradients go the other way.
    """

    variable: str
    hops: tuple[tuple[str, str], ...]

    @property
    def source_of(self) -> dict[str, str]:
        """Reading device -> the device that it has the variable from."""
        return {destination: source for source, destination in self.hops}

    def to_dict(self) -> dict[str, Any]:
        """The exchange for a file of JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> Exchange:
        """What `to_dict` made; raises KeyError, TypeError or ValueError for anything else."""
        if values.get("chunks", 1) != 1:
            raise ValueError("an exchange in chunks, which programs no longer have")
        hops = tuple((str(source), str(destination)) for source, destination in values["hops"])
        return cls(str(values["variable"]), hops)

    def wrong(self, home: str, readers: Sequence[str]) -> str:
        """Why these are no hops from a variable's home to all others that read it; empty where they are."""
        having = {home}
        for source, destination in self.hops:
            if source not in having:
                return f"'{source}' forwards it before it has it"
            if destination in having:
                return f"'{destination}' has it already"
            having.add(destination)
        if strange := sorted(having.symmetric_difference((home, *readers))):
            return f"'{strange[0]}' " + (
                "reads it but does not get it" if strange[0] in readers else "does not read it"
            )
        return ""


def chain(variable: str, home: str, devices: Sequence[str]) -> Exchange:
    """Hands on from the home to the first device, and from each to the next."""
    return Exchange(variable, tuple(zip((home, *devices[:-1]), devices, strict=True)))
