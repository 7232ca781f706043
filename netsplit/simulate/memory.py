"""Predicted peak bytes of every device, from the lifetimes of tensors over its instructions.

Mirrors what the executor holds, storage by storage:

    all the time     parameters, buffers, the optimiser's moments, the batch
    Forward          its inputs; inside, what operators return until its last use
    … to Backward    what autograd saved; the segment's inputs and outputs that carry a gradient
    Backward         gradients, from operator to operator; saved tensors go as they are used
    … to Step        gradients of parameters
    Send             the tensor, until the device's next computation is over
    Recv             the buffer, from the instruction on

Views and in-place results take no bytes of their own. What an operator allocates for itself alone is
not known and not counted. Bytes are those of one iteration after the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from netsplit.graph.ir import Node
from netsplit.graph.storage import storage_bytes, storage_of
from netsplit.program.instructions import Backward, Forward, Program, Recv, Segment, Send

__all__ = ["MemoryProfile", "memory_profile", "predicted_peak_bytes"]

_Key = tuple[str, int, int]  # variable, micro-batch, number (0 for its value, others for gradients)

_SAME_GRADIENT = frozenset(
    {"add", "add_", "alias", "clone", "contiguous", "detach", "flatten", "permute", "reshape", "squeeze"}
    | {"t", "transpose", "unflatten", "unsqueeze", "view"}
)
"""Operators whose backward hands on the output's gradient itself, where the sizes are equal."""
_PART_OF_GRADIENT = frozenset({"cat", "concat", "concatenate"})
"""Operators whose backward hands on views of the output's gradient."""


def predicted_peak_bytes(program: Program, alpha: int) -> dict[str, int]:
    """Device -> largest number of bytes alive at once in one iteration after the first.

    Args:
        alpha: bytes of training state per byte of parameter (`Costs.alpha`); 2 means no moments.
    """
    return {device: found.peak_bytes for device, found in memory_profile(program, alpha).items()}


def memory_profile(program: Program, alpha: int) -> dict[str, MemoryProfile]:
    """Device -> when its bytes peak and what they are; arguments as of `predicted_peak_bytes`."""
    own = storage_bytes(program.graph)
    return {device: _Device(program, device, alpha, own).run() for device in program.devices}


@dataclass(frozen=True)
class MemoryProfile:
    """What fills a device when its bytes peak."""

    device: str
    index: int  # of the instruction during which they peak; -1: before the first
    instruction: str
    parameter_bytes: int  # buffers too
    moment_bytes: int  # the optimiser's
    gradient_bytes: int  # of parameters
    activation_bytes: int  # the batch, values, saved tensors, gradients of variables
    transfer_bytes: int  # received and not yet read, or being sent and not otherwise held

    @property
    def peak_bytes(self) -> int:
        return sum(self._parts().values())

    def summary(self) -> str:
        """One line, in MiB."""
        listed = ", ".join(f"{name} {nbytes / 2**20:.1f}" for name, nbytes in self._parts().items())
        where = f"in the {self.instruction}" if self.index >= 0 else "at the start"
        return f"{self.device}: at most {self.peak_bytes / 2**20:.1f} MiB, {where} ({listed})"

    def _parts(self) -> dict[str, int]:
        return {
            "parameters": self.parameter_bytes,
            "moments": self.moment_bytes,
            "gradients": self.gradient_bytes,
            "activations": self.activation_bytes,
            "transfers": self.transfer_bytes,
        }


class _Storages:
    """Storages alive, each counted once however many hold it; apart those that only transfers hold."""

    def __init__(self) -> None:
        self.size: dict[_Key, int] = {}
        self.users: Counter[_Key] = Counter()
        self.transfers: Counter[_Key] = Counter()
        self.activation_bytes = 0
        self.transfer_bytes = 0

    def hold(self, key: _Key, nbytes: int, transfer: bool = False) -> None:
        self.size[key] = nbytes
        self._change(key, 1, transfer)

    def release(self, key: _Key, transfer: bool = False) -> None:
        self._change(key, -1, transfer)
        if not self.users[key] and not self.transfers[key]:
            del self.size[key], self.users[key], self.transfers[key]

    def move(self, key: _Key, to_transfer: bool) -> None:
        """From a user to a transfer, or back."""
        self.hold(key, self.size[key], to_transfer)
        self.release(key, not to_transfer)

    def _change(self, key: _Key, by: int, transfer: bool) -> None:
        self._count(key, -1)
        (self.transfers if transfer else self.users)[key] += by
        self._count(key, 1)

    def _count(self, key: _Key, sign: int) -> None:
        if self.users[key]:
            self.activation_bytes += sign * self.size[key]
        elif self.transfers[key]:
            self.transfer_bytes += sign * self.size[key]


