"""Transfer nodes on cut edges (NetSplit thesis, section 4.5, Algorithm 2).

    u on p ──k──► v on q      becomes      u on p ──k──► [transfer] on q ──k@q──► v on q

A variable gets one transfer node per destination device, however many nodes read it there. That reads the
variable itself or, where an exchange says so, another's copy: k ─► k@q ─► k@r. A device has one of all copies
of a weight that its nodes read: in a placed graph they have one name (`Initializer.held_as`).

States in slices move in bundles: `bundles_of` and `BundleTurns` say which and when.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from netsplit.errors import ConfigError
from netsplit.graph.arguments import renamed, storage_of
from netsplit.graph.ir import INITIALIZER, TRANSFER, Graph, Node, Variable, once_of
from netsplit.placement.exchange import Exchange
from netsplit.placement.placement import Shard
from netsplit.placement.sharding import Bundle, ranked
from netsplit.program.instructions import Backward, BackwardPart, Forward, Gather, Program, Segment
from netsplit.rewrite.layouts import keep_runs

__all__ = [
    "BundleTurns",
    "Work",
    "bundles_of",
    "bundles_used",
    "exchanges_that_hold",
    "insert_transfers",
    "readers_elsewhere",
]


_KEPT = 4  # placed graphs of a graph


def insert_transfers(
    graph: Graph, device_of: Mapping[str, str], exchanges: Sequence[Exchange] = ()
) -> tuple[Graph, dict[str, str]]:
    """The graph with transfer nodes, and every node's device; input variables need none.

    Raises:
        ConfigError: an exchange whose hops do not lead from the variable's home to all that read it.
    """
    known, key = _last_placed(graph), (tuple(device_of[name] for name in graph.nodes), tuple(exchanges))
    kept = known.get(key)
    if kept is None:
        kept = known[key] = _with_transfers(graph, device_of, exchanges)
        if len(known) > _KEPT:
            known.popitem(last=False)
    return kept[0], dict(kept[1])


@once_of
def _last_placed(
    graph: Graph,
) -> OrderedDict[tuple[tuple[str, ...], tuple[Exchange, ...]], tuple[Graph, dict[str, str]]]:
    return OrderedDict()


def readers_elsewhere(graph: Graph, device_of: Mapping[str, str], k: str) -> tuple[str, tuple[str, ...]]:
    """A variable's home, and the other devices that read it, first readers first."""
    variable = graph.variables[k]
    assert variable.producer is not None
    home = device_of[variable.producer]
    readers = dict.fromkeys(device_of[name] for name in variable.consumers)
    return home, tuple(device for device in readers if device != home)


def exchanges_that_hold(
    graph: Graph, device_of: Mapping[str, str], exchanges: Sequence[Exchange]
) -> tuple[Exchange, ...]:
    """Exchanges that also fit another graph, whose variables may differ or be read elsewhere."""
    return tuple(
        each
        for each in exchanges
        if each.variable in graph.variables
        and graph.variables[each.variable].producer is not None
        and not each.wrong(*readers_elsewhere(graph, device_of, each.variable))
    )


def _sources(
    graph: Graph, device_of: Mapping[str, str], exchanges: Sequence[Exchange]
) -> dict[tuple[str, str], str]:
    """(variable, reading device) -> the device that hands it on."""
    sources: dict[tuple[str, str], str] = {}
    for exchange in exchanges:
        k = exchange.variable
        if k not in graph.variables or graph.variables[k].producer is None:
            raise ConfigError(f"an exchange names '{k}', which no operator of the graph computes.")
        home, readers = readers_elsewhere(graph, device_of, k)
        if why := exchange.wrong(home, readers):
            raise ConfigError(f"an exchange of '{k}' does not bring it from '{home}' to its readers: {why}.")
        sources.update({(k, q): p for q, p in exchange.source_of.items() if p != home})
    return sources


def _with_transfers(
    graph: Graph, device_of: Mapping[str, str], exchanges: Sequence[Exchange]
) -> tuple[Graph, dict[str, str]]:
    sources = _sources(graph, device_of, exchanges)
    graph = _held_once(graph)
    nodes: dict[str, Node] = {}
    variables = dict(graph.variables)
    placed = dict(device_of)
    local_name: dict[tuple[str, str], str] = {}  # (variable, device) -> its name there
    for node in graph:
        device = device_of[node.name]
        names = {}
        for k in node.inputs:
            producer = graph.variables[k].producer
            if producer is None or device_of[producer] == device:
                continue
            way = [device]
            while (k, way[-1]) in sources:
                way.append(sources[k, way[-1]])
            read = k
            for q in reversed(way):
                if (k, q) not in local_name:
                    transfer = _transfer_node(k, q, read)
                    local_name[k, q] = transfer.outputs[0]
                    nodes[transfer.name] = transfer
                    placed[transfer.name] = q
                    variables[transfer.outputs[0]] = _moved(graph.variables[k], transfer)
                read = local_name[k, q]
            names[k] = read
        nodes[node.name] = _rename_inputs(node, names)
    moved = replace(graph, nodes=nodes, variables=_with_consumers(nodes, variables))
    keep_runs(moved, graph)
    return moved, placed


