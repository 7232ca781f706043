"""A problem as arrays: what the methods that search or schedule compute with.

Index letters: `v` node (topological order), `u` variable that another node reads, `p, q` device,
`a` atom (a set of nodes that must share a device). Seconds and bytes throughout.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from netsplit import graph as graphs
from netsplit.compiled import Floats, Ints, Packed
from netsplit.graph.arguments import hands_on
from netsplit.graph.quotient import DisjointSets, Sets, atoms_of, units_of
from netsplit.partition.base import Problem
from netsplit.placement.placement import Stage
from netsplit.profile.costs import DeviceCosts
from netsplit.simulate.tasks import DeviceSeconds

__all__ = [
    "Csr",
    "DeviceTotals",
    "Floats",
    "Instance",
    "Ints",
    "Packed",
    "interchangeable",
    "interchangeable_devices",
]


@dataclass(frozen=True, eq=False)
class Csr:
    """Rows of indices, one after another: row i is ``items[starts[i] : starts[i + 1]]``."""

    starts: Ints
    items: Ints

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> Csr:
        rows = list(rows)
        starts = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=starts[1:])
        return cls(starts, np.array([i for row in rows for i in row], np.int64))

    @classmethod
    def grouped(cls, row: Ints, item: Ints, rows: int) -> Csr:
        """Items of so many rows, of pairs by ascending row."""
        return cls(np.searchsorted(row, np.arange(rows + 1)).astype(np.int64), item.astype(np.int64))

    @classmethod
    def members(cls, number: Ints) -> Csr:
        """The indices of each number, ascending."""
        items = np.argsort(number, kind="stable")
        return cls.grouped(number[items], items, int(number.max(initial=-1)) + 1)

    def __getitem__(self, i: int) -> Ints:
        return self.items[self.starts[i] : self.starts[i + 1]]

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def packed(self) -> Packed:
        return np.concatenate([self.starts + len(self.starts), self.items])


@dataclass(frozen=True, eq=False)
class DeviceTotals:
    """[D] what each device holds under (5-18), and its seconds of one micro-batch."""

    nodes: Ints
    nbytes: Ints
    forward_s: Floats
    backward_s: Floats


@dataclass(frozen=True, eq=False)
class Instance:
    """Arrays of a problem. Shapes: n nodes, m variables, D devices, A atoms, h held variables."""

    problem: Problem
    names: tuple[str, ...]  # [n]
    devices: tuple[str, ...]  # [D]
    variables: tuple[str, ...]  # [m] those with a producer and a reader
    forward_s: Floats  # [n, D]
    backward_s: Floats  # [n, D]; zero where no gradient passes
    trained: NDArray[np.bool_]  # [n] a gradient passes through the node
    producer: Ints  # [m] node
    consumers: Csr  # [m] -> nodes, ascending
    reads: Csr  # [n] -> variables with a producer
    gives: NDArray[np.bool_]  # [reads] a gradient comes back for what is read
    final: NDArray[np.bool_]  # [n] a gradient comes back from an output of the graph that the node makes
    makes: Csr  # [n] -> variables with a reader
    nbytes: Ints  # [m]
    requires_backward: NDArray[np.bool_]  # [m] its gradient travels back
    latency_s: Floats  # [D, D]
    seconds_per_byte: Floats  # [D, D]
    atom_of: Ints  # [n]
    unit_of: Ints  # [n] unit of nodes (`Graph.units`); numbers ascend with the first
    state_bytes: Ints  # [n] `MemoryModel.state_bytes`: initializers, with gradients and moments
    held_bytes: Ints  # [h] `MemoryModel.variable_bytes`, inputs of the graph included
    holders: Csr  # [h] -> nodes whose device has it
    capacity: Ints  # [D]
    trainable_bytes: Ints  # [n] parameters that the optimiser changes, at the first node that uses each
    weights: Csr  # [n] -> parameters that the optimiser changes, by every node that uses them
    weight_bytes: Ints  # [parameters]
    on: tuple[DeviceCosts, ...]  # [D]

    @classmethod
    def of(cls, problem: Problem) -> Instance:
        """The arrays of a problem: those that are alive of one that differs in nothing that they hold."""
        key = (
            id(problem.graph), id(problem.costs), id(problem.cluster), problem.in_flight, problem.memory,
        )  # fmt: skip
        known = _alive.get(key)
        if known is None:
            known = _alive[key] = cls._build(problem)
        if known.problem is problem:
            return known
        same = copy(known)  # with the tables that were asked for already
        object.__setattr__(same, "problem", problem)
        return same

    @classmethod
    def _build(cls, problem: Problem) -> Instance:
        graph, costs, cluster = problem.graph, problem.costs, problem.cluster
        index = graph.position
        names = tuple(graph.nodes)
        on = [costs.devices[device.kind] for device in cluster.devices]
        outputs = frozenset(graph.output_variables)
        used = [k for k, v in graph.variables.items() if v.producer is not None and v.consumers]
        u_of = {k: u for u, k in enumerate(used)}
        requires_backward = graph.requires_backward
        trained = np.array([any(k in requires_backward for k in node.outputs if k) for node in graph], bool)
        forward_s, backward_s = _seconds(names, on)
        memory = problem.memory_model
        latency_s, seconds_per_byte = cluster.link_costs
        trainable = _trainable_bytes(problem)
        held_as = {k: each.held_as for k, each in graph.initializers.items() if each.requires_grad}
        numbers = {k: w for w, k in enumerate(dict.fromkeys(held_as.values()))}
        w_of = {k: numbers[name] for k, name in held_as.items()}
        back = _gradients_back(problem)
        return cls(
            problem=problem,
            names=names,
            devices=tuple(device.name for device in cluster.devices),
            variables=tuple(used),
            forward_s=forward_s,
            backward_s=backward_s * trained[:, None],
            trained=trained,
            producer=np.array([index[graph.variables[k].producer or ""] for k in used], np.int64),
            consumers=Csr.of([sorted(index[v] for v in graph.variables[k].consumers) for k in used]),
            reads=Csr.of([[u_of[k] for k in node.inputs if k in u_of] for node in graph]),
            gives=np.array([k in back[node.name] for node in graph for k in node.inputs if k in u_of], bool),
            final=np.array(
                [any(k in requires_backward and k in outputs for k in node.outputs) for node in graph], bool
            ),
            makes=Csr.of([[u_of[k] for k in node.outputs if k in u_of] for node in graph]),
            nbytes=np.array([graph.variables[k].nbytes for k in used], np.int64),
            requires_backward=np.array([k in requires_backward for k in used], bool),
            latency_s=latency_s,
            seconds_per_byte=seconds_per_byte,
            atom_of=_numbers(names, atoms_of(graph)),
            unit_of=_numbers(names, units_of(graph)),
            state_bytes=np.array([memory.state_bytes[name] for name in names], np.int64),
            held_bytes=np.array(list(memory.variable_bytes.values()), np.int64),
            holders=Csr.of(
                [sorted(map(index.__getitem__, memory.holders[k])) for k in memory.variable_bytes]
            ),
            capacity=np.array([device.capacity_bytes for device in cluster.devices], np.int64),
            trainable_bytes=np.array([trainable[name] for name in names], np.int64),
            weights=Csr.of([[w_of[k] for k in node.initializers if k in w_of] for node in graph]),
            weight_bytes=np.array([graph.initializers[k].nbytes for k in numbers], np.int64),
            on=tuple(on),
        )

    @property
    def n(self) -> int:
        return len(self.names)

    @cached_property
    def unchanging(self) -> frozenset[str]:
        """Variables that are the same for all micro-batches of a step. Needs torch where there may be any."""
        graph = self.problem.graph
        return graphs.unchanging(graph) if hands_on(graph) else frozenset()

    @cached_property
    def atoms(self) -> Csr:
        """[A] -> nodes of the atom, ascending."""
        return Csr.members(self.atom_of)

    def by_atom(self, values: NDArray[Any]) -> NDArray[Any]:
        """[A, ...] sums over the nodes of each atom, of [n, ...]."""
        sums = np.zeros((len(self.atoms), *values.shape[1:]), values.dtype)
        np.add.at(sums, self.atom_of, values)
        return sums

    @cached_property
    def held_by_atoms(self) -> tuple[Csr, Csr]:
        """[h] -> atoms that touch the held variable, and [A] -> held variables; ascending, each once."""
        held, count = len(self.holders), len(self.atoms)
        row = np.repeat(np.arange(held), np.diff(self.holders.starts))
        k, atom = np.divmod(np.unique(row * count + self.atom_of[self.holders.items]), max(count, 1))
        by_atom = np.argsort(atom, kind="stable")
        return Csr.grouped(k, atom, held), Csr.grouped(atom[by_atom], k[by_atom], count)

    @cached_property
    def transfer_s(self) -> Floats:
        """[m, D, D] seconds to move variable u from p to q; zero on the same device. For small problems."""
        return np.asarray(self.latency_s + self.nbytes[:, None, None] * self.seconds_per_byte)

    @cached_property
    def step_s(self) -> Floats:
        """[n, D] seconds of the optimiser's step on the node's parameters."""
        return np.outer(self.trainable_bytes, [each.step_s_per_byte for each in self.on])

    @cached_property
    def kind_of(self) -> Ints:
        """[D] number of the device's kind: devices of one have the same costs."""
        numbers: dict[int, int] = {}
        return np.array([numbers.setdefault(id(each), len(numbers)) for each in self.on], np.int64)

    @cached_property
    def first_of_kind(self) -> Ints:
        """[kinds] a device of each."""
        return np.unique(self.kind_of, return_index=True)[1].astype(np.int64)

    @cached_property
    def device(self) -> DeviceSeconds:
        cluster = self.problem.cluster
        return DeviceSeconds.of(cluster.devices, cluster.nics, self.problem.costs)

    @cached_property
    def successors(self) -> Csr:
        """[n] -> nodes that read something of v, ascending, each once."""
        return Csr.of(
            [sorted({int(w) for u in self.makes[v] for w in self.consumers[u]}) for v in range(self.n)]
        )

    @cached_property
    def predecessors(self) -> Csr:
        """[n] -> nodes that v reads something of, ascending, each once."""
        return Csr.of([sorted({int(self.producer[u]) for u in self.reads[v]}) for v in range(self.n)])

    def encode(self, device_of: Mapping[str, str]) -> Ints:
        """[n] device index of each node."""
        where = {name: p for p, name in enumerate(self.devices)}
        return np.array([where[device_of[name]] for name in self.names], np.int64)

    def decode(self, where: Sequence[int] | Ints) -> dict[str, str]:
        """Node name to device name, of [n] device indices."""
        return {name: self.devices[int(p)] for name, p in zip(self.names, where, strict=True)}

    def used_bytes(self, where: Ints) -> Ints:
        """[D] bytes on each device by `Problem.memory_model`."""
        used = np.bincount(where, weights=self.state_bytes, minlength=len(self.devices))
        return np.asarray(np.rint(used), np.int64) + self.held_bytes @ self._present(self.holders, where)

    def bytes_of_groups(self, group_of: Ints) -> tuple[list[int], dict[tuple[int, ...], int]]:
        """[groups] bytes of each group alone, and of what just these groups hold, once on a device with any.

        Args:
            group_of: [n]
        """
        alone = np.zeros(int(group_of.max(initial=-1)) + 1, np.int64)
        np.add.at(alone, group_of, self.state_bytes)
        own, shared = alone.tolist(), dict[tuple[int, ...], int]()
        for h, nbytes in enumerate(self.held_bytes.tolist()):
            holders = tuple(sorted(set(group_of[self.holders[h]].tolist())))
            if len(holders) == 1:
                own[holders[0]] += nbytes
            elif holders and nbytes:
                shared[holders] = shared.get(holders, 0) + nbytes
        return own, shared

    def loads(self, where: Ints) -> Floats:
        """[D] seconds of each device in one period of a saturated pipeline: `max_load` is the largest.

        Its nodes' seconds, forward and backward; and for every variable, once, `hop_s` if it is made
        here and read elsewhere, and once if it is made elsewhere and read here, however many nodes or
        devices read it (Tarnawski et al., NeurIPS 2020, section 3).
        """
        total = self.forward_s + self.backward_s
        loads = np.bincount(where, weights=total[np.arange(self.n), where], minlength=len(self.devices))
        sent, received = self.crossings(where)
        return np.asarray(loads + (self.hop_s * (sent | received)).sum(axis=0))

    def crossings(self, where: Ints) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """[m, D] whether a device sends a variable to another, and whether it receives it from one."""
        read = self._present(self.consumers, where)
        home = np.zeros_like(read)
        home[np.arange(len(home)), where[self.producer]] = True
        received = read & ~home
        return home & np.any(received, axis=1, keepdims=True), received

    @cached_property
    def hop_s(self) -> Floats:
        """[m, D] seconds that one crossing of a device's border costs it; gradients cross back.

        Over the device's port to the host where it has one, else over the slowest of its links.
        """
        devices = self.problem.cluster.devices
        links = list(self.problem.cluster.links.items())
        columns = []
        for device in devices:
            own = [device.port] if device.port else [link for ends, link in links if device.name in ends]
            seconds = [link.latency_s + self.nbytes * link.seconds_per_byte for link in own]
            columns.append(np.max([np.zeros(len(self.nbytes)), *seconds], axis=0))
        return np.asarray(np.stack(columns, axis=1) * (1 + self.requires_backward)[:, None])

    def _present(self, rows: Csr, where: Ints) -> NDArray[np.bool_]:
        """[rows, D] whether any node of the row is on the device."""
        present = np.zeros((len(rows), len(self.devices)), bool)
        present[np.repeat(np.arange(len(rows)), np.diff(rows.starts)), where[rows.items]] = True
        return present

    def fits(self, where: Ints) -> bool:
        return bool((self.used_bytes(where) <= self.capacity).all())

    def totals(self, stages: Sequence[Stage]) -> DeviceTotals:
        """Totals of stages that hold every node: each replica holds a whole stage and takes its turns."""
        index = {name: v for v, name in enumerate(self.names)}
        rank = {name: p for p, name in enumerate(self.devices)}
        part = np.zeros((self.n, len(self.devices)))
        for stage in stages:
            rows = [index[name] for name in stage.nodes]
            for name, own in stage.parts.items():
                part[rows, rank[name]] = own
        holds = part > 0
        touched = np.zeros((len(self.holders), len(self.devices)), bool)
        np.logical_or.at(
            touched,
            np.repeat(np.arange(len(touched)), np.diff(self.holders.starts)),
            holds[self.holders.items],
        )
        return DeviceTotals(
            nodes=holds.sum(axis=0),
            nbytes=self.state_bytes @ holds + self.held_bytes @ touched,
            forward_s=(part * self.forward_s).sum(axis=0),
            backward_s=(part * self.backward_s).sum(axis=0),
        )

    def stages_fit(self, stages: Sequence[Stage]) -> bool:
        """Whether every replica of every stage is within its device's capacity."""
        return bool((self.totals(stages).nbytes <= self.capacity).all())


