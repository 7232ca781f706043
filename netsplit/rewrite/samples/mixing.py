"""Whether a loss goes on with what is taken over all samples otherwise than a mean over samples can.

    loss ──sum──► total ──+, -, x constant──► still a mean of samples
                    └────l > total, l / total──► mixed: micro-batches would each have a total of their own
    x[1:] - x[:-1] ──relu──► mixed       x[0] ──► of some samples: mixed, where others have not the same

A loss may equal the mean of its micro-batches' on some samples all the same, where such a threshold leaves
none of them out; that it need not on others is seen here, without computing anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from netsplit.graph.arguments import references
from netsplit.graph.ir import CALL, HOOK, Graph, Node, once_of
from netsplit.graph.operators import (
    over_the_batch,
    touching_initializers,
    written_initializers,
    written_references,
)
from netsplit.graph.storage import storage_of
from netsplit.rewrite.layouts import MemoryLayout
from netsplit.rewrite.rules.elementwise import is_elementwise
from netsplit.rewrite.rules.table import ways_of
from netsplit.rewrite.samples.averaged import (
    UNSURE,
    Averaged,
    Factors,
    averaged,
    by_weights,
    has_mean,
    ignores_targets,
    is_loss,
    is_mean,
    sum_beside_mean,
)
from netsplit.rewrite.samples.behind import any_place_along, reshaped
from netsplit.rewrite.samples.counts import SampleCounts
from netsplit.rewrite.samples.crossing import (
    RECURRENT,
    crosses_samples,
    dims_of,
    first_tensor,
    operator_kinds,
)
from netsplit.rewrite.samples.differing import alike_at, by_place, cut_by_place
from netsplit.rewrite.samples.keeping import first_of_all, kept_apart
from netsplit.rewrite.samples.made_of import ADDED, CASTS, PRODUCTS, VIEWS, MadeOf, made_of, most_of
from netsplit.rewrite.samples.of_no_sample import SHAPE_ALONE, SHAPE_OF_OTHER
from netsplit.rewrite.samples.rows import (
    CutAlong,
    SampleRows,
    rows_given,
    rows_kept,
    rows_of,
    variable_at,
)
from netsplit.rewrite.samples.some import TOGETHER, SomeSamples
from netsplit.rewrite.ways import Cat, PartialSum, SplitCall, Way

__all__ = ["SampleReading", "SampleTotals", "cut_along", "read_samples", "sample_totals"]


_CATS = operator_kinds("cat concat concatenate")
_SAME = operator_kinds("clamp clamp_min clone detach alias")
_SCATTERED = operator_kinds(
    "index_add index_add_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ bincount"
)


@dataclass(frozen=True)
class SampleTotals:
    """What a loss has that is taken over all samples.

    Args:
        mixed: the first operator that makes of a total, or of some of the samples, what is no mean over all.
        terms: operators that take totals of samples; None where it is not known what the loss is made of, or
            not of every operator before whether it goes by samples.
        unread: code that stays whole and is given samples, or what is taken over them.
        carried: the buffer with which `mixed` computes what samples before have left in it; "" for none.
        first_few: the operator that takes the fewest first samples of a larger batch, and how many.
        ignoring: a mean over targets but for some that it was told.
        unproven: an operator of which it is not known whether it goes sample by sample, or all of them in a
            mean.
        placed: the first operator that makes something for each sample of what is of none, and may change, as
            rows of a parameter.
    """

    mixed: Node | None
    terms: int | None
    unread: Node | None
    carried: str = ""
    first_few: tuple[Node, int] | None = None
    ignoring: Node | None = None
    placed: Node | None = None
    unproven: Node | None = None


@once_of
def sample_totals(graph: Graph, fixed: frozenset[str] = frozenset()) -> SampleTotals:
    """Of the loss of a training step, as it was captured.

    What is not known to be a total, as what Python code makes that stays whole, is taken for a value of
    samples.

    Args:
        fixed: operators whose numbers are known to be the same of any number of samples.
    """
    reading = _read(graph, {}, fixed)
    carried = reading.carried()
    if carried:
        reading = _read(graph, carried, fixed)
    loss = next(iter(graph.output_variables), "")
    counted = loss in reading.terms and loss not in reading.unknown
    terms = len(reading.terms[loss]) if counted else None
    calls = (v for v in graph if v.op.startswith(CALL) and not v.op.startswith(HOOK))
    unread = next((v for v in calls if any(reading.of_samples(k) for k in v.inputs)), None)
    mixed = reading.mixed_at(loss)
    few = min(((n, name) for name, n in reading.some.first_few.items()), default=None)
    return SampleTotals(
        mixed,
        terms,
        unread,
        carried.get(mixed.name, "") if mixed else "",
        few and (graph.nodes[few[1]], few[0]),
        next((v for v in graph if ignores_targets(SplitCall(v, {}, {}))), None),
        next((v for v in graph if any(map(reading.is_placed, v.outputs))), None),
        reading.unproven_at(loss),
    )


@once_of
def read_samples(graph: Graph) -> SampleReading:
    """What is known of its variables."""
    return _read(graph, {}, frozenset())


def _read(graph: Graph, carried: Mapping[str, str], fixed: frozenset[str]) -> SampleReading:
    dims = list(zip(graph.input_variables, graph.input_dims, strict=False))
    lies = {k: SampleRows(dim, 1) for k, dim in dims if dim is not None} or rows_given(graph)
    samples = SomeSamples(graph.batch_size, lies)
    learned = graph.initializers.keys() - graph.constants.keys()
    learned |= {k for k, dim in dims if dim is None}  # given to all micro-batches
    made = dict.fromkeys(lies, MadeOf.SAMPLES)
    reading = SampleReading(graph, samples, made, mixing=carried, learned=learned, fixed=fixed)
    for node in graph:
        reading.read(node)
    return reading


@dataclass(frozen=True)
class _Goes:
    """How an operator goes by samples: whether that is known, and which outputs are no sample's."""

    known: bool
    totals: set[str] = field(default_factory=set)  # linear in several
    mixed: set[str] = field(default_factory=set)


