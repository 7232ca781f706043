"""A placed model under another plan: training, prediction and other batches go on; what cannot is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch

from netsplit.errors import NetSplitError
from netsplit.graph import capture
from netsplit.optim.optimizers import for_model
from netsplit.partition import Ddp, MTopo, Random, Single
from netsplit.partition.base import Problem
from netsplit.partition.partitioner import Choice, Partitioner
from netsplit.planning.plan import Plan
from netsplit.planning.whole.judge import problem_under
from netsplit.program import GPipe, OneFOneB
from netsplit.program.schedules import AsyncOneFOneB
from netsplit.rewrite import along_samples, applied, replicate
from netsplit.session.session import Session
from netsplit.session.step import ModelStep
from netsplit.training.epochs import fit
from netsplit.training.parallel import ParallelModel
from tests.builders import costs_of
from tests.nets import CASES, SGD, TOLERANCE, Case
from tests.rewrite.test_copies import by_number
from tests.runtime.checkpoint.test_checkpoint import planned, samples_of
from tests.workers import Pools, lent_session

CHAIN = CASES["chain"]


@pytest.fixture(scope="module")
def session(pools: Pools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with lent_session(pools, tmp_path_factory.mktemp("workers")) as lent:
        yield lent


def step_of(case: Case = CHAIN) -> tuple[ModelStep, Plan]:
    return planned(case, for_model(SGD, case.fresh(), case.loss), MTopo())


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=TOLERANCE, atol=TOLERANCE)


def trained(model: ParallelModel, plans: list[Plan], sizes: tuple[int, ...] = (8, 8, 5)) -> list[float]:
    """Some batches by each plan, of which the last is smaller, with a prediction after each."""
    losses = []
    for n, plan in enumerate(plans):
        if n:
            model.switch(plan)
            assert model.summary().lines == plan.summary().lines
        losses += [model.train_batch(*CHAIN.another(10 * n + size, size)) for size in sizes]
        model.predict(CHAIN.another(3, 3)[0])
    return losses


def test_copies_of_weights_come_and_go(session: Session) -> None:
    """The first plan has operators in halves and no copies, the second each half on its own weights."""
    step, first = step_of()
    plans = [step.plan(first.asked, Halves(copies)) for copies in (False, True)]
    model = session.deploy(step, plans[0])
    losses = trained(model, [*plans, *plans], (8, 8, 6))
    state = model.state_dict()
    unmoved = session.deploy(step, plans[0])
    wanted = []
    for n in range(4):
        wanted += [unmoved.train_batch(*CHAIN.another(10 * n + size, size)) for size in (8, 8, 6)]
    assert losses == pytest.approx(wanted, rel=TOLERANCE)
    close(state, unmoved.state_dict())


@dataclass
class Halves(Partitioner):
    """Data parallelism of one batch on two devices."""

    copies: bool
    name = "halves"

    def choose(self, problem: Problem) -> Choice:
        rewrites = (replicate if self.copies else along_samples)(problem.graph, 2)
        return Choice(by_number(applied(problem.graph, rewrites)), rewrites=rewrites)


def test_workers_that_read_their_batches_read_on_after_a_switch(session: Session) -> None:
    """The device that is fed changes with the plan."""
    step, first = step_of()
    every = [step.plan(replace(first.asked, seed=seed), Random()) for seed in range(4)]
    model = session.deploy(step, first)

    class Switching:
        def iteration(self, done: object) -> None:
            model.switch(every[model.trained_batches % 4])

        def epoch(self, done: object) -> None:
            pass

    history = fit(model, replace(samples_of(CHAIN), read_by="workers"), epochs=3, observer=Switching())
    state = model.state_dict()
    unmoved = session.deploy(step, first)
    wanted = fit(unmoved, samples_of(CHAIN), epochs=3)
    assert [each.loss for each in history.iterations] == pytest.approx(
        [each.loss for each in wanted.iterations], rel=TOLERANCE
    )
    close(state, unmoved.state_dict())


def frozen() -> Case:
    def build() -> torch.nn.Module:
        made = CHAIN.build()
        next(made.parameters()).requires_grad_(False)
        return made

    return replace(CHAIN, name="frozen", build=build)


def smoothed() -> Case:
    return replace(CHAIN, name="smoothed", loss=torch.nn.CrossEntropyLoss(label_smoothing=0.5))


def _captured_anew(step: ModelStep, plan: Plan, case: Case) -> tuple[ModelStep, Problem]:
    made = case.fresh()
    graph = capture(made, case.loss, case.another(0, 2))
    again, asked = replace(step, model=made, loss=case.loss), plan.asked
    costs = costs_of(graph, 1e-4, 2e-4, alpha=3)
    return again, again.problem(graph, costs, asked.cluster, plan.compiler.schedule)


def test_what_would_train_something_else_is_refused_and_training_goes_on(session: Session) -> None:
    step, first = step_of()
    model = session.deploy(step, first)
    with pytest.raises(NetSplitError, match="other micro-batches"):
        model.switch(step.plan(problem_under(first.asked, GPipe(2)), MTopo()))
    stepping = AsyncOneFOneB(first.compiler.schedule.microbatches)
    with pytest.raises(NetSplitError, match="steps within a batch"):
        model.switch(step.plan(problem_under(first.asked, stepping), MTopo()))
    with pytest.raises(NetSplitError, match="another model"):
        model.switch(step_of(CASES["two_heads"])[1])
    for training in (frozen, smoothed):
        again, problem = _captured_anew(step, first, training())
        with pytest.raises(NetSplitError, match="another loss or other trained parameters"):
            model.switch(again.plan(problem, MTopo()))
    clipped = replace(step, training=replace(step.training, clip_norm=0.1))
    problem = _captured_anew(clipped, first, CHAIN)[1]
    with pytest.raises(NetSplitError, match="gradients are clipped or scaled under only one"):
        model.switch(clipped.plan(problem, MTopo()))
    with pytest.raises(NetSplitError, match="would become one for each replica"):
        model.switch(step.plan(first.asked, Ddp()))
    assert model.plan is first
    again, problem = _captured_anew(step, first, CHAIN)
    order = OneFOneB(first.compiler.schedule.microbatches)
    model.switch(again.plan(problem_under(problem, order), Single()))
    assert model.plan.problem.the_simulator.schedule.name == "1f1b"
    assert model.train_batch(*CHAIN.batch()) > 0