_alive: WeakValueDictionary[tuple[int, int, int, int, str], Instance] = WeakValueDictionary()
"""By what it is made of, whose identities are theirs alone while it lives, as it holds them."""


def _seconds(names: Sequence[str], on: Sequence[DeviceCosts]) -> tuple[Floats, Floats]:
    """[n, D] each, forward and backward: read once for each kind of device."""
    kinds = list({id(each): each for each in on}.values())
    rank = {id(each): column for column, each in enumerate(kinds)}
    column = [rank[id(each)] for each in on]
    seconds = np.array(
        [[[(s := each.nodes[v]).forward_s, s.backward_s] for each in kinds] for v in names], float
    ).reshape(len(names), len(kinds), 2)
    return np.ascontiguousarray(seconds[:, column, 0]), np.ascontiguousarray(seconds[:, column, 1])


def _trainable_bytes(problem: Problem) -> dict[str, int]:
    """Bytes of the parameters that the optimiser changes, at the first node that uses each or a copy."""
    graph = problem.graph
    counted: set[str] = set()
    nbytes: dict[str, int] = {}
    for node in graph:
        inits = (graph.initializers[k] for k in node.initializers)
        own = {
            each.held_as: each.nbytes for each in inits if each.requires_grad and each.held_as not in counted
        }
        counted.update(own)
        nbytes[node.name] = sum(own.values())
    return nbytes