@dataclass(frozen=True)
class _Peak:
    index: int = -1
    gradients: int = 0
    activations: int = 0
    transfers: int = 0

    @property
    def total(self) -> int:
        return self.gradients + self.activations + self.transfers


class _Device:
    def __init__(self, program: Program, device: str, alpha: int, own: dict[str, int]) -> None:
        self.program = program
        self.graph = program.graph
        self.own = own
        self.instructions = program.instructions[device]
        self.shapes = {s.index: _Shape(program, s, own) for s in program.segments if s.device == device}
        held = [
            program.graph.initializers[k] for k, home in program.initializer_device.items() if home == device
        ]
        self.fixed = {
            "device": device,
            "parameter_bytes": sum(init.nbytes for init in held),
            "moment_bytes": (alpha - 2) * sum(init.nbytes for init in held if init.requires_grad),
        }
        self.fed = frozenset(program.feeds[device])
        self.feed_bytes = sum(self.graph.variables[k].nbytes for k in self.fed) * program.microbatches
        self.received = {ins.variable for ins in self.instructions if isinstance(ins, Recv)}
        self.readers = self._count_readers()
        self.left: dict[tuple[str, int], int] = {}  # forwards and sends still to come
        self.storages = _Storages()
        self.parts: dict[tuple[str, int], list[_Key]] = {}  # gradients waiting to be summed
        self.arriving: dict[tuple[str, int], _Key] = {}  # gradients from other devices
        self.sending: list[_Key] = []
        self.with_gradient: set[str] = set()  # parameters
        self.gradient_bytes = 0
        self.number = 0
        self.at = -1
        self.peak = _Peak()

    def run(self) -> MemoryProfile:
        self._see()
        for index, ins in enumerate(self.instructions):
            self.at = index
            if isinstance(ins, Forward):
                self._forward(ins)
            elif isinstance(ins, Backward):
                self._backward(ins)
            elif isinstance(ins, Send):
                self._send(ins)
            elif isinstance(ins, Recv):
                self._receive(ins)
            else:
                self._step()
            self._see()
        at = self.peak.index
        return MemoryProfile(
            index=at,
            instruction=str(self.instructions[at]) if at >= 0 else "",
            gradient_bytes=self.peak.gradients,
            activation_bytes=self.peak.activations,
            transfer_bytes=self.peak.transfers,
            **self.fixed,  # type: ignore[arg-type]
        )

    def _see(self, activations: int = 0, gradients: int = 0) -> None:
        """Note the bytes alive, with so many more inside the computation."""
        now = _Peak(
            self.at,
            self.gradient_bytes + gradients,
            self.feed_bytes + self.storages.activation_bytes + activations,
            self.storages.transfer_bytes,
        )
        if now.total > self.peak.total:
            self.peak = now

    def _forward(self, ins: Forward) -> None:
        shape, i = self.shapes[ins.segment], ins.microbatch
        for k in shape.segment.inputs:
            self._hold(k, i)
            self._use(k, i)
        self._see(shape.forward_peak)
        for k in shape.context:
            self._hold(k, i)
        self.storages.hold(shape.kept_key(i), shape.kept_bytes)
        for k in shape.segment.outputs:
            if k in self.graph.output_variables:
                self._hold(k, i)
            if self.readers[k]:
                self.left[k, i] = self.readers[k]
                self._hold(k, i)
        for k in shape.segment.inputs:
            self._release(k, i)
        self._sent()

    def _backward(self, ins: Backward) -> None:
        shape, i = self.shapes[ins.segment], ins.microbatch
        self._collect(shape, i)
        seeds = {k: key for k in shape.carrying if (key := self._seed(k, i)) is not None}
        walk = shape.backward(frozenset(seeds), shape.parameters - self.with_gradient)
        self._see(*walk.peak)
        self.with_gradient |= walk.parameters
        self.gradient_bytes += walk.gradients
        for k in walk.leaves:
            self.parts.setdefault((k, i), []).append(self._new(k, i))
        for key in (*seeds.values(), shape.kept_key(i)):
            self.storages.release(key)
        for k in shape.context:
            self._release(k, i)
        self._sent()

    def _collect(self, shape: _Shape, i: int) -> None:
        for k in shape.segment.outputs:
            for copy in self.graph.variables[k].consumers:
                key = self.arriving.pop((copy, i), None)
                if key is not None:
                    self.storages.move(key, to_transfer=False)
                    self.parts.setdefault((k, i), []).append(key)

    def _seed(self, k: str, i: int) -> _Key | None:
        return self._new(k, i) if k in self.graph.output_variables else self._total(k, i)

    def _total(self, k: str, i: int) -> _Key | None:
        """The sum of a variable's gradients: the only one, or a new one made while all are there."""
        parts = self.parts.pop((k, i), [])
        if len(parts) < 2:
            return parts[0] if parts else None
        total = self._new(k, i)
        self._see(self.graph.variables[k].nbytes if len(parts) > 2 else 0)
        for part in parts:
            self.storages.release(part)
        return total

    def _send(self, ins: Send) -> None:
        i = ins.microbatch
        if ins.gradient:
            key = self._total(ins.variable, i) or self._new(ins.variable, i)
            self.storages.move(key, to_transfer=True)
            self.sending.append(key)
            return
        root = storage_of(self.graph, ins.source)
        if root not in self.fed:
            self.storages.hold((root, i, 0), self.own[root], transfer=True)
            self.sending.append((root, i, 0))
        self._use(ins.source, i)

    def _receive(self, ins: Recv) -> None:
        if ins.gradient:
            self.arriving[ins.variable, ins.microbatch] = self._new(ins.source, ins.microbatch, transfer=True)
            return
        self.left[ins.variable, ins.microbatch] = self.readers[ins.variable]
        self._hold(ins.variable, ins.microbatch, transfer=True)

    def _step(self) -> None:
        self.with_gradient.clear()
        self.gradient_bytes = 0
        self._sent()

    def _sent(self) -> None:
        for key in self.sending:
            self.storages.release(key, transfer=True)
        self.sending = []

    def _hold(self, k: str, i: int, transfer: bool = False) -> None:
        root = storage_of(self.graph, k)
        if root not in self.fed:
            self.storages.hold((root, i, 0), self.own[root], transfer)

    def _release(self, k: str, i: int, transfer: bool = False) -> None:
        root = storage_of(self.graph, k)
        if root not in self.fed:
            self.storages.release((root, i, 0), transfer)

    def _use(self, k: str, i: int) -> None:
        """One reader less; after the last the executor forgets the value."""
        if k in self.fed:
            return
        self.left[k, i] -= 1
        if not self.left[k, i]:
            self._release(k, i, transfer=k in self.received)

    def _new(self, k: str, i: int, transfer: bool = False) -> _Key:
        """A gradient of a variable."""
        self.number += 1
        key = (k, i, self.number)
        self.storages.hold(key, self.graph.variables[k].nbytes, transfer)
        return key

    def _count_readers(self) -> Counter[str]:
        counts = Counter(k for shape in self.shapes.values() for k in shape.segment.inputs)
        counts.update(
            ins.source
            for ins in self.instructions
            if isinstance(ins, Send) and not ins.gradient and ins.microbatch == 0
        )
        return counts


