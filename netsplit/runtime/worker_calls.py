"""What the controller of a training calls in the process of every device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from netsplit.data.reading.loader import BatchPlace
from netsplit.graph.random_draws import DrawKey
from netsplit.profile.costs import Offload
from netsplit.profile.measure.memory_meter import MemoryMeter
from netsplit.program.instructions import Backward, Forward, Gather, Program, Recv, Scatter, Send
from netsplit.runtime.checkpoint.files import CheckpointPart, Refusal
from netsplit.runtime.checkpoint.shares import Holder
from netsplit.runtime.checkpoint.weights import WeightSource
from netsplit.runtime.executor import Executor
from netsplit.runtime.faults import BatchFailure, Inspection, failure_of, is_fatal
from netsplit.runtime.feeds import drop_samples, parts_read
from netsplit.runtime.share import LossScale, OptimizerFactory, Share, UpdateRule
from netsplit.runtime.sliced import SlicedParameters
from netsplit.runtime.values import Absent, IterationValues, Key
from netsplit.runtime.workers.messages import Worker
from netsplit.simulate.timeline import Event

if TYPE_CHECKING:
    from torch.distributed.checkpoint.planner import SavePlan
    from torch.distributed.checkpoint.storage import WriteResult

__all__ = [
    "INFERENCE",
    "TRAINING",
    "DeviceComputed",
    "DeviceIteration",
    "abandon",
    "add",
    "commit",
    "deploy",
    "inspect",
    "load_part",
    "on_share",
    "plan_part",
    "predict",
    "train",
    "write_part",
]


class Attempt:
    """One iteration on one device, in two halves."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    def compute(
        self,
        feeds: list[dict[str, Tensor]],
        fractions: Sequence[float] | None,
        step: bool,
        key: DrawKey,
        absent: Absent = frozenset(),
    ) -> BatchFailure | None:
        """All up to the first step (see `Executor.begin`); raises only fatal errors."""
        executor, index = self.executor, 0
        try:
            with executor.grad_mode():
                executor.begin(feeds, fractions, step, key, absent)
                for index in range(executor.computing):
                    executor.execute(index)
                executor.hand_on(wait=True)
                executor.meet()
                executor.settle()
        except Exception as error:
            if is_fatal(error) or not executor.program.steps_last:
                raise
            failure = self._failure(error, index)
        else:
            return None
        self._drain(index)  # here, as the exception keeps the iteration's tensors alive
        return failure

    def unfed(self, failure: BatchFailure) -> BatchFailure:
        """Replace `compute` if there is no batch, so that no device waits for this one."""
        self.executor.recorder.begin()
        self._drain(0)
        return failure

    def commit(self) -> dict[Key, Tensor]:
        executor = self.executor
        executor.before = None
        with executor.grad_mode():
            for index in range(executor.computing, len(executor.instructions)):
                executor.execute(index)
            return executor.finish()

    def abandon(self) -> None:
        """End the iteration and restore the state before it."""
        self.executor.await_sends()
        self.executor.await_collectives()
        self.executor.abandon()

    def _failure(self, error: Exception, index: int) -> BatchFailure:
        executor = self.executor
        instruction = executor.instructions[index]
        return failure_of(
            error, executor.device, f" at its {instruction}", executor.program.graph, executor.order[index]
        )

    def _drain(self, start: int) -> None:
        executor = self.executor
        had = executor.state
        executor.state = IterationValues(
            [],
            readers=dict(executor.readers),
            arriving=had.arriving,
            sending=had.sending,
            unfinished=had.unfinished,
        )
        for held in had.held_back:
            self._send_nothing(held.send)
        for index in range(start, executor.computing):
            instruction = executor.instructions[index]
            executor.recorder.at(index)
            if isinstance(instruction, Forward | Backward):
                self._take(instruction)
            elif isinstance(instruction, Send):
                self._send_nothing(instruction)
            elif isinstance(instruction, Recv):
                executor.receive(instruction)
            elif isinstance(instruction, Gather):
                executor.gather(instruction)
            elif isinstance(instruction, Scatter):  # gradients that all devices take back
                executor.scatter(instruction)
            executor.let_go(instruction)
        executor.meet()

    def _send_nothing(self, send: Send) -> None:
        """Send zeros, once their sources have arrived."""
        executor, arriving = self.executor, self.executor.state.arriving
        for key in executor.handed_on.get(send.tag, ()):
            if key in arriving:
                recv, handle = arriving.pop(key)
                executor.wait(send, recv, handle)
        executor.carry(send, executor.empty_like(send.source, send.microbatch).zero_())

    def _take(self, ins: Forward | Backward) -> None:
        """Receive and drop what the instruction would have read."""
        executor, i = self.executor, ins.microbatch
        segment, arriving = executor.segments[ins.segment], executor.state.arriving
        gradient = isinstance(ins, Backward)
        names = (
            [copy for k in segment.outputs for copy, _ in executor.copies[k]] if gradient else segment.inputs
        )
        for k in () if isinstance(ins, Backward) and ins.part == "weight" else names:
            first = i if gradient else executor.program.sent_with(k, executor.device, i)
            if (k, first, gradient) in arriving:
                recv, handle = arriving.pop((k, first, gradient))
                executor.wait(ins, recv, handle)


