"""A case split over three devices by drawn placements, judged against the plain loop.

All that depends on NetSplit's own interface is in `Split`: how a case is captured, what makes up a
program, how one is trained. The rest compares.
"""

from __future__ import annotations

import random
import re
import time
import traceback
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from netsplit.errors import NetSplitError
from netsplit.graph import Graph, capture, draws, initial_values
from netsplit.graph.checks.check import check_capture
from netsplit.graph.checks.cutting import refuse_shared_writes
from netsplit.graph.operators import node_draws
from netsplit.graph.recording.whole import ModuleCall
from netsplit.partition import Placement, SolverReport
from netsplit.profile.costs import Costs
from netsplit.program import GPipe, Program, Schedule
from netsplit.program.schedules import ZBH1
from netsplit.runtime.local import LocalRuntime
from netsplit.session.step import ModelStep
from netsplit.simulate.simulator import Simulator
from netsplit.training.captures import checked_capture
from netsplit.training.options import Training
from netsplit.training.programs import Programs
from tests.builders import cpus
from tests.models_of_people import plain
from tests.models_of_people.cases import Case, Loaded
from tests.models_of_people.plain import STEPS, Tensors, Trained
from tests.nets import SGD

__all__ = ["DEVICES", "EQUAL", "FAILED", "REFUSED", "WRONG", "Outcome", "Split", "as_expected", "judge"]

EQUAL, REFUSED, FAILED, WRONG = "equal", "refused", "failed", "WRONG"
DEVICES = 3
BLOCKS = 40


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    equal: trained as the plain loop trains. refused: by a `NetSplitError`, whose text is `message`.
    failed: any other exception, so not silent, but nobody's reason. WRONG: trained, and other than the
    plain loop.

    capture_s: processor time. whole: nodes that are a module kept whole.
    """

    kind: str
    message: str = ""
    capture_s: float = 0.0
    operators: int = 0
    whole: int = 0


class Split:
    """A case, captured at its micro-batch's size, checked as `parallelize` does."""

    def __init__(self, case: Case) -> None:
        self.case = case
        loaded = plain.seeded(case)
        self.batches = [loaded.batch(iteration) for iteration in range(STEPS)]
        self.step = ModelStep(loaded.model, loaded.loss, self.batches[0], Training(SGD))
        whole = self.step.whole
        schedule = GPipe(case.microbatches)
        size = schedule.microbatch_size(whole.samples)
        example = whole.rows(0, size).own()
        begin = time.process_time()
        self.graph = capture(loaded.model, loaded.loss, example)
        self.capture_s = time.process_time() - begin
        check_capture(loaded.model, loaded.loss, self.graph, example)
        rest = whole.rows(whole.samples - whole.samples % size, whole.samples)
        tail = checked_capture(loaded.model, loaded.loss, rest.own()) if rest.samples else None
        if size < whole.samples:
            refuse_shared_writes(self.graph, whole)
        self.compiler = Simulator(
            self.graph, cpus(DEVICES), Costs({}, 1), schedule.for_batch(whole.samples), tail=tail
        )
        self.values = initial_values(loaded.model, self.graph, loaded.loss)
        self.names = _names(loaded, self.values)
        self.loaded = loaded

    @property
    def random(self) -> bool:
        """Whether any operator may draw from torch's generator."""
        return any(node_draws(node) for node in self.graph)

    def drawing(self, iteration: int, i: int) -> AbstractContextManager[Any]:
        """For the plain loop: micro-batch i draws as the split model's does."""
        program = self._plan(GPipe(self.case.microbatches), random.Random(0), DEVICES)
        trained = program.training(program.batch(*self.batches[iteration]))
        last = i == trained.microbatches - 1
        return draws(trained.tail if last and trained.tail is not None else trained.graph, 0, iteration, i)

    def schedules(self) -> list[Schedule]:
        return [GPipe(self.case.microbatches), ZBH1(self.case.microbatches, recompute=True)]

    def train(self, schedule: Schedule, drawing: random.Random, devices: int = DEVICES) -> Trained:
        """From the values at capture, by a drawn placement, on all batches; the state is the graph's."""
        torch.manual_seed(7)
        programs = self._plan(schedule, drawing, devices)
        values = {k: t.detach().clone().requires_grad_(t.requires_grad) for k, t in self.values.items()}
        runtime = LocalRuntime(programs.program, cpus(DEVICES), values, SGD)
        losses = []
        for batch in self.batches:
            flat = programs.batch(*batch)
            program = programs.training(flat)
            _hold_constants(runtime, program)
            losses.append(runtime.train_batch(flat, program=program))
        return Trained(
            losses, {k: t for name, t in runtime.state().items() for k in self.names.get(name, ())}
        )

    def _plan(self, schedule: Schedule, drawing: random.Random, devices: int) -> Programs:
        asked = schedule.with_microbatches(self.compiler.schedule.microbatches)
        compiler, step = replace(self.compiler, schedule=asked), self.step
        names = [device.name for device in compiler.cluster.devices][:devices]
        device_of, priority = drawn(self.graph, names, drawing)
        placement = Placement("drawn", device_of, priority, SolverReport("heuristic", 0.0))
        program = compiler.program(placement)
        return Programs(compiler, placement, program, step.captures, step.whole.key, step.known)


def _hold_constants(runtime: LocalRuntime, program: Program) -> None:
    """What a program for other shapes brings along, on the devices that read it."""
    for name in program.devices:
        for k in program.held[name]:
            runtime.shares[name].tensors.setdefault(k, program.graph.constants.get(k))


