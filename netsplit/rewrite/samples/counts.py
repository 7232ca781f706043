"""How often each sample is in a total that is added up of some of them, by what was computed of each.

f(x[0]) + f(x[1]) + ... ──► each once: even      f(x[0]) + g(x[1]) ──► of f some, of g others: uneven
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from netsplit.graph.arguments import read_by, references, renamed
from netsplit.graph.ir import Node
from netsplit.rewrite.samples.made_of import ADDED, MadeOf
from netsplit.rewrite.samples.some import TOGETHER, SomeSamples
from netsplit.rewrite.ways import SplitCall

__all__ = ["SampleCounts"]

_Parts = Counter[tuple[int, int]]  # how often a value of a sample, told by what was computed, is in a total


@dataclass
class SampleCounts:
    """Of a graph's totals, node by node.

    Args:
        some: which samples tensors have.
        made: what they are made of.
        parts: total -> what it has of some samples alone.
        signs: the same for what is computed alike.
    """

    some: SomeSamples
    made: Mapping[str, MadeOf]
    parts: dict[str, _Parts] = field(default_factory=dict)
    signs: dict[str, int] = field(default_factory=dict)

    def sign(self, node: Node) -> int:
        """Of the operator and its arguments but for tensors; and its outputs', by those of its inputs."""
        given = read_by(node)
        made = renamed(node, {each: ("var", "") for each in given if each[0] == "var"})
        own = hash((node.op, repr(made)))
        if node.kind in ADDED and node.args[1:] in ((0,), (0.0,)):  # as Python's sum begins
            self.signs[node.outputs[0]] = self.signs.get(node.inputs[0], 0) if node.inputs else own
            return own
        for j, k in enumerate(node.outputs):
            self.signs[k] = hash((own, j, tuple(self.signs.get(name, hash(name)) for _, name in given)))
        return own

    def taken(self, k: str, outputs: Iterable[str]) -> None:
        """Outputs are samples of k, which ones whatever."""
        self.signs |= dict.fromkeys(outputs, hash(("some", self.signs.get(k, 0))))

    def add(self, call: SplitCall, k: str, sign: int, mean: bool) -> None:
        """A total: what it is added up of is told by what is done with it, too.

        Args:
            mean: it is a mean, in which each sample counts by how many there are.
        """
        self.parts[k] = self._parts_of(call, k, sign, mean)

    def joins_evenly(self, names: Iterable[str]) -> bool:
        """Whether of what is put together all was computed alike, or of every sample as often."""
        counts: dict[int, list[int]] = {}
        for k in names:
            each = counts.setdefault(self.signs.get(k, hash(k)), [0] * self.some.samples)
            for number in self.some.of(k) or ():
                each[number] += 1
        return len(counts) == 1 or all(len(set(each)) == 1 for each in counts.values())

    def is_even(self, k: str) -> bool:
        """Whether every sample is in a total as often, by whatever was computed of them."""
        counts: dict[int, list[int]] = {}
        for (sign, number), count in self._parts(k).items():
            counts.setdefault(sign, [0] * self.some.samples)[number] += count
        return all(len(set(each)) == 1 for each in counts.values())

    def _parts(self, k: str) -> _Parts:
        """What a variable has of some samples alone."""
        numbers = self.some.numbers.get(k, ())
        if k in self.parts or self.made.get(k) is not MadeOf.SAMPLES:
            return self.parts.get(k, Counter())
        return Counter((self.signs[k], i) for i in numbers)

    def _parts_of(self, call: SplitCall, k: str, sign: int, mean: bool) -> _Parts:
        node, some = call.node, self.some
        given = {some.of(each) for each in node.inputs} - {None}
        if all(self.made.get(each) is not MadeOf.TOTAL for each in node.inputs) and len(given) == 1:
            (numbers,) = given
            if numbers == some.every or numbers is None:
                return Counter()
            return Counter((hash((self.signs[k], len(numbers) if mean else 1)), i) for i in numbers)
        parts: _Parts = Counter()
        taken_off = self._taken_off(call)
        for name in node.inputs:
            for (own, number), count in self._parts(name).items():
                if name in taken_off:
                    own = hash(("less", own))
                elif node.kind not in ADDED | TOGETHER:
                    own = hash((sign, own))
                parts[own, number] += count
        return parts

    def _taken_off(self, call: SplitCall) -> Collection[str]:
        less = call.node.kind in ADDED and "sub" in call.node.kind
        return {name for _, name in references(call["other"])} if less else set()