@once_of
def _held_once(graph: Graph) -> Graph:
    """The graph with one name for all copies of a weight."""
    names = {k: init.held_as for k, init in graph.initializers.items() if init.held_as != k}
    if not names:
        return graph
    references = {("init", k): ("init", name) for k, name in names.items()}
    nodes = {
        node.name: node
        if names.keys().isdisjoint(node.initializers)
        else replace(
            node,
            initializers=tuple(dict.fromkeys(names.get(k, k) for k in node.initializers)),
            **renamed(node, references),
        )
        for node in graph
    }
    initializers = {k: init for k, init in graph.initializers.items() if k not in names}
    variables = {
        k: replace(variable, alias_of=INITIALIZER + names[own])
        if (own := (variable.alias_of or "").removeprefix(INITIALIZER)) in names
        and variable.alias_of == INITIALIZER + own
        else variable
        for k, variable in graph.variables.items()
    }
    return replace(graph, nodes=nodes, variables=variables, initializers=initializers)


def _transfer_node(variable: str, device: str, read: str) -> Node:
    name = f"{variable}@{device}"
    return Node(name=name, op=TRANSFER, inputs=(read,), outputs=(name,), args=({"var": read}, device))


def _moved(variable: Variable, transfer: Node) -> Variable:
    return replace(
        variable,
        name=transfer.outputs[0],
        producer=transfer.name,
        alias_of=None,
        spread=bool(variable.repeated),
    )


def _rename_inputs(node: Node, names: Mapping[str, str]) -> Node:
    if not names:
        return node
    return replace(
        node,
        inputs=tuple(names.get(k, k) for k in node.inputs),
        saved=tuple(names.get(k, k) for k in node.saved),
        blocked=tuple(names.get(k, k) for k in node.blocked),
        **renamed(node, {("var", k): ("var", new) for k, new in names.items()}),
    )


def _with_consumers(nodes: Mapping[str, Node], variables: Mapping[str, Variable]) -> dict[str, Variable]:
    consumers: dict[str, list[str]] = {k: [] for k in variables}
    for node in nodes.values():
        for k in node.inputs:
            consumers[k].append(node.name)
    return {
        k: v if (read := tuple(consumers[k])) == v.consumers else replace(v, consumers=read)
        for k, v in variables.items()
    }


_LEAST, _MOST = 2**20, 2**25  # bytes of what is summed or gathered at once

Work = tuple[int, int, BackwardPart | None]
"""Segment, micro-batch, part of the backward; None: the forward."""


def bundles_of(
    graph: Graph,
    segments: Sequence[Segment],
    holders: Mapping[str, tuple[str, ...]],
    shards: Sequence[Shard],
    ranks: Sequence[str],
    like: Sequence[Bundle] = (),
) -> tuple[Bundle, ...]:
    """Parameters that the devices of a shard share, in bundles; by segment if parameters are sharded.

    Where whole parameters are not kept, those that are not trained are in slices, too. `like` is of the
    program by which devices hold what they hold, where that is another.
    """
    known = {k: frozenset(bundle.devices) for bundle in like for k in bundle.names}
    readers: dict[str, set[int]] = {}
    for segment in segments:
        for name in segment.nodes:
            for k in graph.nodes[name].initializers:
                readers.setdefault(k, set()).add(segment.index)
        for k in segment.inputs:  # views of parameters, which another segment of the device made
            root = storage_of(graph, k)
            if root.startswith(INITIALIZER):
                readers.setdefault(root.removeprefix(INITIALIZER), set()).add(segment.index)
    bundles = []
    for shard in shards:
        together: dict[tuple[int, ...], list[str]] = {}
        for k, own in graph.initializers.items():
            sliced = own.requires_grad or (own.is_parameter and shard.level == "parameters")
            having = known.get(k) if like else frozenset(holders.get(k, ()))
            if sliced and k in readers and having == frozenset(shard.devices):
                key = () if shard.level == "optimizer" else tuple(sorted(readers[k]))
                together.setdefault(key, []).append(k)
        for key, every in together.items():
            devices = ranked(shard.devices, ranks)
            for names in _buckets(graph, every):
                trained = any(graph.initializers[k].requires_grad for k in names)
                nbytes = sum(graph.initializers[k].nbytes for k in names)
                bundles.append(Bundle(devices, names, shard.level, key, trained, nbytes))
    return tuple(bundles)


