"""What binds: the device, link or chain that makes the objective as large as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from netsplit.partition.base import Loads
from netsplit.partition.common.instance import Instance
from netsplit.planning.explanation.notation import node_run, percent, seconds
from netsplit.planning.explanation.path import PathSpan, totals

__all__ = ["Binding", "load_binding", "longest_chain", "path_binding", "stages_binding"]

_CHAIN = 0.9  # of the iteration: from here on the chain of nodes itself is what binds


@dataclass(frozen=True)
class Binding:
    """The answer to "why is it not faster?"; seconds of the objective."""

    what: Literal["device", "link", "chain", "nothing"]
    name: str  # of the device, of the link, or the chain's first and last node
    seconds: float  # of the objective that it accounts for
    sentence: str


def longest_chain(instance: Instance) -> tuple[float, tuple[str, ...]]:
    """Forward and backward seconds along one path, each node on its fastest device, no transfers.

    No placement has a shorter latency; of a task graph whose backward computations are nodes too.
    """
    own = (instance.forward_s + instance.backward_s).min(axis=1)
    ends, best = np.zeros(instance.n), np.full(instance.n, -1)
    for v in range(instance.n):
        before = instance.predecessors[v]
        if len(before):
            best[v] = before[int(np.argmax(ends[before]))]
            ends[v] = ends[best[v]]
        ends[v] += own[v]
    if not instance.n:
        return 0.0, ()
    v, path = int(np.argmax(ends)), []
    longest = float(ends[v])
    while v >= 0:
        path.append(instance.names[v])
        v = int(best[v])
    return longest, tuple(reversed(path))


def path_binding(instance: Instance, path: Sequence[PathSpan], iteration_s: float) -> Binding:
    """What the critical path is made of, in one sentence."""
    by_place = [(where, s) for where, s in totals(path).items() if s > 0]
    if not by_place:
        return Binding("nothing", "", 0.0, "Nothing binds: the iteration takes no time.")
    chain_s, chain = longest_chain(instance)
    if chain_s >= _CHAIN * iteration_s:
        return Binding(
            "chain",
            f"{chain[0]} .. {chain[-1]}",
            chain_s,
            f"The chain {node_run(chain)} binds: each node on its fastest device and without transfers,"
            f" it takes {seconds(chain_s)}, {percent(chain_s, iteration_s)} of the iteration.",
        )
    name, spent = by_place[0]
    others = [
        f"{where} another {percent(s, iteration_s)}" for where, s in by_place[1:3] if s > 0.1 * iteration_s
    ]
    rest = "; " + ", ".join(others) if others else ""
    if " -> " in name:
        sent = [span for span in path if span.where == name]
        most = max(sent, key=lambda span: span.seconds)
        sentence = (
            f"The link {name} binds: its transfers are {percent(spent, iteration_s)} of the critical path,"
            f" most of all {most.name} with {seconds(most.seconds)}{rest}."
        )
        return Binding("link", name, spent, sentence)
    kinds = {
        kind: sum(s.seconds for s in path if s.where == name and s.what in parts)
        for kind, parts in (("forward", ("forward", "recompute")), ("backward", ("backward", "weight")))
    }
    sentence = (
        f"The time of {name} binds: it is {percent(spent, iteration_s)} of the critical path"
        f" (forward {seconds(kinds['forward'])}, backward {seconds(kinds['backward'])}){rest}."
    )
    return Binding("device", name, spent, sentence)


def load_binding(loads: Loads, devices: Sequence[str]) -> Binding:
    """The device with the largest load, and what the load is made of."""
    p = int(np.argmax(loads.seconds))
    name, load, transfer = devices[p], float(loads.seconds[p]), float(loads.transfer_s[p])
    if load <= 0:
        return Binding("nothing", "", 0.0, "Nothing binds: no device has a load.")
    if loads.beside and transfer < load:
        return Binding("device", name, load, f"The computing of {name} binds, {seconds(load)}.")
    if loads.beside:
        way = "from" if loads.send_s[p] >= transfer else "to"
        return Binding("device", name, load, f"The transfers {way} {name} bind, {seconds(load)}.")
    made_of = ", ".join(
        f"{part} {seconds(float(each[p]))} ({percent(float(each[p]), load)})"
        for part, each in sorted(loads.parts.items(), key=lambda item: -item[1][p])
        if each[p] > 0
    )
    after = ""
    if len(devices) > 1:
        q = max((q for q in range(len(devices)) if q != p), key=lambda q: loads.seconds[q])
        after = f"; the next is {devices[q]} at {percent(float(loads.seconds[q]), load)} of it"
    return Binding("device", name, load, f"The load of {name} binds, {seconds(load)}: {made_of}{after}.")


def stages_binding(loads: Loads, devices: Sequence[str]) -> Binding:
    """The stage whose replicas compute longest, each its part; the rest of the period is communication."""
    compute_s = dict(zip(devices, loads.forward_s + loads.backward_s, strict=True))
    replica_s = [float(compute_s[stage.devices[0]]) for stage in loads.stages]
    k = max(range(len(replica_s)), key=replica_s.__getitem__)
    spent, names = replica_s[k], ", ".join(loads.stages[k].devices)
    sentence = (
        f"Stage {k} on {names} computes most: {seconds(spent)} a micro-batch and replica,"
        f" {percent(spent, loads.period_s)} of the period; transfers and synchronisation of weights make the"
        " rest."
    )
    return Binding("device", names, spent, sentence)
