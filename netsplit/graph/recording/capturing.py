"""From a step to its graph: recorded operator by operator, and what cannot be as single calls.

    record ──► Graph
      └─ it cannot be: record again, the model told that it is being compiled (many then avoid values,
         and where a model goes wrong so, it is not told)
      └─ a part cannot be recorded ──► its module is observed on real values ──► record again, it stays whole

The module is the innermost one around the line that stops the recording; where its outputs' sizes depend on
values too, the one around that. In the end that is the whole step, which then runs on one device.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher

from netsplit.errors import CaptureError, ConfigError, NetSplitError
from netsplit.graph.analyse import Strides, copy_as_it_lies
from netsplit.graph.batches.batch import Batch
from netsplit.graph.batches.tree import Tree, flatten
from netsplit.graph.ir import Graph
from netsplit.graph.operators import autocast_context, marked
from netsplit.graph.recording.build import built
from netsplit.graph.recording.record import Recorder, Unrecordable
from netsplit.graph.recording.stand_ins import StandInMode, named_tensors, refuse_tensors
from netsplit.graph.recording.traps import said_to_compile, trapped
from netsplit.graph.recording.whole import ModuleCall, skeleton_of
from netsplit.graph.user_code import kept, line_of, quoted, where_of

__all__ = ["RecordedStep", "graph_of_step", "valid_other_values"]

log = logging.getLogger(__name__)

_ATTEMPTS = 64
_TOLD: WeakKeyDictionary[nn.Module, set[str]] = WeakKeyDictionary()
"""Lines that were warned of: a model is captured again for every shape, and for prediction."""


class RecordedStep(nn.Module):
    """``(*tensors of a batch) -> tensors``: what is recorded. `batch` is an example."""

    model: nn.Module
    loss: nn.Module | None
    batch: Batch

    def to_check(self) -> str:
        """What may be wrong where it does not run."""
        return "check the model, the batch, and the number of micro-batches"


@dataclass(frozen=True)
class ResultKind:
    """A tensor that a module returned: what it is, and how it lies in memory."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    carries: bool  # a gradient
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Observation:
    """One call of a module: what it returned, and whether it wrote into its arguments."""

    tree: Tree
    kinds: tuple[ResultKind, ...]
    writes_arguments: bool

    def like(self, other: Observation) -> bool:
        """Whether a capture may take one for the other."""
        try:
            return self.kinds == other.kinds and bool(self.tree.key == other.tree.key)
        except NetSplitError:  # something in it cannot be compared
            return False


Observed = dict[int, list[Observation]]
"""Module id -> its calls in order."""


@dataclass
class _Job:
    step: RecordedStep
    autocast: str | None
    device_type: str
    constants: str
    grad: bool
    whole: dict[int, nn.Module] = field(default_factory=dict)
    observed: list[Observed] = field(default_factory=list)
    compiling: bool = False  # said to the model

    @property
    def name(self) -> str:
        return type(self.step.model).__name__

    @property
    def paths(self) -> dict[int, str]:
        paths: dict[int, str] = {id(self.step): ""}
        for root, prefix in ((self.step.model, ""), (self.step.loss, "loss")):
            if root is not None:
                for path, module in root.named_modules():
                    paths.setdefault(id(module), ".".join(filter(None, (prefix, path))))
        return paths


def graph_of_step(
    step: RecordedStep,
    autocast: str | None = None,
    device_type: str = "cpu",
    constants: str = "",
    grad: bool = True,
) -> Graph:
    """The graph of the step on its batch; the modules are left as they were.

    Args:
        step: whose model's and loss's names the initializers bear.
        autocast, device_type, constants: as of `capture`.
        grad: autograd is on around the step, as for training; else off, as for prediction.

    Raises:
        CaptureError: the step cannot be recorded, or it fails on this batch.
        ConfigError: an unknown `autocast`, or one for a kind of device that this process cannot use.
    """
    kind = device_type if autocast is not None else "cpu"
    if kind != "cpu" and not getattr(torch, kind).is_available():
        raise ConfigError(f"autocast of {kind} cannot be captured on a machine without such a device.")
    refuse_tensors(step.model, step.loss)
    job = _Job(step, autocast, kind, constants, grad)
    first: Unrecordable | None = None
    plain: Unrecordable | None = None
    for _ in range(_ATTEMPTS):
        try:
            with kept(step.model, step.loss), _quiet():
                graph = _recorded(job)
        except Unrecordable as stop:
            if first is None and not job.compiling:
                plain, job.compiling = stop, True
                continue
            if first is None and plain is not None and stop.fails and _fails_said_to_compile(job):
                job.compiling, stop = False, plain
            first = first or stop
            _widen(job, stop, first)
        else:
            _tell(job, first)
            return graph
    assert first is not None
    raise _refusal(job, first, "no part of it around that line could be kept whole")