def _names(loaded: Loaded, own: Tensors) -> dict[str, list[str]]:
    """Initializer -> all names the model, or the loss, has for that very tensor."""
    names: dict[int, list[str]] = {}
    for prefix, module in (("", loaded.model), ("loss.", loaded.loss)):
        if isinstance(module, torch.nn.Module):
            for named in (module.named_parameters, module.named_buffers):
                for k, t in named(remove_duplicate=False):
                    names.setdefault(id(t), []).append(prefix + k)
    return {k: names.get(id(t), []) for k, t in own.items()}


def drawn(graph: Graph, devices: list[str], drawing: random.Random) -> tuple[dict[str, str], dict[str, int]]:
    """Any topological order as priority, and any device for each of its nodes; colocated sets are kept.

    Of a large graph, for each of `BLOCKS` stretches of that order: every segment costs the runtime a module.
    """
    waiting = {name: len(graph.predecessors[name]) for name in graph.nodes}
    ready = [name for name, count in waiting.items() if count == 0]
    priority: dict[str, int] = {}
    while ready:
        name = ready.pop(drawing.randrange(len(ready)))
        priority[name] = len(priority)
        for v in graph.successors[name]:
            waiting[v] -= 1
            if waiting[v] == 0:
                ready.append(v)
    length = max(1, -(-len(priority) // BLOCKS))
    device_of = {}
    for name, place in priority.items():
        if place % length == 0:
            device = drawing.choice(devices)
        device_of[name] = device
    for group in graph.colocated:
        device_of.update(dict.fromkeys(group, device_of[group[0]]))
    return device_of, priority


def judge(case: Case, seed: int = 0) -> Outcome:
    """Train the case plainly and split, two steps each, in double precision; compare all there is to see.

    Raises:
        Whatever the plain loop raises: the case itself is broken then.
    """
    with plain.double(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted, before = plain.train_plainly(case)
        _check_case(case, wanted, before)
        try:
            split = Split(case)
        except Exception as error:
            return _raised(error)
        whole = sum(isinstance(call, ModuleCall) for call in split.graph.calls.values())
        outcome = Outcome(EQUAL, "", split.capture_s, len(split.graph), whole)
        try:
            return _compared(split, wanted, before, outcome, random.Random(f"{case.name} {seed}"))
        except Exception as error:
            raised = _raised(error)
            return replace(outcome, kind=raised.kind, message=raised.message)


def _compared(
    split: Split, wanted: Trained, before: Tensors, outcome: Outcome, drawing: random.Random
) -> Outcome:
    now = Trained([], plain.tensors_of(split.loaded.model, split.loaded.loss))
    message = _difference(now, Trained([], before), before, 0.0)
    if message:
        return replace(outcome, kind=WRONG, message=f"capture changed the model: {message}")
    if split.random:
        wanted, _ = plain.train_plainly(split.case, split.drawing)
    for schedule in split.schedules():
        message = _difference(split.train(schedule, drawing), wanted, before, split.case.tolerance)
        if message:
            return replace(outcome, kind=WRONG, message=f"{schedule.name}: {message}")
    return outcome


def _check_case(case: Case, wanted: Trained, before: Tensors) -> None:
    """The plain loop itself trains something: else equality would say nothing."""
    assert all(torch.tensor(wanted.losses).isfinite()), f"{case.name}: losses {wanted.losses}"
    changed = [k for k, t in before.items() if not torch.equal(t, wanted.state[k])]
    assert changed, f"{case.name}: two steps of the plain loop change nothing"


def _raised(error: Exception) -> Outcome:
    if isinstance(error, NetSplitError):
        return Outcome(REFUSED, str(error))
    frames = traceback.extract_tb(error.__traceback__)
    last = next((frame for frame in reversed(frames) if "netsplit" in frame.filename), frames[-1])
    first = next(iter(str(error).splitlines()), "")
    return Outcome(FAILED, f"{type(error).__name__}: {first} ({last.name}, line {last.lineno})")


def _difference(trained: Trained, wanted: Trained, before: Tensors, tolerance: float) -> str:
    """The first difference in words; empty where there is none. What is not found is as it was `before`."""
    for step, (a, b) in enumerate(zip(trained.losses, wanted.losses, strict=True)):
        if not abs(a - b) <= tolerance * max(1.0, abs(b)):
            return f"the loss of step {step} is {a:.10g}, not {b:.10g}"
    for k, tensor in wanted.state.items():
        other = trained.state.get(k, before.get(k))
        if other is None:
            return f"'{k}' is missing"
        if other.shape != tensor.shape or other.dtype != tensor.dtype:
            return f"'{k}' is {other.dtype} {tuple(other.shape)}, not {tensor.dtype} {tuple(tensor.shape)}"
        if not torch.allclose(other, tensor, rtol=tolerance, atol=tolerance, equal_nan=True):
            far = (other.to(torch.complex128) - tensor.to(torch.complex128)).abs().max().item()
            return f"'{k}' differs by {far:.2g}"
    return ""


def as_expected(case: Case, outcome: Outcome) -> str:
    """Empty where the outcome is what the case asks for; else what is amiss."""
    if outcome.kind in (WRONG, FAILED):
        return f"{outcome.kind}: {outcome.message}"
    if outcome.kind == EQUAL:
        return "trained, although it was to be refused" if case.expect == "refused" else ""
    if case.expect == "equal":
        return f"refused: {outcome.message}"
    said = re.sub(r"\S+\.py\b", "", outcome.message)  # a file's name is no reason
    if re.search(case.reason, said, re.IGNORECASE) is None:
        return f"refused, but not for '{case.reason}': {outcome.message}"
    return ""