TRAINING, INFERENCE = 1, 2  # phases in the workers' heartbeats


@dataclass(frozen=True)
class DeviceComputed:
    """One device's answer before any device steps."""

    outputs: dict[Key, float]  # graph outputs made here
    nothing: Absent  # missing gradients, sent as zeros
    rates: list[float]  # rates of the optimiser's groups in this step


@dataclass(frozen=True)
class DeviceIteration:
    """One device's answer after an iteration."""

    device: str
    began_s: float
    events: list[Event]
    peak_bytes: int | None
    host_bytes: int | None  # peak bytes offloaded to the host
    next_rates: list[float]  # rates of the optimiser's groups in the next step
    scale: LossScale | None  # float16's loss scale; None if nothing was stepped on here


def deploy(
    worker: Worker,
    program: Program,
    values: dict[str, Tensor],
    optimizer: OptimizerFactory | None,
    rule: UpdateRule | None,
    weights: WeightSource | None = None,
    backend: str | None = None,
    offload: Offload | None = None,
) -> None:
    """Hold this device's part of the program, from `values` and `weights`."""
    name, graph = worker.device.name, program.graph
    held, copies = program.held[name], program.copies_on(name)
    trainable = [k for k in held if graph.initializers[k].requires_grad]
    drop_samples(worker)
    worker.memory.clear()
    worker.memory["weights"] = weights
    sliced, missing = SlicedParameters.of_program(program, name), [k for k in held if k not in values]
    alone = [k for k in missing if sliced is not None and k in sliced.let_go_of]  # of which slices are kept
    own = _read(worker, program, [k for k in missing if k not in alone])
    one_by_one = (pair for k in alone for pair in _read(worker, program, [k]).items())
    worker.memory["share"] = Share.of(
        chain(((k, own[k] if k in own else values[k]) for k in held if k not in alone), one_by_one),
        worker.torch_device,
        optimizer,
        trainable,
        rule,
        copies,
        own.keys() | alone,
        offload,
        graph.regions,
        sliced,
    )
    worker.memory["programs"] = {}
    worker.memory["backend"] = backend
    worker.memory["offload"] = offload or Offload()
    add(worker, 0, program, {})


def add(worker: Worker, number: int, program: Program, values: dict[str, Tensor]) -> None:
    """Add a program, with the untrained tensors only it needs."""
    share: Share = worker.memory["share"]
    missing = [k for k in program.held[worker.device.name] if k not in values and k not in share.tensors]
    values = {**values, **_read(worker, program, missing)}
    for k, value in values.items():
        share.add(program.graph.initializers[k], value.clone().to(worker.torch_device))
    worker.transport.prepare([program])
    executor = Executor(
        program, worker.device.name, share, worker.transport, worker.torch_device, worker.timeout_s,
        worker.memory["backend"], worker.memory["offload"].activations,
    )  # fmt: skip
    executor.recorder.at = worker.heartbeat_file.at
    executor.recorder.waits = worker.heartbeat_file.waits
    worker.memory["programs"][number] = executor


def _read(worker: Worker, program: Program, names: list[str]) -> dict[str, Tensor]:
    """Read from the source of weights; parts are cut from wholes one at a time."""
    weights: WeightSource | None = worker.memory["weights"]
    assert weights is not None or not names, f"{names[0]} has no value"
    if weights is None:
        return {}
    initializers = program.graph.initializers
    parts = [initializers[k] for k in names if initializers[k].region is not None]
    values = weights.read({k: initializers[k] for k in names if initializers[k].region is None})
    for whole in {part.whole.name: part.whole for part in parts}.values():
        tensor = weights.read({whole.name: whole})[whole.name]
        values |= {each.name: each.cut(tensor).clone() for each in parts if each.whole.name == whole.name}
    return values


