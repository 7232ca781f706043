"""A plan for a model of one's own, from the command line: captured, costed, decided, shown, written."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

from netsplit.cluster.described import ClusterDescription
from netsplit.errors import ConfigError, NetSplitError
from netsplit.files import check_writable
from netsplit.formats.own import save_workload
from netsplit.planning.plan import Plan
from netsplit.session.costs import CostSource, PredictedCosts
from netsplit.session.decision import problem_of, training_plan
from netsplit.session.request import Request
from netsplit.session.session import Session
from netsplit.session.step import ModelStep
from netsplit.tracking.records import write_plan, write_whole
from netsplit.training.options import Training

from .._entry import console_of
from .._partitioned import show_plan
from .._progress import Waiting
from .planned import show_whole

__all__ = ["plan", "tensors_of"]

_TENSOR = re.compile(r"(?P<shape>\d+(?:x\d+)*)(?::(?P<dtype>\w+))?(?:<(?P<below>\d+))?")
_HOW = "give a shape such as 8x3x32x32, with a dtype 8x64:int64<1000, or several separated by commas"


def plan(
    model: str,
    batch: str | None,
    targets: str | None,
    loss: str | None,
    out: str | None,
    request: Request,
) -> None:
    """See `netsplit plan --help`.

    Raises:
        NetSplitError: what is given cannot be used, the model cannot be captured, or nothing fits.
    """
    described = isinstance(request.cluster, ClusterDescription)
    torch.manual_seed(request.settings.seed)
    subject = _subject(model, batch, targets, loss, torch.device("meta" if described else "cpu"))
    folder = _folder(out)
    console = console_of()
    if subject.loss is _stand_in:
        console.print("No loss is given, so the mean of the squared outputs is used.")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    step, decided = _decided(subject, request, folder, console)
    chosen = bool(decided.choice.frontier)
    if chosen:
        show_whole(console, decided)
    else:
        show_plan(console, decided, step.workload(decided.asked))
    folder.mkdir(parents=True, exist_ok=True)
    more = ""
    if chosen:
        write_whole(decided, folder)
        more = ", plan.json, frontier.txt"
    save_workload(step.workload(decided.asked), folder / "graph.json")
    files = ", ".join(write_plan(decided, folder))
    console.print(
        f"Written to {folder}: graph.json (for `netsplit partition`), {files}{more}.",
        highlight=False,
        soft_wrap=True,
    )


def _folder(out: str | None) -> Path:
    """The plan's folder, not made yet. Raises ConfigError if it cannot be made."""
    folder = Path(out) if out is not None else Path("outputs/plan", time.strftime("%Y-%m-%d_%H-%M-%S"))
    try:
        check_writable(folder / "graph.json")
    except NetSplitError as error:
        raise ConfigError(f"--out is '{folder}': {error}") from error
    return folder


@dataclass(frozen=True)
class _Subject:
    model: nn.Module
    loss: Callable[..., Any] | None
    batch: tuple[Any, Any]


def tensors_of(text: str, key: str) -> Any:
    """A random tensor for each shape: normal, or whole numbers from 0; several become a tuple.

    Raises:
        ConfigError: naming `key`, where the text cannot be read.
    """
    drawn: list[Tensor] = []
    for word in text.split(","):
        match = _TENSOR.fullmatch(word.strip())
        dtype = getattr(torch, match["dtype"] or "float32", None) if match is not None else None
        if match is None or not isinstance(dtype, torch.dtype):
            raise ConfigError(f"{key} is '{text}': {_HOW}.")
        shape = [int(size) for size in match["shape"].split("x")]
        if dtype.is_floating_point or dtype.is_complex:
            drawn.append(torch.randn(shape, dtype=torch.float32).to(dtype))
        else:
            drawn.append(torch.randint(0, int(match["below"] or 2), shape).to(dtype))
    return drawn[0] if len(drawn) == 1 else tuple(drawn)


def _stand_in(outputs: Any, targets: Tensor) -> Tensor:
    """A cheap loss that reads all outputs, for models without their own."""
    parts = outputs.values() if isinstance(outputs, dict) else outputs
    tensors = [outputs] if isinstance(outputs, Tensor) else [t for t in parts if isinstance(t, Tensor)]
    squares = [(tensor.float() ** 2).mean() for tensor in tensors if tensor.is_floating_point()]
    return torch.stack(squares).sum()


def _subject(
    model: str, batch: str | None, targets: str | None, loss: str | None, device: torch.device
) -> _Subject:
    build = _named(model, "MODEL")
    try:
        with device:
            answer = build if isinstance(build, nn.Module) else build()
    except Exception as error:
        raise ConfigError(f"{model} failed: {type(error).__name__}: {error}") from error
    if isinstance(answer, tuple) and len(answer) == 3:
        module, own_loss, own_batch = answer
    else:
        module, own_loss, own_batch = answer, None, None
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{model} returned {type(module).__name__}: it must return a torch.nn.Module.")
    if batch is None and own_batch is None:
        raise ConfigError(f"--batch must be given, as {model} returns only a module: {_HOW}.")
    inputs = tensors_of(batch, "--batch") if batch is not None else own_batch[0]
    chosen = own_loss if loss is None else _named(loss, "--loss")
    chosen = chosen() if isinstance(chosen, type) else chosen
    if targets is not None:
        return _Subject(module, chosen, (inputs, tensors_of(targets, "--targets")))
    if batch is None:
        return _Subject(module, chosen, own_batch)
    first = inputs[0] if isinstance(inputs, tuple) else inputs
    return _Subject(module, _stand_in, (inputs, torch.zeros(len(first))))


def _named(name: str, key: str) -> Any:
    """The object that MODULE:NAME names. Raises ConfigError if there is none."""
    if ":" not in name:
        raise ConfigError(f"{key} is '{name}': give MODULE:NAME, as in my_module:build.")
    try:
        return resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{key} is '{name}', which cannot be imported: {error}.") from error


def _decided(subject: _Subject, request: Request, folder: Path, console: Console) -> tuple[ModelStep, Plan]:
    order, (method,), cluster = request.schedule, request.partitioners.values(), request.cluster
    training = Training.of(request.settings, request.optimizer)
    parts = subject.model, subject.loss, subject.batch
    source: CostSource
    with ExitStack() as stack:
        if isinstance(cluster, ClusterDescription):
            source = PredictedCosts.for_cluster(cluster, training.autocast)
            step = ModelStep(*parts, training)
        else:
            folder /= "workers"
            session = stack.enter_context(Session(cluster, folder, profile=request.settings.profile))
            source, step = session.costs, session.step(*parts, training)
        if order.decides_everything:
            return step, training_plan(step, source, order, method, told=False)
        problem = problem_of(step, source, order)
        stack.enter_context(Waiting(console, method.name, method.time_limit_s))
        return step, step.plan(problem, method)