def _buckets(graph: Graph, names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Group small parameters, up to buckets that are small beside what is kept."""
    sizes = {k: graph.initializers[k].nbytes for k in names}
    limit = min(max(sum(sizes.values()) // 8, _LEAST), _MOST)
    bucket: list[str] = []
    nbytes = 0
    for k, own in sorted(sizes.items(), key=lambda item: item[1] > limit):
        if bucket and nbytes + own > limit:
            yield tuple(bucket)
            bucket, nbytes = [], 0
        bucket.append(k)
        nbytes += own
    yield tuple(bucket)


class BundleTurns:
    """Walks a program's work in its global order; says what is gathered before and summed after it.

    A bundle is gathered on all of its devices when the first of them needs it, as far ahead of that as the
    bytes of one segment allow; a device forgets it unless its next computation needs it, too. It is summed
    once all of its devices have gradients of it, so that none has more than one micro-batch's.
    """

    def __init__(
        self,
        bundles: Sequence[Bundle],
        segments: Sequence[Segment],
        work: Sequence[Work],
        trained: frozenset[int],
    ) -> None:
        self.bundles, self.work = bundles, work
        self.device = [segments[s].on(i) for s, i, _ in work]
        self.reading: dict[int, list[int]] = {}  # segment -> bundles that it computes with
        self.giving: dict[int, list[int]] = {}  # segment -> bundles of whose gradients it makes some
        for b, bundle in enumerate(bundles):
            for s in bundle.segments:
                if bundle.level == "parameters":
                    self.reading.setdefault(s, []).append(b)
                if bundle.trained and s in trained:
                    self.giving.setdefault(s, []).append(b)
        self.there: set[tuple[str, int]] = set()  # device, bundle
        self.ahead = max((self._nbytes(each) for each in self.reading.values()), default=0)
        self.next = self._next()
        self.left: Counter[tuple[int, str]] = Counter()  # bundle, device -> backwards to come
        for at, (s, _, part) in enumerate(work):
            if part in ("whole", "weight"):
                self.left.update((b, self.device[at]) for b in self.giving.get(s, ()))
        self.unsummed: Counter[tuple[int, str]] = Counter()  # bundle, device -> backwards since the last sum
        givers = {(b, self.device[at], s) for at, (s, *_) in enumerate(work) for b in self.giving.get(s, ())}
        self.each = Counter((b, device) for b, device, _ in givers)
        """Bundle, device -> backwards of one micro-batch that give gradients of it."""

    def gathered(self, at: int) -> Iterator[int]:
        """Bundles to gather before a piece of work: its own, and a segment's bytes of later ones."""
        device, ahead = self.device[at], set[int]()
        place: int | None = at
        while place is not None:
            new = [b for b in self._read(place) if (device, b) not in self.there]
            for b in new:
                self.there |= {(each, b) for each in self.bundles[b].devices}
                yield b
            if place != at:
                ahead.update(self._read(place))
                if self._nbytes(ahead) >= self.ahead:
                    return
            place = self.next[place]

    def summed(self, at: int) -> Iterator[int]:
        device, (s, _, part) = self.device[at], self.work[at]
        later = self.next[at]
        kept = () if later is None else self._read(later)
        self.there -= {(device, b) for b in self._read(at) if b not in kept}
        if part not in ("whole", "weight"):
            return
        for b in self.giving.get(s, ()):
            self.left[b, device] -= 1
            self.unsummed[b, device] += 1
            if self._due(b):
                for each in self.bundles[b].devices:
                    self.unsummed[b, each] = 0
                yield b

    def _nbytes(self, bundles: Iterable[int]) -> int:
        return sum(self.bundles[b].nbytes for b in bundles)

    def _due(self, b: int) -> bool:
        bundle = self.bundles[b]
        if bundle.level == "gradients":
            return not any(self.left[b, each] for each in bundle.devices)
        return all(
            self.unsummed[b, each] >= self.each[b, each] or not self.left[b, each] for each in bundle.devices
        )

    def _read(self, at: int) -> list[int]:
        s, _, part = self.work[at]
        return [] if part == "weight" else self.reading.get(s, [])

    def _next(self) -> list[int | None]:
        later: dict[str, int] = {}
        after: list[int | None] = [None] * len(self.work)
        for at in reversed(range(len(self.work))):
            after[at] = later.get(self.device[at])
            later[self.device[at]] = at
        return after


def bundles_used(
    program: Program, device: str
) -> tuple[dict[int, tuple[int, ...]], dict[int, tuple[int, ...]]]:
    """Segment -> bundles it needs whole; instruction -> bundles released after it."""
    reading: dict[int, tuple[int, ...]] = {}
    for b, bundle in enumerate(program.bundles):
        if bundle.level == "parameters" and device in bundle.devices:
            for s in bundle.segments:
                reading[s] = (*reading.get(s, ()), b)
    going: dict[int, tuple[int, ...]] = {}
    needed: set[int] = set()  # before they are gathered again
    instructions = program.instructions[device] if reading else ()
    for index in reversed(range(len(instructions))):
        ins = instructions[index]
        if isinstance(ins, Gather):
            needed.discard(ins.bundle)
        elif isinstance(ins, Forward) or (isinstance(ins, Backward) and ins.part != "weight"):
            used = reading.get(ins.segment, ())
            going[index] = tuple(b for b in used if b not in needed)
            needed.update(used)
    return reading, {index: each for index, each in going.items() if each}
