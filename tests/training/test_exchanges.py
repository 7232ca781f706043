"""Plans whose devices hand variables on, beside all that a training does: it stays the plain loop's."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given as tried_on
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from netsplit.cluster.cluster import Cluster, Link, nics_of
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.placement.exchange import ExchangeName
from netsplit.planning.plan import Plan
from netsplit.program import GPipe, Schedule
from netsplit.program.schedules import ZBH1, EagerOneFOneB, OneFOneB
from netsplit.rewrite import ReadWeights, Rewrite, applied
from netsplit.session.session import Session
from netsplit.session.step import ModelStep
from netsplit.training.options import Training
from netsplit.training.parallel import ParallelModel
from tests.builders import costs_of, cpus
from tests.examples import tried
from tests.nets import CASES, SGD, Case
from tests.runtime.equivalence.running import PATIENT, assert_same, captured
from tests.runtime.references import Batch as Samples
from tests.runtime.references import Trained, plain_loop
from tests.workers import LentPool, Pools, cpu_workers

SCHEDULES: tuple[Schedule, ...] = (GPipe(4), OneFOneB(4), EagerOneFOneB(4), ZBH1(4))
SIZE = 2  # of a micro-batch
WEIGHED = ("linear", "conv2d", "layer_norm")


def two_hosts(devices: int) -> Cluster:
    """Half of the devices on each; between them a byte takes a hundred times as long."""
    near = cpus(devices)
    names = [device.name for device in near.devices]
    hosts = {"a": names[: devices // 2], "b": names[devices // 2 :]}
    far = Link(1e-4, 1e-6)
    links = {
        (p, q): link if (p in hosts["a"]) == (q in hosts["a"]) else far for (p, q), link in near.links.items()
    }
    return replace(near, links=links, nics=nics_of(hosts, links))


@dataclass
class Scattered(Partitioner):
    """Any device for every operator."""

    rewrites: tuple[Rewrite, ...] = ()
    name = "scattered"
    respects_capacity = False

    def choose(self, problem: Problem) -> Choice:
        graph = applied(problem.graph, self.rewrites) if self.rewrites else problem.graph
        draw, names = random.Random(problem.seed), [device.name for device in problem.cluster.devices]
        device_of = {name: draw.choice(names) for name in graph.nodes}
        for group in (*graph.colocated, *graph.units):
            device_of.update(dict.fromkeys(group, device_of[group[0]]))
        return Choice(device_of, rewrites=self.rewrites)


@dataclass(frozen=True)
class Subject:
    """What is trained, and how."""

    case: Case
    schedule: Schedule
    clip_norm: float | None = None
    rewrites: tuple[Rewrite, ...] = field(default=(), repr=False)

    def step(self) -> ModelStep:
        inputs, targets = self.case.another(0, 8)
        training = Training(SGD, clip_norm=self.clip_norm)
        return ModelStep(self.case.fresh(), self.case.loss, (given(inputs), targets), training)

    def plan(self, step: ModelStep, exchange: ExchangeName, seed: int) -> Plan:
        graph, schedule = captured(self.case.name, SIZE), replace(self.schedule, exchange=exchange)  # type: ignore[type-var]
        problem = step.problem(graph, costs_of(graph, 1e-4, 2e-4, alpha=3), two_hosts(4), schedule)
        return step.plan(replace(problem, seed=seed), Scattered(self.rewrites))

    def plain(self, batches: list[Samples], group: int = 1) -> Trained:
        case = self.case
        return plain_loop(case.fresh(), case.loss, batches, SIZE, SGD, group=group, clip_norm=self.clip_norm)


@dataclass(frozen=True)
class Leg:
    """A part of a training: the plan it goes on by, how it gets there, and its batches."""

    exchange: ExchangeName
    seed: int
    switched: bool  # or by a checkpoint, on a model that is put on the workers anew
    sizes: tuple[int, ...]


@pytest.fixture(scope="module")
def session(pools: Pools, tmp_path_factory: pytest.TempPathFactory) -> Session:
    lent = LentPool(pools(4))
    return Session(cpu_workers(4), tmp_path_factory.mktemp("workers"), _pool=lent)  # type: ignore[arg-type]


def batch_of(case: Case, number: int, size: int) -> Samples:
    """Every fourth is of pictures of another size, where there are pictures."""
    inputs, targets = case.another(number, size)
    if number % 4 == 3 and inputs[0].dim() == 4 and case.name == "u_shape":
        inputs = (torch.nn.functional.pad(inputs[0], (0, 4, 0, 4), value=0.5),)
    return inputs, targets


def given(inputs: tuple[Tensor, ...]) -> Any:
    """As people give them: one alone, or several."""
    return inputs if len(inputs) > 1 else inputs[0]


def predicts_as_plain(model: ParallelModel, case: Case, inputs: tuple[Tensor, ...]) -> None:
    plain = case.fresh()
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        wanted = plain.eval()(*inputs)
    own = model.predict(given(inputs))
    torch.testing.assert_close(own, wanted, rtol=1e-9, atol=1e-9)


@st.composite
def subjects(draw: st.DrawFn) -> Subject:
    name = draw(st.sampled_from(("attention", "fan", "tied", "u_shape", "cells", "two_inputs")))
    return Subject(
        CASES[name], draw(st.sampled_from(SCHEDULES)), draw(st.sampled_from((None, 0.05)))
    )  # fmt: skip


@st.composite
def legs(draw: st.DrawFn, group: int) -> Leg:
    sizes = draw(st.lists(st.sampled_from((8, 5, 3, 12)), min_size=1, max_size=2))
    return Leg(
        draw(st.sampled_from(("broadcast", "auto", "send_receive"))),
        draw(st.integers(0, 99)),
        draw(st.booleans()),
        tuple(sizes * group),
    )  # fmt: skip


@settings(PATIENT, max_examples=tried(3))
@tried_on(data=st.data())
def test_any_plans_one_after_another_are_one_training(session: Session, data: st.DataObject) -> None:
    """By switches and by checkpoints, with accumulated gradients, clipped norms, other sizes and shapes,
    weights that travel once a step, and predictions in between."""
    subject = data.draw(subjects())
    case, step = subject.case, subject.step()
    graph = captured(case.name, SIZE)
    users = [node.name for node in graph if node.initializers and node.kind in WEIGHED]
    if read := data.draw(st.lists(st.sampled_from(users), unique=True, max_size=2), label="read elsewhere"):
        subject = replace(subject, rewrites=tuple(ReadWeights(name) for name in read))
    group = data.draw(st.sampled_from((1, 2)), label="group")
    losses, batches = list[float](), list[Samples]()
    model: ParallelModel | None = None
    with TemporaryDirectory() as folder:
        for leg in (data.draw(legs(group)) for _ in range(3)):
            plan = subject.plan(step, leg.exchange, leg.seed)
            if model is not None and leg.switched:
                model.switch(plan)
            else:
                if model is not None:
                    model.save_checkpoint(folder)
                again = session.deploy(step, plan)
                if model is not None:
                    again.load_checkpoint(folder)
                model = again
            for start in range(0, len(leg.sizes), group):
                together = leg.sizes[start : start + group]
                for n, size in enumerate(together):
                    batches.append(batch_of(case, len(batches), size))
                    inputs, targets = batches[-1]
                    losses.append(
                        model.train_batch(
                            given(inputs), targets, fraction=size / sum(together), step=n == len(together) - 1
                        )
                    )
            predicts_as_plain(model, case, batch_of(case, len(batches), 5)[0])
        assert model is not None
        assert_same(Trained(losses, model.state_dict()), subject.plain(batches, group))
