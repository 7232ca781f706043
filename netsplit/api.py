"""One call for people with their own model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

from torch import nn

from netsplit.cluster.described import ClusterDescription, named_cluster
from netsplit.cluster.local import ClusterSpec, LocalDevice, check_offload, local_cluster
from netsplit.errors import ConfigError, plain_errors
from netsplit.formats.read import read_workload
from netsplit.graph.batches.batch import Batch, Loss
from netsplit.graph.recording.stand_ins import refuse_tensors
from netsplit.optim.learning_rate import LearningRate, SchedulerFactory, learning_rate
from netsplit.optim.optimizers import MOMENTUM
from netsplit.partition import METHODS, Partitioner
from netsplit.placement.parallelism import Parallelism
from netsplit.planning.plan import Plan
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.workload import Workload
from netsplit.program.schedules import SCHEDULES, Schedule
from netsplit.progress import shown_stages
from netsplit.runtime.checkpoint.weights import WeightSource
from netsplit.runtime.share import OptimizerFactory
from netsplit.session.costs import FileCosts, PredictedCosts
from netsplit.session.decision import plan_ahead
from netsplit.session.session import Session
from netsplit.session.step import ModelStep
from netsplit.session.uniform import plan_given
from netsplit.settings import OffloadName, OnNonFinite, ProfileMode, check_backend, check_switches
from netsplit.signature import suggest
from netsplit.training.adapt.adaptation import Adapt
from netsplit.training.adapt.switchable import check_adaptable
from netsplit.training.options import MAX_PROGRAMS, Training, check_choice
from netsplit.training.parallel import ParallelModel

__all__ = ["SCHEDULES", "cpu_cluster", "parallelize", "plan"]

MOST_WORKERS = 1024


def cpu_cluster(workers: int, capacity: int | str = "all") -> ClusterSpec:
    """A cluster of worker processes of one thread each on this machine.

    Args:
        workers: how many, at most 1024.
        capacity: of each, as bytes or as text such as "24MiB"; "all" is the machine's memory.
    """
    if workers < 1:
        raise ConfigError(f"cpu_cluster was asked for {workers} workers: ask for at least 1.")
    if workers > MOST_WORKERS:
        raise ConfigError(f"cpu_cluster was asked for {workers} workers: ask for at most {MOST_WORKERS}.")
    devices = [LocalDevice(f"cpu:{rank}", "cpu", capacity) for rank in range(workers)]
    return local_cluster(f"cpu{workers}", devices)


@plain_errors
def parallelize(
    model: nn.Module,
    loss: Loss | None,
    batch: tuple[Any, Any],
    *,
    cluster: ClusterSpec | int = 2,
    partitioner: Partitioner | str = "auto",
    schedule: Schedule | AutoSchedule | str = "auto",
    optimizer: OptimizerFactory = MOMENTUM,
    scheduler: LearningRate | SchedulerFactory | None = None,
    ema_decay: float | None = None,
    clip_norm: float | None = None,
    autocast: str | None = None,
    seed: int = 0,
    max_programs: int = MAX_PROGRAMS,
    check: bool = True,
    on_nonfinite: OnNonFinite = "stop",
    profile: ProfileMode = "reuse",
    weights: WeightSource | None = None,
    folder: str | Path | None = None,
    compile_backend: str | None = None,
    progress: bool = True,
    offload: OffloadName = "none",
    adapt: bool | Adapt = False,
) -> ParallelModel:
    """Split a model over devices, ready to train.

    Captures the training step, measures its operators and the links between the workers, decides
    which device runs which operator, and puts the parameters there. The workers run until the result
    is closed; it is a context manager. Measured costs are kept and reused (docs/profiling.md). A script
    that calls this guards its main part with ``if __name__ == "__main__"`` only if it starts processes of
    its own: the workers do not import it.

    Args:
        model: any module, in the mode to train it in; its present parameters are where training starts.
        loss: called with the model's output and the targets; returns a scalar mean over the samples, alone
            or with metrics. None: the model's output is or has the loss.
        batch: one example `(inputs, targets)` of the size to train with: tensors, tuples, mappings,
            dataclasses; docs/batches.md has how model and loss are called with them.
        cluster: devices, or a number of CPU worker processes on this machine.
        partitioner: a method or its name: "auto" plans for 30 s; others see docs/methods.md.
        schedule: "auto" decides placement, replicas, devices to use, micro-batches, schedule and
            recomputation together (docs/whole_plan.md), `AutoSchedule` within what it leaves open; else a
            schedule or its name: "gpipe", "1f1b", "zb_h1" and others of 4 micro-batches, or "single_batch"
            (docs/schedules.md).
        optimizer: makes a ``torch.optim.Optimizer`` of a list of parameters, e.g.
            ``functools.partial(torch.optim.Adam, lr=1e-3)``, or `netsplit.ParameterGroups`; how each device
            calls it is in docs/optimizers.md.
        scheduler: makes a ``torch.optim.lr_scheduler.LRScheduler`` of the optimiser, e.g.
            ``functools.partial(CosineAnnealingLR, T_max=1000)``; stepped after each optimiser step. For steps
            every epoch see `netsplit.LearningRate`.
        ema_decay: keep exponential moving averages of the parameters, which `ema_state_dict` fetches.
        clip_norm: the gradients' norm over all devices is cut to this before each step.
        autocast: "bfloat16" or "float16": operators run as under ``torch.autocast``.
        seed: of methods that draw at random, and of random operators.
        max_programs: kinds of batches (shapes, types, values that are no tensor) that training may see, and
            as many that prediction may; each is captured when first seen.
        check: run the model and what was captured of it beside each other first; refuse what differs.
        on_nonfinite: what happens on a batch whose loss is no finite number: "stop" raises an error that says
            on which device and in which operator it arises, "warn" says so and steps, "skip" says so and does
            not step. But for "warn" the model is as it was before the batch.
        profile: "predicted" measures no operator, but predicts its seconds from the rates of the kind of
            device; "reuse", "refresh" and "off" measure (docs/profiling.md).
        weights: where workers have the first values of parameters from, for a model on the meta device, which
            may be larger than any memory (docs/large_models.md): `SafetensorsWeights`, `CheckpointWeights` or
            `SeededWeights`. Needs profile="predicted"; refused for a model that has all values itself.
        folder: for the workers' logs; a temporary one by default.
        compile_backend: of ``torch.compile``, as "inductor": every device compiles its segments with it, when
            they are first computed; docs/integrations.md has what that changes.
        offload: "optimizer", "activations" or "both" lie in the host's memory while a GPU does not compute
            with them: the same training bit for bit, in less of the device's memory and more time
            (docs/large_models.md).
        adapt: measure the workers while they train, and change the plan between batches where another is
            predicted to be shorter; True, or `netsplit.Adapt` with when it looks (docs/adaptive.md).
        progress: show what is being done, where stderr is a terminal, and in a notebook.

    Raises:
        NetSplitError: a bad argument, a model that cannot be captured, capacities that are too small,
            or workers that do not come up; the message is one sentence.
    """
    spec = _where(cluster, described=False)
    assert isinstance(spec, ClusterSpec)
    method: Partitioner = _chosen(METHODS, partitioner, Partitioner, "partitioner")
    order = _order(schedule)
    _check_kinds(model, loss, batch)
    training = Training(
        optimizer, learning_rate(scheduler), ema_decay, clip_norm, autocast, seed, max_programs, check,
        on_nonfinite, weights, compile_backend, offload, adapt,
    )  # fmt: skip
    refuse_tensors(model, loss)
    training = training.made_for(model, loss)
    if training.looks is not None:
        check_adaptable(compile_backend, order)
    check_choice("profile", profile, get_args(ProfileMode))
    check_offload(offload, spec.devices, compile_backend)
    check_backend(compile_backend, [each.torch_device for each in spec.devices], autocast)
    check_switches(progress=progress)
    place = _folder(folder)
    with shown_stages(progress) as stages:
        session = Session(spec, place, temporary=folder is None, profile=profile, stages=stages)
        try:
            step = session.step(model, loss, batch, training)
            return session.deploy(step, session.plan(step, order, method), owned=True)
        except BaseException:
            session.close()
            raise


@plain_errors
def plan(
    model: nn.Module,
    loss: Loss | None,
    batch: tuple[Any, Any],
    cluster: ClusterDescription | ClusterSpec | str | int = 2,
    *,
    schedule: Schedule | AutoSchedule | str = "auto",
    partitioner: Partitioner | str = "auto",
    given: Parallelism | None = None,
    optimizer: OptimizerFactory = MOMENTUM,
    clip_norm: float | None = None,
    autocast: str | None = None,
    ema_decay: float | None = None,
    offload: OffloadName = "none",
    profile: str | Path | Workload = "predicted",
    seed: int = 0,
    progress: bool = True,
) -> Plan:
    """Predict whether a model fits on devices, where, how fast and in how many bytes; nothing is started.

    The loss is computed on a few samples, whole and cut into micro-batches: where these do not add up the
    batch is not cut. `loss`, `optimizer`, `clip_norm`, `autocast` and `ema_decay` are as for `parallelize`.

    Args:
        model: any module, which is left as it is; on the meta device too, which holds no values.
        batch: one example `(inputs, targets)` of the size to train with; on the meta device too.
        cluster: devices that need not be here, described or by the name of an option of conf/cluster, as
            "v100x8"; or devices of this machine; or a number of CPU worker processes on it. A description
            names the models of its devices, whose seconds are predicted; one with speeds beside a measured
            graph, as "mixed3", goes with that graph's file as `profile`. Links of this machine's devices are
            as the cluster states them, else as the driver promises between GPUs, else 60 µs and 6 GB/s.
        schedule: "auto", or `AutoSchedule`, decides it with all else (docs/whole_plan.md); a schedule or its
            name plans for that, as `parallelize` would with it.
        partitioner: whose placements are wanted; "auto" is the best of all.
        given: a uniform plan by hand, on described devices that are alike; with a schedule of as many
            micro-batches as the whole batch has (docs/large_models.md). It is predicted, fit or not.
        offload: "optimizer", "activations" or "both" lie in the host's memory (docs/large_models.md).
        profile: "predicted"; or a graph file with measured costs of this training step, as runs leave it:
            its optimiser, autocast and offload count, and its micro-batches are kept (docs/whole_plan.md).
        seed: of methods that draw at random.
        progress: show what is being done, where stderr is a terminal, and in a notebook.

    Raises:
        InfeasibleError: nothing fits; the message says what is missing in the nearest plan.
        NetSplitError: a bad argument, or a model that cannot be captured; the message is one sentence.
    """
    method: Partitioner = _chosen(METHODS, partitioner, Partitioner, "partitioner")
    order = _order(schedule)
    _check_kinds(model, loss, batch)
    training = Training(
        optimizer, ema_decay=ema_decay, clip_norm=clip_norm, autocast=autocast, seed=seed, offload=offload
    )
    check_switches(progress=progress)
    if not isinstance(given, Parallelism | None):
        raise ConfigError(f"given is {given!r}: give a Parallelism, such as Parallelism(data=8, tensor=4).")
    if given is not None and not isinstance(order, Schedule):
        raise ConfigError(
            "given needs a schedule with the whole batch's micro-batches: give one, such as OneFOneB(16)."
        )
    if given is not None and not method.tries_others:
        raise ConfigError(f"given places the operators itself: leave out partitioner={method.name}.")
    if given is not None and profile != "predicted":
        raise ConfigError("given is predicted from the rates of devices: leave out profile.")
    refuse_tensors(model, loss)
    training, devices = training.made_for(model, loss), _where(cluster)
    with shown_stages(progress) as stages:
        if profile == "predicted":
            source = PredictedCosts.for_cluster(devices, autocast, offload)
            step = ModelStep(model, loss, batch, training, source.device_type, stages=stages)
            if given is not None and isinstance(order, Schedule):
                return plan_given(step, source, order, given)
            return plan_ahead(step, source, order, method)
        work = profile if isinstance(profile, Workload) else read_workload(profile)
        described = devices.unprobed if isinstance(devices, ClusterSpec) else devices
        costs = FileCosts(work, described).for_step(model, Batch.of(*batch).samples)
        stages.stage("plan", order.time_limit_s if order.decides_everything else method.time_limit_s, "s")
        return costs.plan(order, method, seed, stages)


def _where(cluster: Any, described: bool = True) -> ClusterSpec | ClusterDescription:
    if isinstance(cluster, str) and described:
        return named_cluster(cluster)
    devices = cpu_cluster(cluster) if type(cluster) is int else cluster
    if not isinstance(devices, ClusterSpec | ClusterDescription if described else ClusterSpec):
        others = ", the name of an option of conf/cluster, a ClusterDescription" if described else ""
        raise ConfigError(f"cluster is {cluster!r}: give a number of workers{others} or a ClusterSpec.")
    return devices


def _order(schedule: Schedule | AutoSchedule | str) -> Schedule | AutoSchedule:
    orders = {**SCHEDULES, AutoSchedule.name: AutoSchedule}
    order: Schedule | AutoSchedule = _chosen(orders, schedule, (Schedule, AutoSchedule), "schedule")
    return order


def _check_kinds(model: Any, loss: Any, batch: Any) -> None:
    for name, value in (("model", model), ("loss", loss)):
        if isinstance(value, type):
            kind = value.__name__
            raise ConfigError(f"{name} is the class {kind} itself: call it, as in {name}={kind}(...).")
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model is {model!r}: give a torch.nn.Module.")
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise ConfigError("batch must be a pair (inputs, targets); targets may be None.")
    if loss is not None and not callable(loss):
        raise ConfigError(f"loss is {loss!r}: give a function of outputs and targets, or None.")


def _chosen(
    known: Mapping[str, Callable[[], Any]], given: Any, kind: type | tuple[type, ...], what: str
) -> Any:
    if isinstance(given, kind):
        return given
    if not isinstance(given, str) or given not in known:
        raise ConfigError(f"{what} {given!r} is not known: {suggest(str(given), known)}")
    return known[given]()


def _folder(folder: str | Path | None) -> Path:
    if folder is not None and not isinstance(folder, str | Path):
        raise ConfigError(f"folder is {folder!r}: give the path of a folder, or None.")
    try:
        if folder is None:
            return Path(tempfile.mkdtemp(prefix="netsplit-"))
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"folder is {folder!r}, which cannot be created ({reason}): give another."
        ) from error
    return Path(folder)
