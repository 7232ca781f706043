"""What every cut edge of a placement costs."""

from __future__ import annotations

from dataclasses import dataclass

from netsplit.partition.common.instance import Instance, Ints

__all__ = ["CutEdge", "cut_edges"]


@dataclass(frozen=True)
class CutEdge:
    """A variable that one device makes and another reads: moved once, however many nodes read it there.

    Seconds of one micro-batch without waiting for the link. Under `max_load` they are what both ends
    pay; the sender pays once for a variable, at the first of its readers.
    """

    variable: str
    producer: str
    readers: tuple[str, ...]
    source: str
    target: str
    nbytes: int
    value_s: float
    gradient_s: float  # 0 where no gradient comes back

    @property
    def seconds(self) -> float:
        return self.value_s + self.gradient_s


def cut_edges(instance: Instance, where: Ints) -> tuple[CutEdge, ...]:
    """Every cut edge, the costliest first."""
    both_pay = instance.problem.objective.both_ends_pay
    edges = []
    for u, variable in enumerate(instance.variables):
        p = int(where[instance.producer[u]])
        readers: dict[int, list[str]] = {}
        for v in instance.consumers[u]:
            readers.setdefault(int(where[v]), []).append(instance.names[v])
        targets = sorted(q for q in readers if q != p)
        for q in targets:
            back = bool(instance.requires_backward[u])
            if both_pay:
                hop = instance.hop_s[u] / (1 + back)
                value = float(hop[q] + (hop[p] if q == targets[0] else 0.0))
                gradient = value * back
            else:
                value = float(instance.transfer_s[u, p, q])
                gradient = float(instance.transfer_s[u, q, p]) * back
            edges.append(
                CutEdge(
                    variable=variable,
                    producer=instance.names[instance.producer[u]],
                    readers=tuple(readers[q]),
                    source=instance.devices[p],
                    target=instance.devices[q],
                    nbytes=int(instance.nbytes[u]),
                    value_s=value,
                    gradient_s=gradient,
                )
            )
    return tuple(sorted(edges, key=lambda e: (-e.seconds, -e.nbytes, e.variable, e.target)))