def train(
    worker: Worker,
    feeds: list[dict[str, Tensor]] | BatchPlace,
    number: int,
    fractions: list[float],
    step: bool,
    mode: str,
    key: DrawKey,
    absent: Absent,
) -> DeviceComputed | BatchFailure:
    """Compute an iteration up to its first step; of an `UnreadBatch` this device reads its own part."""
    executor: Executor = worker.memory["programs"][number]
    worker.heartbeat_file.phase = TRAINING
    parts = parts_read(worker, executor.program, feeds) if isinstance(feeds, BatchPlace) else feeds
    executor.recorder.recording = mode == "events"
    share = executor.share
    meter = MemoryMeter(worker.torch_device, share.all_tensors(), share.host) if mode == "bytes" else None
    if share.host is not None:
        share.host.restart()
    attempt = worker.memory["attempt"] = Attempt(executor)
    worker.memory["meter"] = meter
    with meter or nullcontext():
        if isinstance(parts, BatchFailure):
            failure: BatchFailure | None = attempt.unfed(parts)
        else:
            failure = attempt.compute(parts, fractions, step, key, absent)
    worker.heartbeat_file.at(-1)
    if failure is not None:
        return failure
    outputs = {name: float(tensor) for name, tensor in executor.state.outputs.items()}
    return DeviceComputed(outputs, frozenset(executor.state.nothing), share.learning_rates)


def inspect(
    worker: Worker, feeds: list[dict[str, Tensor]], number: int, fractions: list[float], key: DrawKey
) -> Inspection:
    """Compute the iteration, note what is not finite, and take it back."""
    executor: Executor = worker.memory["programs"][number]
    inspection = executor.inspection = Inspection()
    share = executor.share
    inspection.inspect({share.initializer(name): tensor for name, tensor in share.kept.items()})
    attempt = worker.memory["attempt"] = Attempt(executor)
    try:
        attempt.compute(feeds, fractions, False, key)
    finally:
        executor.inspection = None
        worker.heartbeat_file.at(-1)
    return inspection


def commit(worker: Worker) -> DeviceIteration:
    """Finish the iteration that `train` began."""
    attempt: Attempt = worker.memory.pop("attempt")
    meter: MemoryMeter | None = worker.memory.pop("meter")
    recorder = attempt.executor.recorder
    with meter or nullcontext():
        attempt.commit()
    worker.heartbeat_file.at(-1)
    peak, host = None if meter is None else meter.peak_bytes, attempt.executor.share.host
    hosted = None if host is None or meter is None else host.peak
    share: Share = attempt.executor.share
    return DeviceIteration(
        worker.device.name, recorder.began_s, recorder.events, peak, hosted,
        share.learning_rates, None if share.idle else share.scale,
    )  # fmt: skip


def abandon(worker: Worker) -> None:
    """Undo what `train` or `predict` began."""
    attempt: Attempt | None = worker.memory.pop("attempt", None)
    if attempt is not None:
        attempt.abandon()


def predict(
    worker: Worker, feeds: list[dict[str, Tensor]], number: int, key: DrawKey
) -> dict[Key, Tensor] | BatchFailure:
    """This device's graph outputs; after a failure call `abandon`."""
    worker.heartbeat_file.phase = INFERENCE
    attempt = worker.memory["attempt"] = Attempt(worker.memory["programs"][number])
    failure = attempt.compute(feeds, None, True, key)
    outputs = {} if failure is not None else attempt.commit()
    worker.heartbeat_file.at(-1)
    if failure is not None:
        return failure
    del worker.memory["attempt"]
    return {name: tensor.cpu() for name, tensor in outputs.items()}


def plan_part(worker: Worker, rules: Mapping[str, Any], folder: Path) -> SavePlan:
    """The device's part of a checkpoint; `rules` are of `Holder`."""
    part = CheckpointPart(Holder(worker.memory["share"], worker.device.name, **rules).state(), folder)
    worker.memory["part"] = part
    return part.plan()


def write_part(worker: Worker, plan: SavePlan) -> list[WriteResult] | Refusal:
    part: CheckpointPart = worker.memory.pop("part")
    return part.write(plan)


def load_part(worker: Worker, rules: Mapping[str, Any], folder: Path) -> list[str] | Refusal:
    return Holder(worker.memory["share"], worker.device.name, **rules).load(folder)


def on_share(worker: Worker, method: Callable[..., Any], *args: Any) -> Any:
    """Call a method of `Share`, or a function of it."""
    return method(worker.memory["share"], *args)