@dataclass(frozen=True)
class _Walk:
    """What one segment's backward adds to the bytes alive when it starts."""

    peak: tuple[int, int]  # of activations, of parameters' gradients
    parameters: frozenset[str]  # that have a gradient now and had none
    gradients: int  # their bytes
    leaves: tuple[str, ...]  # inputs that got a gradient


class _Shape:
    """A segment's own bytes in forward and backward, the same for every micro-batch."""

    def __init__(self, program: Program, segment: Segment, own: dict[str, int]) -> None:
        graph = self.graph = program.graph
        self.segment = segment
        self.own = own
        self.nodes = [graph.nodes[name] for name in segment.nodes]
        self.produced = {storage_of(graph, k) for node in self.nodes for k in node.outputs if k}
        self.produced -= {storage_of(graph, k) for k in segment.inputs}
        self.outputs = {storage_of(graph, k) for k in segment.outputs}
        carrying = [k for k in segment.outputs if graph.variables[k].requires_grad]
        self.carrying = tuple(carrying) if program.training else ()
        self.saving = {node.name: self._saved(node) for node in self.nodes}
        saved = {root for roots in self.saving.values() for root in roots}
        self.kept = (saved & self.produced) - self.outputs
        self.extra = {node.name: node.saved_bytes if self.carrying else 0 for node in self.nodes}
        self.kept_bytes = sum(own[root] for root in self.kept) + sum(self.extra.values())
        self.context = self._context(saved) if self.carrying else ()
        trainable = (
            k for node in self.nodes for k in node.initializers if graph.initializers[k].requires_grad
        )
        self.parameters = frozenset(trainable)
        self.forward_peak = self._forward_peak()
        self._walks: dict[tuple[frozenset[str], frozenset[str]], _Walk] = {}

    def kept_key(self, i: int) -> _Key:
        return (f"kept by segment {self.segment.index}", i, 0)

    def backward(self, seeds: frozenset[str], fresh: frozenset[str]) -> _Walk:
        """Backward from gradients of the outputs `seeds`, to parameters of which `fresh` have none yet."""
        if (seeds, fresh) not in self._walks:
            self._walks[seeds, fresh] = _BackwardWalk(self, seeds, fresh).run()
        return self._walks[seeds, fresh]

    def _saved(self, node: Node) -> frozenset[str]:
        return frozenset(storage_of(self.graph, k) for k in node.saved) if self.carrying else frozenset()

    def _context(self, saved: Collection[str]) -> tuple[str, ...]:
        """Inputs and outputs that live until the backward is over."""
        inputs = [
            k
            for k in self.segment.inputs
            if self.graph.variables[k].requires_grad or storage_of(self.graph, k) in saved
        ]
        return (*self.carrying, *inputs)

    def _forward_peak(self) -> int:
        last = {
            storage_of(self.graph, k): node.name
            for node in self.nodes
            for k in (*node.inputs, *filter(None, node.outputs))
        }
        dying: dict[str, list[str]] = {}
        for root in self.produced - self.outputs - self.kept:
            dying.setdefault(last[root], []).append(root)
        seen: set[str] = set()
        now = peak = 0
        for node in self.nodes:
            made = {storage_of(self.graph, k) for k in node.outputs if k} & self.produced - seen
            seen |= made
            now += sum(self.own[root] for root in made) + self.extra[node.name]
            peak = max(peak, now)
            now -= sum(self.own[root] for root in dying.get(node.name, ()))
        return peak