def _fails_said_to_compile(job: _Job) -> bool:
    """Whether the model fails, on values too, where it believes that it is being compiled."""
    try:
        with said_to_compile():
            observe(job.step, job.step.batch.tensors, ())
    except Exception:
        return True
    return False


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences torch's logs of failures that the model's code, or ours, deals with."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _recorded(job: _Job) -> Graph:
    mode = StandInMode()
    recorder = Recorder(
        job.step.model, job.step.loss, job.device_type, job.autocast, mode, job.constants, job.grad
    )
    names = [f"batch_{i}" for i in range(len(job.step.batch.tensors))]
    inputs = [
        recorder.input(name, example) for name, example in zip(names, job.step.batch.tensors, strict=True)
    ]
    whole = {key: _Kept(job, recorder) for key in job.whole}
    context = autocast_context(job.autocast, job.device_type) if job.autocast else nullcontext()
    with (
        enable_python_dispatcher(),
        context,
        mode,
        recorder,
        trapped(recorder, job.step, job.paths, whole, job.compiling),
        torch.set_grad_enabled(job.grad),
    ):
        try:
            result = job.step(*inputs)
            recorder.look()
        except (Unrecordable, NetSplitError):
            raise
        except Exception as error:
            raise recorder.why(error) from error
        outputs = _outputs(recorder, result)
    return built(recorder, names, outputs, job.autocast)


def _outputs(recorder: Recorder, tensors: Sequence[Tensor]) -> list[str]:
    """Variables, each once: a parameter returned unchanged, or a tensor returned twice, gets another name."""
    variables: list[str] = []
    for tensor in tensors:
        reference = recorder.reference(tensor)
        if reference is None or reference[0] == "init" or reference[1] in variables:
            reference = recorder.reference(torch.ops.aten.alias.default(tensor))
        assert reference is not None
        variables.append(reference[1])
    return variables


class _Kept:
    """Records each call of a module that stays whole, by what was observed of it."""

    def __init__(self, job: _Job, recorder: Recorder) -> None:
        self.job = job
        self.recorder = recorder
        self.calls = 0

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recorder = self.recorder
        script = next((each for each in module.modules() if isinstance(each, torch.jit.ScriptModule)), None)
        if script is not None:
            raise CaptureError(
                f"{script.original_name} is TorchScript (torch.jit.script or trace) in code that cannot be "
                "captured and must run whole on one device; TorchScript cannot be sent there: write it in "
                "plain Python."
            )
        observed = self._observation(module)
        tensors, structure, _ = flatten((args, kwargs))
        given = [recorder.ours(tensor) for tensor in tensors]
        names: dict[int, list[str]] = {}
        own: dict[int, Tensor] = {}
        for name, tensor in named_tensors(module).items():
            own[tensor._cdata] = tensor
            names.setdefault(tensor._cdata, []).append(name)
        writes = tuple(i for i, tensor in enumerate(own.values()) if not isinstance(tensor, nn.Parameter))
        with recorder.quiet():
            skeleton = _copied(module)
            results = _like(recorder, observed.kinds)
            strides = tuple(map(Strides.of, tensors))
        held = [recorder.ours(tensor) for tensor in own.values()]
        payload = ModuleCall(skeleton, [tuple(each) for each in names.values()], structure, writes, strides)
        recorder.call(payload, [*held, *given], results, [])
        return observed.tree.build(results)

    def _observation(self, module: nn.Module) -> Observation:
        first, second = (each.get(id(module), []) for each in self.job.observed)
        around = tuple(each for each, _ in self.recorder.modules[:-1])
        if self.calls >= len(first) or len(first) != len(second):
            raise Unrecordable("how often it runs a module depends on values", around, "")
        observed, again = first[self.calls], second[self.calls]
        self.calls += 1
        if not observed.like(again):
            raise Unrecordable("the sizes of its results depend on values", around, "")
        if observed.writes_arguments:
            raise Unrecordable("it writes into its arguments", around, "")
        return observed


def _copied(module: nn.Module) -> nn.Module:
    with torch.utils._python_dispatch._disable_current_modes():
        try:
            return skeleton_of(module)
        except Exception as error:
            raise CaptureError(
                f"a {type(module).__name__} must run whole on one device but cannot be copied there "
                f"({line_of(error)}): make copy.deepcopy work on it."
            ) from error


def _like(recorder: Recorder, kinds: Sequence[ResultKind]) -> list[Tensor]:
    def stand_in(kind: ResultKind) -> Tensor:
        tensor = torch.empty_strided(kind.shape, kind.strides, dtype=kind.dtype, device=recorder.device)
        return tensor.requires_grad_().clone() if kind.carries else tensor

    with recorder.mode:
        return list(map(stand_in, kinds))


