"""The bytes alive on one device, instruction by instruction, from the lifetimes of tensors.

Mirrors what the executor holds, storage by storage:

    all the time     parameters, buffers, the optimiser's moments, the batch; buffers that forwards write once
                     more, as they were, where the iteration can be taken back
    Forward          its inputs; inside, what operators return until its last use
    … to Backward    what autograd saved; the segment's inputs and outputs that carry a gradient; of one that
                     is computed again its inputs, and the buffers that it writes, as they were
    … to the end     in training a copy of the loss, and how many of its targets count
    Backward         gradients, from operator to operator; saved tensors go as they are used
    … its weight part  what convolutions and products read, and the gradients of their outputs
    … to Step        gradients of parameters; weights of older versions while a micro-batch is on them
    Reduce           the gradients once more, in one vector, until the next Reduce or the Step
    Send             the tensor, until the next computation is over
    Recv             the buffer, from the instruction on

Views and in-place results take no bytes of their own. What an operator allocates for itself counts while it
runs, as far as it was measured. Bytes are those of one iteration after the first.

Of what is offloaded (`Offload`) moments are here a bucket at a time, in a Step, and what autograd saved
within a segment in its backward, storage by storage; both are counted on the host else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

from netsplit.graph.arguments import storage_of
from netsplit.optim.optimizers import largest_bucket
from netsplit.profile.costs import Offload, StepScratch
from netsplit.program.instructions import (
    Backward,
    Forward,
    Gather,
    Program,
    Recv,
    Reduce,
    Scatter,
    Send,
    Step,
)
from netsplit.program.transfers import bundles_used
from netsplit.simulate.lifetimes.backward_walk import PutOff, Walk, backward_walk, weights_walk
from netsplit.simulate.lifetimes.segment import OfSize, OfSizes, SegmentMemory
from netsplit.simulate.lifetimes.storages import (
    Key,
    MemoryProfile,
    Storages,
    VariableGradients,
    Versions,
)

__all__ = ["DeviceMemory"]

_AGAIN = -1  # number of a value that was recomputed (see `Key`)
_RESULT = -2  # of a copy of a graph output, until the iteration ends


class DeviceMemory:
    def __init__(
        self,
        program: Program,
        device: str,
        alpha: int,
        usual: OfSize,
        last: OfSize,
        offload: Offload,
        scratch: StepScratch,
    ) -> None:
        self.program = program
        self.graph = program.graph
        self.device = device
        self.sizes = OfSizes(usual, last, program.microbatches)
        self.instructions = program.instructions[device]
        self.shapes = usual.shapes
        held = [program.graph.initializers[k] for k in program.held[device]]
        self.trainable_bytes = sum(init.nbytes for init in held if init.requires_grad)
        fixed_bytes = sum(init.nbytes for init in program.kept(device))
        stepped = program.stepped(device)
        stepped_bytes = sum(init.nbytes for init in stepped)
        if program.steps_last:
            written = frozenset[str]().union(*(shape.written for shape in self.shapes.values()))
            fixed_bytes += sum(self.graph.initializers[k].nbytes for k in written)
        moments = alpha - 2
        self.returning_bytes = moments * largest_bucket(stepped) if offload.optimizer else 0
        self.host_bytes = self.host_peak = moments * stepped_bytes if offload.optimizer else 0
        fixed_bytes += 0 if offload.optimizer else moments * stepped_bytes
        self.fed = frozenset(program.feeds[device])
        self.batches = {ins.microbatch for ins in self.instructions if isinstance(ins, Forward)}
        self.scratch_bytes = scratch.nbytes(init.nbytes for init in stepped)
        feed_bytes = sum(
            self.sizes.bytes_of(k, i) for i in range(program.microbatches) for k in program.fed(device, i)
        )
        self.again = {
            (ins.segment, ins.microbatch)
            for ins in self.instructions
            if isinstance(ins, Forward) and ins.recompute
        }
        self.readers = self._count_readers()
        self.sent_once = Counter((ins.read, ins.microbatch) for ins in self._sends(lasting=True))
        self.versions = Versions.of(self.instructions, self.shapes, self.trainable_bytes)
        self.left: dict[tuple[str, int], int] = {}  # forwards and sends still to come
        self.storages = Storages(self.versions, fixed_bytes + feed_bytes)
        self.gradients = VariableGradients(program, device, self.sizes, self.storages)
        self.sending: list[Key] = []
        self.put_off: dict[tuple[int, int], tuple[tuple[PutOff, ...], tuple[Key, ...]]] = {}
        # segment and micro-batch of a weight part still to come -> what it does, what it holds
        self.with_gradient: dict[int, set[str]] = {}  # step that takes them -> parameters
        self.sums: list[Key] = []
        self.reading, self.let_go_at = bundles_used(program, device)
        self.gathering: set[int] = set()  # bundles on their way
        self.summed: set[str] = set()  # parameters of which this device's slices have a gradient

    def run(self) -> MemoryProfile:
        course, alive = [], self.storages
        does: dict[type, Callable[[Any], None]] = {
            Forward: self._forward, Backward: self._backward, Send: self._send, Recv: self._receive,
            Reduce: self._reduce, Gather: self._gather, Scatter: self._scatter, Step: self._step,
        }  # fmt: skip
        alive.see()
        for index, ins in enumerate(self.instructions):
            alive.at, alive.most = index, 0
            does[type(ins)](ins)
            alive.see()
            for b in self.let_go_at.get(index, ()):
                self.storages.release(_whole(b))
            course.append((alive.most, alive.now))
            self._arrived(index)
        return MemoryProfile(self.device, alive.peak_at, alive.peak, self.host_peak, tuple(course))

    def _forward(self, ins: Forward) -> None:
        i = ins.microbatch
        shape = self.sizes.at(i).shapes[ins.segment]
        again = (ins.segment, i) in self.again
        self._read(ins)
        for k in shape.segment.inputs:
            self._hold(k, i)
            self._use(k, i)
        if again:
            self.storages.hold(_own_key("written", shape, i), shape.snapshot_bytes)
            for root in shape.results:
                self.storages.hold((root, i, 0), self.sizes.at(i).own[root])
        self.storages.see(shape.forward_peak_unsaved if again else shape.forward_peak)
        for k in shape.segment.inputs if again else shape.context:
            self._hold(k, i)
        if not again:
            self._keep(shape, i)
        for k in shape.segment.outputs:
            if k in self.graph.output_variables:
                self._result(k, i)
            if readers := self.readers[k] + self.sent_once[k, i]:
                self.left[k, i] = readers
                self._hold(k, i)
        for k in shape.segment.inputs:
            self._release(k, i)
        self.versions.forward(ins, bool(shape.requires_backward))

    def _result(self, k: str, i: int) -> None:
        if self.program.training:
            self.storages.hold((k, i, _RESULT), self.sizes.bytes_of(k, i))
        else:
            self._hold(k, i)

    def _keep(self, shape: SegmentMemory, i: int) -> None:
        if not shape.offloaded:
            self.storages.hold(_own_key("kept", shape, i), shape.kept_bytes)
            return
        self.host_peak = max(self.host_peak, self.host_bytes + shape.leaving_bytes)
        self.host_bytes += shape.kept_bytes

    def _recompute(self, shape: SegmentMemory, i: int) -> None:
        for root in shape.results:
            self.storages.release((root, i, 0))
        self.storages.see(shape.forward_peak)
        self._keep(shape, i)
        for root in shape.made_again:
            self.storages.hold((root, i, _AGAIN), self.sizes.at(i).own[root])
        for k in shape.segment.inputs:
            if k not in shape.context:
                self._release(k, i)

    def _backward(self, ins: Backward) -> None:
        i = ins.microbatch
        shape = self.sizes.at(i).shapes[ins.segment]
        if ins.part == "weight":
            self._weights(ins, shape)
            return
        again = (ins.segment, i) in self.again
        self._read(ins)
        if again:
            self.versions.recompute(ins)
            self._recompute(shape, i)
        seeds = self.gradients.seeds(shape, i)
        fresh = self._fresh(ins, shape)
        walk = backward_walk(shape, frozenset(seeds), fresh, ins.part == "input")
        self.storages.see(walk.peak)
        self._trained(ins, walk.parameters)
        for k in walk.leaves:
            self.gradients.made(k, i)
        if ins.part == "input":
            self._put_off(shape, i, walk, again)
        if not shape.offloaded:
            self.storages.release(_own_key("kept", shape, i))
        for key in seeds.values():
            self.storages.release(key)
        self.host_bytes -= shape.kept_bytes if shape.offloaded else 0
        for k in shape.context:
            if not again or k in shape.segment.inputs:
                self._release(k, i)
        if again:
            self.storages.release(_own_key("written", shape, i))
            for root in shape.made_again:
                self.storages.release((root, i, _AGAIN))
        if ins.part == "whole":
            self.versions.backward(ins)

    def _weights(self, ins: Backward, shape: SegmentMemory) -> None:
        """The weight part: gradients one by one, each of which releases its tensors."""
        i = ins.microbatch
        queue, held = self.put_off.pop((ins.segment, i))
        walk = weights_walk(shape, queue, self._fresh(ins, shape))
        self.storages.see(walk.peak)
        self._trained(ins, walk.parameters)
        for key in held:
            self.storages.release(key)
        self.versions.backward(ins)

    def _put_off(self, shape: SegmentMemory, i: int, walk: Walk, again: bool) -> None:
        """Hold what the weight part needs of the segment, its inputs and outputs."""
        self.storages.hold(_own_key("put off", shape, i), walk.deferred_bytes)
        keys = [_own_key("put off", shape, i)]
        for root in set(walk.deferred_roots) - self.fed:
            if again and root in shape.made_again:
                keys.append((root, i, _AGAIN))
            else:
                keys.append((root, self.program.sent_with(root, self.device, i), 0))
            self.storages.hold(keys[-1], self.sizes.at(keys[-1][1]).own[root])
        self.put_off[shape.segment.index, i] = walk.put_off, tuple(keys)

    def _fresh(self, ins: Backward, shape: SegmentMemory) -> frozenset[str]:
        """Parameters that get a new gradient; all, if their leaves are summed afterwards."""
        if self.versions.several:
            return shape.parameters
        return shape.parameters - self.with_gradient.get(ins.update, set())

    def _trained(self, ins: Backward, parameters: frozenset[str]) -> None:
        sums = self.with_gradient.setdefault(ins.update, set())
        self.storages.nbytes += sum(self.graph.initializers[k].nbytes for k in parameters - sums)
        sums |= parameters

    def _send(self, ins: Send) -> None:
        i = ins.microbatch
        if ins.gradient:
            self.sending.append(self.gradients.sent(ins))
            return
        root = storage_of(self.graph, ins.read)
        if root not in self.fed:
            i = self.program.sent_with(ins.read, self.device, i)
        if self.sizes.at(i).graph.variables[ins.read].spread:
            key = (f"copy {ins.tag}", i, 0)
            self.storages.hold(key, self.sizes.bytes_of(ins.read, i))
            self.storages.see()
            self.sending.append(key)
        elif root not in self.fed:
            self.storages.hold((root, i, 0), self.sizes.at(i).own[root])
            self.sending.append((root, i, 0))
        self._use(ins.read, i)

    def _receive(self, ins: Recv) -> None:
        if ins.gradient:
            self.gradients.received(ins)
            return
        times = len(self.batches) if ins.variable in self.program.lasting else 1
        handed = self.sent_once[ins.variable, ins.microbatch]
        self.left[ins.variable, ins.microbatch] = times * self.readers[ins.variable] + handed
        self._hold(ins.variable, ins.microbatch)

    def _reduce(self, ins: Reduce) -> None:
        self._finish_sum()
        if ins.kind == "gradients":
            key = ("sum of gradients", -1, ins.tag)
            summed = (self.graph.initializers[k].nbytes for k in self.program.summed(ins.devices))
            self.storages.hold(key, sum(summed))
            self.sums.append(key)

    def _step(self, ins: Step) -> None:
        self._finish_sum()
        versions = self.trainable_bytes if self.versions.several else 0  # a new one beside the newest
        self.storages.see(self.scratch_bytes + self.returning_bytes + versions)
        stepped = self.with_gradient.pop(ins.number, set())
        self.storages.nbytes -= sum(self.graph.initializers[k].nbytes for k in stepped)
        self.storages.nbytes -= self._slice_bytes(self.summed)
        self.summed = set()
        self.versions.step()

    def _read(self, ins: Forward | Backward) -> None:
        for b in self.reading.get(ins.segment, ()):
            if b in self.gathering:
                self._put_together(b)

    def _put_together(self, b: int) -> None:
        bundle = self.program.bundles[b]
        if bundle.level == "parameters" and _whole(b) not in self.storages.size:
            whole = sum(self.graph.initializers[k].nbytes for k in bundle.names)
            self.storages.hold(_whole(b), whole)
            self.storages.see()
        self.gathering.discard(b)
        self.storages.release(("gathering", -1, b))

    def _gather(self, ins: Gather) -> None:
        last = self.program.bundles[ins.bundle].level != "parameters"
        for b in [b for b in self.gathering if last or b == ins.bundle]:
            self._put_together(b)
        largest, _ = self.program.most_of_bundle[ins.bundle]
        self.gathering.add(ins.bundle)
        self.storages.hold(("gathering", -1, ins.bundle), (1 + len(ins.devices)) * largest)

    def _scatter(self, ins: Scatter) -> None:
        self._finish_sum()
        _, largest = self.program.most_of_bundle[ins.bundle]
        packed = len(ins.devices) * largest
        self.storages.see(packed)  # beside the gradients
        names = set(self.program.bundles[ins.bundle].names)
        for have in self.with_gradient.values():
            replaced = have & names
            self.storages.nbytes -= sum(self.graph.initializers[k].nbytes for k in replaced)
            have -= replaced
        key = ("sum of gradients", -1, ins.tag)
        self.storages.hold(key, 2 * packed)
        self.sums.append(key)
        new = names - self.summed
        self.summed |= new
        self.storages.nbytes += self._slice_bytes(new)

    def _slice_bytes(self, names: Collection[str]) -> int:
        return sum(
            each.nbytes(self.graph.initializers[k])
            for k in names
            for each in self.program.slices[k]
            if each.device == self.device and self.graph.initializers[k].requires_grad
        )

    def _finish_sum(self) -> None:
        """The sum under way replaces the gradients."""
        for key in self.sums:
            self.storages.release(key)
        self.sums = []

    def _arrived(self, index: int) -> None:
        if not isinstance(self.instructions[index], Send | Recv):
            while self.sending:
                self.storages.release(self.sending.pop())

    def _hold(self, k: str, i: int) -> None:
        if (root := storage_of(self.graph, k)) not in self.fed:
            i = self.program.sent_with(root, self.device, i)
            self.storages.hold((root, i, 0), self.sizes.at(i).own[root])

    def _release(self, k: str, i: int) -> None:
        if (root := storage_of(self.graph, k)) not in self.fed:
            i = self.program.sent_with(root, self.device, i)
            self.storages.release((root, i, 0))

    def _use(self, k: str, i: int) -> None:
        """One reader less; the last one releases the value."""
        if k in self.fed:
            return
        i = self.program.sent_with(k, self.device, i)
        self.left[k, i] -= 1
        if not self.left[k, i]:
            self._release(k, i)

    def _count_readers(self) -> Counter[str]:
        """How often segments and sends read a variable here in one micro-batch."""
        counts = Counter(k for shape in self.shapes.values() for k in shape.segment.inputs)
        sample = min(self.batches, default=0)
        counts.update(ins.read for ins in self._sends() if ins.microbatch == sample)
        return counts

    def _sends(self, lasting: bool = False) -> Iterator[Send]:
        for ins in self.instructions:
            if (
                isinstance(ins, Send)
                and not ins.gradient
                and (ins.variable in self.program.lasting) == lasting
            ):
                yield ins


def _own_key(what: str, shape: SegmentMemory, i: int) -> Key:
    return (f"{what} by segment {shape.segment.index}", i, 0)


def _whole(b: int) -> Key:
    return ("parameters", -1, b)