@dataclass
class SampleReading:
    """What is known of the variables of a graph, node by node."""

    graph: Graph
    some: SomeSamples
    made: dict[str, MadeOf]
    mixing: Mapping[str, str]  # nodes of which all is mixed
    terms: dict[str, frozenset[str]] = field(default_factory=dict)  # total -> operators that take it
    first: dict[str, Node] = field(default_factory=dict)  # what is mixed -> where it became so
    unknown: dict[str, Node] = field(default_factory=dict)  # -> the operator that may not go by samples
    taken: Node | None = None  # the first that takes some samples
    averaged: dict[str, Averaged] = field(default_factory=dict)  # totals
    behind: dict[str, SampleRows] = field(default_factory=dict)  # of all samples, behind something else
    learned: set[str] = field(default_factory=set)  # of no sample, but of what may change
    shaped: set[str] = field(default_factory=set)  # of no sample, with an element for each
    counting: set[str] = field(default_factory=set)  # sums of such
    fixed: frozenset[str] = frozenset()  # operators whose numbers no size changes
    seen: set[str] = field(default_factory=set)  # of the nodes so far

    @cached_property
    def counts(self) -> SampleCounts:
        return SampleCounts(self.some, self.made)

    @cached_property
    def layouts(self) -> dict[str, MemoryLayout]:
        return {
            k: MemoryLayout(each.shape, each.strides, each.dtype, each.requires_grad, k)
            for k, each in self.graph.variables.items()
        }

    def read(self, node: Node) -> None:
        sign = self.counts.sign(node)
        self.seen.update(node.inputs, node.outputs)
        outputs = set(filter(None, node.outputs))
        if node.name in self.mixing:
            self.made |= dict.fromkeys(outputs, MadeOf.MIXED)
            self.first |= dict.fromkeys(outputs, node)
            return
        if most_of(node.inputs, self.made) is MadeOf.CONSTANT or node.kind in SHAPE_ALONE:
            self._of_no_sample(node, outputs)
            return
        call = SplitCall(node, self.layouts, self.graph.initializers)
        if (
            node.kind in CASTS | SHAPE_OF_OTHER and first_tensor(call) not in self.made
        ):  # their type or shape alone
            return
        goes = self._goes(call, outputs)
        doubted = node if not goes.known else next(filter(None, map(self.unknown.get, node.inputs)), None)
        if doubted is not None:
            self.unknown |= dict.fromkeys(outputs, doubted)
        own = frozenset[str]().union(*(self.terms.get(k, ()) for k in node.inputs))
        if any(self.made.get(k) is MadeOf.SAMPLES for k in node.inputs):
            own |= {node.name}
        for k in outputs:
            made = MadeOf.MIXED if k in goes.mixed else made_of(self.graph, call, k, self.made)
            if made is MadeOf.SAMPLES and k in goes.totals:
                made, own = MadeOf.TOTAL, frozenset([node.name])
            self.made[k] = made
            if made is MadeOf.TOTAL:
                self.terms[k] = own
                self.averaged[k] = self._averaged(call, taken=own == {node.name})
                self.counts.add(call, k, sign, is_mean(self.averaged[k]))
            elif made is MadeOf.MIXED:
                self.first[k] = next((self.first[each] for each in node.inputs if each in self.first), node)
        self._written(node)

    def _averaged(self, call: SplitCall, taken: bool) -> Averaged:
        totals = [k for k in call.node.inputs if self.made.get(k) is MadeOf.TOTAL]
        beside = any(self.made.get(k) is MadeOf.SAMPLES for k in call.node.inputs)
        factors = Factors(self.learned, self.shaped, self.counting, self.fixed)
        given = {k: self.averaged[k] for k in totals}
        return averaged(call, given, taken, beside, self.graph.batch_size, factors)

    def _of_no_sample(self, node: Node, outputs: set[str]) -> None:
        """Whether what it makes is learned, or has an element for each sample, or counts these."""
        if node.kind in SHAPE_ALONE:
            self.shaped |= outputs if any(k in self.some.lies for k in node.inputs) else set()
        elif not self.learned.isdisjoint((*node.inputs, *node.initializers)):
            self.learned |= outputs
        elif not self.shaped.isdisjoint(node.inputs):
            counts = node.kind == "sum" and not self.graph.variables[node.outputs[0]].shape
            (self.counting if counts else self.shaped).update(outputs)
        elif not self.counting.isdisjoint(node.inputs) and node.kind in CASTS | _SAME:
            self.counting |= outputs

    def _written(self, node: Node) -> None:
        """Of what it writes in place, all that has the same memory: made of what is written, too, or mixed,
        where that is of some samples alone."""
        for tag, k in written_references(self.graph, node):
            if tag != "var":
                continue
            numbers, most = self.some.of(k), most_of((*node.inputs, *filter(None, node.outputs)), self.made)
            if numbers not in (None, self.some.every):
                most = MadeOf.MIXED
            for name in self.by_memory[storage_of(self.graph, k)]:
                if most <= self.made.get(name, MadeOf.CONSTANT) or name not in self.seen:
                    continue
                self.made[name] = most
                rows = self.some.lies.get(next(iter(node.outputs), ""))
                if rows and most is MadeOf.SAMPLES and first_of_all(self.graph, k, name, rows):
                    self.some.place(name, rows, self.some.every)
                    continue
                self.unknown[name] = node
                if most is MadeOf.MIXED:
                    self.first[name] = next((self.first[v] for v in node.inputs if v in self.first), node)
                elif most is MadeOf.TOTAL:
                    self.terms[name], self.averaged[name] = frozenset([node.name]), UNSURE

    def is_placed(self, k: str) -> bool:
        """Whether it is of no sample, but of what may change, and may have rows for samples."""
        return k in self.learned and self.graph.batch_size in self.graph.variables[k].shape

    def of_samples(self, k: str) -> bool:
        """Whether it is made of samples, or of what is taken over them."""
        return self.made.get(k, MadeOf.CONSTANT) > MadeOf.CONSTANT

    @cached_property
    def by_memory(self) -> dict[str, list[str]]:
        """Variables by the memory that they have."""
        named: dict[str, list[str]] = {}
        for k in self.graph.variables:
            named.setdefault(storage_of(self.graph, k), []).append(k)
        return named

    def carried(self) -> dict[str, str]:
        """Nodes that read a buffer into which is written what is made of samples, and the buffer; but for
        statistics of normalisations, and what code writes that stays whole."""
        readers: dict[str, str] = {}
        for k, writers in written_initializers(self.graph).items():
            nodes = [self.graph.nodes[name] for name in writers]
            own = [each for each in nodes if not (over_the_batch(each) or each.op.startswith(CALL))]
            if any(most_of(each.inputs, self.made) > MadeOf.CONSTANT for each in own):
                readers |= dict.fromkeys(touching_initializers(self.graph)[k], k)
        return {v: k for v, k in readers.items() if not over_the_batch(self.graph.nodes[v])}

    def mixed_at(self, loss: str) -> Node | None:
        """Where it became no mean over samples."""
        beside = self.graph.nodes.get(sum_beside_mean(self.averaged.get(loss, frozenset())))
        return self.first.get(loss, beside if self.counts.is_even(loss) else self.taken)

    def is_to_average(self, node: Node) -> bool:
        """Whether it is given a sum of samples, and no mean; or samples that are added up at once."""
        given = [self.averaged[k] for k in node.inputs if k in self.averaged]
        if given:
            return not any(map(has_mean, given))
        readers = [name for k in node.outputs for name in self.graph.variables[k].consumers]
        return all(self.graph.nodes[name].kind == "sum" for name in readers)

    def unproven_at(self, loss: str) -> Node | None:
        """Of which it is not known whether it goes by samples, or of all of them in a mean."""
        if loss in self.unknown or loss not in self.averaged:
            return self.unknown.get(loss)
        if is_mean(self.averaged[loss]):
            return None
        return next((node for node in self.graph if node.name in self.terms[loss]), None)

    def _goes(self, call: SplitCall, outputs: set[str]) -> _Goes:
        node, some = call.node, self.some
        numbers = {own for k in node.inputs if (own := some.of(k)) is not None}
        if not numbers:
            return _Goes(True)
        if len(numbers) > 1:
            if node.kind in TOGETHER and not node.op.startswith(CALL):
                return self._joining(call, outputs)
            return _Goes(True, outputs) if node.kind in ADDED else _Goes(False, mixed=outputs)
        (own,) = numbers
        if any(k in self.behind for k in node.inputs):
            return self._goes_behind(call, own, outputs)
        if any(k in some.lies for k in node.inputs):
            placed = by_place(self.graph, call, some.lies, len(own)) if own == some.every else False
            if placed:
                return _Goes(True, mixed=outputs)
            goes = self._goes_alike(call, own, outputs)
            return replace(goes, known=goes.known and placed is False)
        for k in outputs:  # of a single sample
            some.place(k, None, own)
        return _Goes(True)

    def _goes_alike(self, call: SplitCall, own: tuple[int, ...], outputs: set[str]) -> _Goes:
        """Of an operator whose inputs have all these samples, or none."""
        node, some = call.node, self.some
        if node.kind in _CATS and not node.op.startswith(CALL) and some.pass_on(call):
            return _Goes(True)
        cut = cut_along(call, some.lies, len(own))
        if cut is not None:
            placed = cut_by_place(self.graph, cut, some.lies, len(own)) if own == some.every else False
            if placed:
                return _Goes(True, mixed=outputs)
            joined = dict(zip(node.outputs, cut.way.joined, strict=True))
            for k, how in joined.items():
                if k and isinstance(how, Cat):
                    self._lay(k, SampleRows(how.where.dim, how.where.times * cut.rows, how.where.blocks), own)
            return _Goes(placed is False, {k for k, how in joined.items() if isinstance(how, PartialSum)})
        if not node.op.startswith(CALL) and some.take(call):
            return self._taking(call, outputs)
        if node.kind in TOGETHER and not node.op.startswith(CALL):
            return self._joining(call, outputs)
        alone = len(own) == 1  # a batch of one sample, which lies in any dimension of size 1
        weighed = by_weights(call) and (not alone or own == some.every)
        if weighed or crosses_samples(self.graph, call, some.lies):
            return _Goes(False, mixed=outputs)
        apart = kept_apart(self.graph, call, some.lies, len(own))
        if apart is not None:
            for k, rows in apart.items():
                self._lay(k, rows, own)
            return _Goes(True, outputs - apart.keys())
        laid = None if own != some.every else reshaped(call, some.lies, len(own))
        if laid is not None:
            self._lay(node.outputs[0], laid, own)
            return _Goes(True)
        if node.kind in RECURRENT:  # along what is no batch
            return _Goes(False, mixed=outputs)
        if node.kind in VIEWS or _scatters(call, some.lies):
            return _Goes(False, totals=set() if alone and node.kind in VIEWS else outputs)
        return self._goes_as_before(call, own, outputs)

    def _goes_as_before(self, call: SplitCall, own: tuple[int, ...], outputs: set[str]) -> _Goes:
        """Of one of which nothing is known: where as much is, the samples are taken to be."""
        node, lies = call.node, self.some.lies
        kept = rows_kept(self.graph, call, lies)
        for k, rows in kept.items():
            self.some.place(k, rows, own)
        lost = outputs - kept.keys()
        if len(own) == 1 or "batch_norm" in node.op or node.op.startswith(CALL) or is_loss(call):
            return _Goes("batch_norm" in node.op, {k for k in lost if not self.graph.variables[k].shape})
        if is_elementwise(node.op):
            return _Goes(False)
        if node.kind in PRODUCTS and sum(k in lies for k in node.inputs) == 1:  # weighed by constants
            return _Goes(False, lost)
        return _Goes(False, mixed=outputs if ways_of(call) else lost)

    def _joining(self, call: SplitCall, outputs: set[str]) -> _Goes:
        if not self.counts.joins_evenly(k for _, k in references(call["tensors"])):
            return _Goes(True, mixed=outputs)
        joined = self.some.join(call)
        return _Goes(joined, set() if joined else outputs)

    def _goes_behind(self, call: SplitCall, own: tuple[int, ...], outputs: set[str]) -> _Goes:
        """Of an operator an input of which has samples behind something else."""
        node, some = call.node, self.some
        all_rows = {self.behind.get(k) for k in node.inputs if some.of(k) is not None}
        rows = next(iter(all_rows))
        if rows is None or len(all_rows) > 1 or own != some.every:
            return _Goes(False, outputs)
        made = reshaped(call, self.behind, len(own))
        if made is not None:
            self._lay(node.outputs[0], made, own)
            return _Goes(True)
        way = any_place_along(call, self.behind, rows.dim)
        if way is None or not self._alike_along(call, way):
            return _Goes(False, outputs)
        totals = set()
        for k, how in zip(node.outputs, way.joined, strict=True):
            if isinstance(how, Cat) and (how.where.blocks, how.where.times) == (1, 1):
                self._lay(k, replace(rows, dim=how.where.dim), own)
            else:
                totals.add(k)
        return _Goes(True, totals)

    def _alike_along(self, call: SplitCall, way: Way) -> bool:
        """Whether what is of no sample is the same in all places along the dimension."""
        given = [(variable_at(call, place), where.dim) for place, where in way.cut.items()]
        return all(
            alike_at(self.graph, k, dim, self.graph.variables[k].shape[dim])
            for k, dim in given
            if k and k not in self.behind
        )

    def _lay(self, k: str, rows: SampleRows, numbers: tuple[int, ...]) -> None:
        """Note where these samples lie in a tensor."""
        if rows.blocks > 1:
            self.behind[k] = rows
        self.some.place(k, rows if rows.blocks == 1 else None, numbers)

    def _taking(self, call: SplitCall, outputs: set[str]) -> _Goes:
        """Of one that takes some of the samples, or all in another order; none is what could be any."""
        self.counts.taken(first_tensor(call), outputs)
        if all(self.some.of(k) == self.some.every for k in outputs):
            return _Goes(True)
        self.taken = self.taken or call.node
        return _Goes(True, mixed={k for k in outputs if not self.some.of(k)})


def _scatters(call: SplitCall, lies: Mapping[str, SampleRows]) -> bool:
    """Whether it adds up what lies along the dimension of samples, by numbers that may be any."""
    given = [k for k in call.node.inputs if k in lies]
    if call.node.op.startswith(CALL) or call.node.kind not in _SCATTERED:
        return False
    return call["dim"] is None or any(lies[k].dim in dims_of(call, len(call.layouts[k].shape)) for k in given)


def cut_along(call: SplitCall, lies: Mapping[str, SampleRows], samples: int) -> CutAlong | None:
    """The operator along the samples, where it is known how that goes."""
    if call.node.op.startswith(CALL) or not (call.node.args or call.node.kwargs):
        return None
    for axis, way in ways_of(call).items():
        if isinstance(way, Way) and (rows := rows_of(call, way, lies, samples)):
            return CutAlong(call, axis, way, rows)
    return None