def _widen(job: _Job, stop: Unrecordable, first: Unrecordable) -> None:
    """Keep the innermost module around the stop whole that is not yet so.

    Raises:
        CaptureError: there is none, or the model does not run.
    """
    own = set(map(id, job.step.modules()))  # one that the code makes or finds elsewhere is not observed
    candidates = [
        module
        for module in stop.modules
        if id(module) in own - job.whole.keys() and not isinstance(module, torch.jit.ScriptModule)
    ]
    if not candidates:
        raise _refusal(job, first, "and not even the whole step can run as one operator")
    target = job.step if stop.differentiates else candidates[-1]
    job.whole[id(target)] = target
    try:
        job.observed = observe(job.step, job.step.batch.tensors, job.whole.keys())
    except CaptureError as error:
        raise _refusal(job, first, f"it would have to stay whole on one device, but {error}") from error
    except Exception as error:
        raise CaptureError(
            f"{job.name} does not run on this batch in plain PyTorch, in micro-batches of "
            f"{job.step.batch.samples}{where_of(error)}: {line_of(error)}; {job.step.to_check()}."
        ) from error


def _tell(job: _Job, first: Unrecordable | None) -> None:
    if first is None:
        return
    names = [job.paths.get(id(module), "") for module in job.whole.values()]
    what = "; ".join(
        f"{name or 'the model'} ({type(module).__name__})"
        for name, module in zip(names, job.whole.values(), strict=True)
    )
    frames = _TOLD.setdefault(job.step.model, set())
    level = logging.DEBUG if first.frame in frames else logging.WARNING
    frames.add(first.frame)
    where = f"at {quoted(first.frame)} " if first.frame else ""
    log.log(level, "Kept whole, each on one device: %s; %s%s.", what, where, first.reason)


def _refusal(job: _Job, stop: Unrecordable, why: str) -> CaptureError:
    where = f" at {quoted(stop.frame)}" if stop.frame else ""
    return CaptureError(f"{job.name} cannot be captured{where}: {stop.reason}; {why}.")


def observe(step: nn.Module, batch: tuple[Tensor, ...], modules: Collection[int]) -> list[Observed]:
    """Run the step on its batch and on one of other values; the model is left as it was.

    Raises:
        CaptureError: the model has no values, or sets torch's generator.
    """
    if any(tensor.is_meta for tensor in (*step.parameters(), *step.buffers(), *batch)):
        raise CaptureError("it has no values to run with (device meta)")
    observed = []
    with kept(*step.children()):
        for values in (batch, valid_other_values(step, batch)):
            mark = marked()
            observed.append(_one(step, values, modules))
            if torch.default_generator.initial_seed() != mark:
                raise CaptureError("its forward sets torch's generator: leave the seed out")
    return observed


def _one(step: nn.Module, batch: tuple[Tensor, ...], modules: Collection[int]) -> Observed:
    observed: Observed = {}
    given: dict[int, list[tuple[Tensor, int, Tensor]]] = {}

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = flatten((args, kwargs))[0]
        given[id(module)] = [(tensor, tensor._version, tensor.detach().clone()) for tensor in tensors]

    def after(module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        arguments = given.pop(id(module))
        writes = any(t._version != version or not _same(t, before) for t, version, before in arguments)
        tensors, tree, _ = flatten(result)
        kinds = tuple(ResultKind(tuple(t.shape), t.dtype, t.requires_grad, t.stride()) for t in tensors)
        observed.setdefault(id(module), []).append(Observation(tree, kinds, writes))

    with ExitStack() as stack:
        for module in step.modules():
            if id(module) in modules:
                stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
                stack.callback(module.register_forward_hook(after, with_kwargs=True).remove)
        step(*batch)
    return observed


def _same(tensor: Tensor, before: Tensor) -> bool:
    """Writes through ``.data`` are not counted."""
    return tensor.shape == before.shape and bool(((tensor == before) | (before != before)).all())


def valid_other_values(step: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Other plausible values of the same shapes and layouts, which the model takes; else the batch as it is.

    Samples change places, and noise is added to floating-point numbers; indices and lengths may have to stay.
    """
    generator = torch.Generator().manual_seed(1)
    moved, still = [], []
    for tensor in batch:
        other = tensor.detach().clone()
        if other.dim() and len(other) > 1:
            other = other.roll(1, 0)
        if other.is_floating_point() and other.numel():
            spread = float(other.float().std()) if other.numel() > 1 else 1.0
            noise = torch.randn(other.shape, generator=generator)
            other = other + (0.3 * (spread or 1.0) * noise).to(other.dtype).to(other.device)
        moved.append(Strides.of(tensor).laid_out(other))
        still.append(moved[-1] if tensor.is_floating_point() else copy_as_it_lies(tensor))
    for candidate in (tuple(moved), tuple(still)):
        try:
            with kept(*step.children()):
                step(*map(copy_as_it_lies, candidate))
        except Exception:
            continue
        return candidate
    return tuple(map(copy_as_it_lies, batch))