def _gradients_back(problem: Problem) -> dict[str, frozenset[str]]:
    """Node -> variables it reads whose gradients it computes; as `Graph.requires_backward`."""
    graph, requires_backward = problem.graph, problem.graph.requires_backward
    unit_of = {name: unit for unit in graph.units for name in unit}
    back = {}
    for node in graph:
        unit = unit_of.get(node.name, (node.name,))
        carries = any(k in requires_backward for name in unit for k in graph.nodes[name].outputs)
        own = (k for k in node.inputs if k not in node.blocked and graph.variables[k].requires_grad)
        back[node.name] = frozenset(own if carries else ())
    return back


def _numbers(names: Sequence[str], sets: Sets) -> Ints:
    number = {name: i for i, together in enumerate(sets) for name in together}
    return np.array([number[name] for name in names], np.int64)


def interchangeable(own: Sequence[Hashable], tables: Sequence[NDArray[np.generic]] = ()) -> list[list[int]]:
    """Sets of devices any two of which may be exchanged, by their first; a device like no other is alone.

    Exchanges compose: where p with q and q with r change nothing, p with r does not either.

    Args:
        own: [D] all that is known of each device alone.
        tables: [D, D] each, what is known of pairs of devices.
    """
    sets = DisjointSets(len(own))
    for q in range(len(own)):
        for p in range(q):
            first = sets.find(p) == p and own[p] == own[q]
            if first and all(_alike(table, p, q) for table in tables):
                sets.merge(p, q)
                break
    return sets.sets()


def _alike(table: NDArray[np.generic], p: int, q: int) -> bool:
    """Whether it is the same with p and q exchanged."""
    swap = np.arange(len(table))
    swap[[p, q]] = q, p
    return np.array_equal(table[p], table[q, swap]) and np.array_equal(table[:, p], table[swap, q])


def interchangeable_devices(instance: Instance) -> list[list[int]]:
    """The sets by seconds of all they do, bytes, links, hosts and NICs."""
    columns, host = np.concatenate((instance.forward_s, instance.backward_s)), instance.device.host
    paces = [() if n < 0 else tuple(instance.device.nic_per_byte[:, n].tolist()) for n in instance.device.nic]
    own = [
        (
            int(c), columns[:, p].tobytes(), instance.device.slowdown[p].tobytes(),
            replace(instance.on[p], nodes={}), paces[p],
        )
        for p, c in enumerate(instance.capacity)
    ]  # fmt: skip
    shared = [(each[:, None] == each) & (each >= 0) for each in (host, instance.device.nic)]
    return interchangeable(
        [repr(each) for each in own], (instance.latency_s, instance.seconds_per_byte, *shared)
    )
