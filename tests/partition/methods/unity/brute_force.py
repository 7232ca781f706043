"""The least of all mappings, by trying them: with the programme's costs, and nothing of the programme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from netsplit.partition.methods.unity.costed import Costed

Devices = tuple[int, ...]
Fixed = Mapping[int, tuple[Devices, int]]


def seconds_of(costed: Costed, chosen: Fixed) -> float:
    """Seconds of some vertices one after another, by their devices and the number of their choice there."""
    total = sum(float(costed.options(v, on).seconds[n]) for v, (on, n) in chosen.items())
    for link in costed.links:
        if link.source in chosen and link.target in chosen:
            (one, i), (other, j) = chosen[link.source], chosen[link.target]
            total += float(costed.moving(link, one, other)[i, j])
    return total


def least(
    costed: Costed, vertices: Sequence[int], devices: Devices, known: Fixed, bound: float
) -> tuple[float, Fixed]:
    """The least of all choices of these vertices, beside what is known, within the bound."""
    best: tuple[float, Fixed] = (bound, {})
    rest = [0.0]
    for v in reversed(vertices):
        rest.append(rest[-1] + float(costed.options(v, devices).seconds.min()))
    rest.reverse()
    near = {v: [e for e in costed.links if v in (e.source, e.target)] for v in vertices}

    def go(depth: int, chosen: dict[int, tuple[Devices, int]], seconds: float) -> None:
        nonlocal best
        if seconds + rest[depth] >= best[0]:
            return
        if depth == len(vertices):
            best = seconds, dict(chosen)
            return
        v = vertices[depth]
        own = costed.options(v, devices).seconds.copy()
        for link in near[v]:
            other = link.source if link.target == v else link.target
            at = chosen.get(other) or known.get(other)
            if at is not None:
                there = (at[0], devices) if link.target == v else (devices, at[0])
                table = costed.moving(link, *there)
                own += table[at[1]] if link.target == v else table[:, at[1]]
        for n in own.argsort():
            go(depth + 1, {**chosen, v: (devices, int(n))}, seconds + float(own[n]))

    go(0, {}, 0.0)
    return best


def least_beside(
    costed: Costed, branches: Sequence[Sequence[int]], devices: Devices, known: Fixed, bound: float
) -> float:
    """Branches one after another on all of the devices, or some on the first of them beside the others."""
    best = sum(least(costed, each, devices, known, bound)[0] for each in branches)
    for n in range(1, len(branches)):
        for some in combinations(range(len(branches)), n):
            groups = [branches[i] for i in some], [each for i, each in enumerate(branches) if i not in some]
            for k in range(1, len(devices)):
                parts = devices[:k], devices[k:]
                longest = max(
                    least_beside(costed, group, part, known, bound)
                    for group, part in zip(groups, parts, strict=True)
                )
                best = min(best, longest)
    return best