@dataclass(eq=False)
class _Gradient:
    """A storage that gradients of variables live in."""

    nbytes: int
    holders: int = 1


@dataclass
class _BackwardWalk:
    """Autograd's way back through a segment, bytes by bytes.

    A gradient that an operator hands on unchanged is one storage with more holders. A second gradient
    of a variable is added in place where nobody else sees the first, else into a new storage; an input
    of the segment gets a copy of its own where its gradient is shared (as AccumulateGrad does). A
    parameter with several users gets its gradient from the last of them; until then it is kept apart.
    """

    shape: _Shape
    seeds: frozenset[str]
    fresh: frozenset[str]
    now: int = 0
    gradients: int = 0  # of parameters
    passing: int = 0  # of these, bytes that go once the operator's gradients are handed on
    peak: tuple[int, int] = (0, 0)
    held: dict[str, tuple[_Gradient, bool]] = field(default_factory=dict)  # variable -> in what, all of it?
    apart: set[str] = field(default_factory=set)  # parameters
    leaves: list[str] = field(default_factory=list)

    def run(self) -> _Walk:
        shape = self.shape
        for k in self.seeds:
            self.held[k] = (_Gradient(shape.graph.variables[k].nbytes, holders=2), True)
        nodes = self._reached()
        self.savers = Counter(root for roots in shape.saving.values() for root in roots & shape.kept)
        self.first_reader = {k: node.name for node in nodes for k in node.inputs}
        self.users = Counter(k for node in nodes for k in node.initializers)
        found = self.fresh & self.users.keys()
        for node in nodes:
            self._node(node, [self.held.pop(k) for k in node.outputs if k in self.held])
        initializers = shape.graph.initializers
        return _Walk(self.peak, found, sum(initializers[k].nbytes for k in found), tuple(self.leaves))

    def _reached(self) -> list[Node]:
        """The nodes that a gradient gets to, last first."""
        carrying = set(self.seeds)
        found = []
        for node in reversed(self.shape.nodes):
            if not carrying.isdisjoint(node.outputs):
                found.append(node)
                carrying.update(k for k in node.inputs if self.shape.graph.variables[k].requires_grad)
        return found

    def _node(self, node: Node, arrived: list[tuple[_Gradient, bool]]) -> None:
        variables = self.shape.graph.variables
        wanted = [k for k in node.inputs if variables[k].requires_grad]
        made = {k: self._made(node, k, arrived) for k in wanted}
        self._train(node)
        for gradient, _ in arrived:
            self._drop(gradient)
        self._drop_saved(node)
        for k in wanted:
            self._add(k, *made[k])
            if k in self.shape.segment.inputs and self.first_reader[k] == node.name:
                self._keep(k, *self.held.pop(k))
        self.gradients -= self.passing
        self.passing = 0

    def _train(self, node: Node) -> None:
        """Gradients of the operator's parameters: new ones, some of which are only added to others."""
        initializers = self.shape.graph.initializers
        for k in node.initializers:
            if not initializers[k].requires_grad:
                continue
            nbytes = initializers[k].nbytes
            self.gradients += nbytes
            self.users[k] -= 1
            if k in self.apart:
                self.passing += nbytes
            elif self.users[k]:
                self.apart.add(k)
            if not self.users[k] and k not in self.fresh:
                self.passing += nbytes
        self._see()

    def _made(self, node: Node, k: str, arrived: list[tuple[_Gradient, bool]]) -> tuple[_Gradient, bool]:
        variables = self.shape.graph.variables
        same_size = variables[k].nbytes == variables[node.outputs[0]].nbytes
        gradient, whole = arrived[0]
        if node.kind in _PART_OF_GRADIENT or (node.kind in _SAME_GRADIENT and same_size):
            gradient.holders += 1
            return gradient, whole and node.kind in _SAME_GRADIENT
        return self._new(variables[k].nbytes), True

    def _add(self, k: str, gradient: _Gradient, whole: bool) -> None:
        if k not in self.held:
            self.held[k] = (gradient, whole)
            return
        before, all_of_it = self.held[k]
        if before.holders > 1 or not all_of_it:
            self.held[k] = (self._new(self.shape.graph.variables[k].nbytes), True)
            self._see()
            self._drop(before)
        self._drop(gradient)

    def _keep(self, k: str, gradient: _Gradient, whole: bool) -> None:
        if gradient.holders > 1 or not whole:
            self._new(self.shape.graph.variables[k].nbytes)
            self._see()
            self._drop(gradient)
        self.leaves.append(k)

    def _drop_saved(self, node: Node) -> None:
        self.now -= self.shape.extra[node.name]
        for root in self.shape.saving[node.name] & self.shape.kept:
            self.savers[root] -= 1
            if not self.savers[root]:
                self.now -= self.shape.own[root]

    def _new(self, nbytes: int) -> _Gradient:
        self.now += nbytes
        return _Gradient(nbytes)

    def _drop(self, gradient: _Gradient) -> None:
        gradient.holders -= 1
        if not gradient.holders:
            self.now -= gradient.nbytes

    def _see(self) -> None:
        self.peak = max(self.peak, (self.now, self.gradients), key=sum)
