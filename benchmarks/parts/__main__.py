"""Operators in parts: whole plans with splits and without, Unity's, a plain loop, torch's tensor parallelism.

    plain       an ordinary loop in one process of one thread
    whole       `schedule=auto`, operators whole
    parts       `schedule=auto` with splits: true
    unity       `schedule=single_batch partitioner=unity`
    torch       torch.distributed.tensor.parallel, ColwiseParallel and RowwiseParallel by pairs, over gloo
    a round:    all of them in turn, each after a step that is not timed, as the one before left the caches
                its own; plain, unity and torch twice, which gives the noise floors

All make one step from the same parameters on the same batch first, and their updates must agree. Our
workers are joined by gloo, as torch's processes are; with `--memory` they read each other's memory. Ratios
are made within a round; of the rounds' the median counts. Under a capacity that a layer does not fit (a table
of `dlrm`, as its workers have it), whole operators are refused, and the row says so.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

import netsplit
from benchmarks._command import command_parser
from benchmarks._ours import _keep, _use
from benchmarks._rivals import OPTIMIZER, Plain
from benchmarks._rounds import Contender, Ratio, Rounds
from benchmarks.parts.models import MODELS
from benchmarks.parts.tensor_parallel import TensorParallel
from netsplit.errors import InfeasibleError
from netsplit.files import write_json
from netsplit.partition import METHODS
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.program import SingleBatch
from netsplit.session.session import Session
from netsplit.tables import Column, Table
from netsplit.training.options import Training
from netsplit.training.parallel import ParallelModel

PLAIN, WHOLE, PARTS, UNITY, TORCH = "plain", "whole", "parts", "unity", "torch"
SAME = 2e-3
"""Largest relative difference (of norms) between two ways' updates of a parameter, which add the same float32
gradients in another order and are read as differences of rounded parameters."""


@dataclass(frozen=True)
class PartsRow:
    """A model on so many workers. Ratios are of seconds; floors are of a thing to itself."""

    model: str
    workers: int
    capacity: str
    decided: dict[str, str]  # in words, or why there is nothing
    predicted_s: dict[str, float]
    seconds: dict[str, float]  # of a step, medians
    ratios: dict[str, Ratio]
    work: dict[str, float]  # ratios of processor seconds
    load: float  # of the machine, when it began


def main() -> None:
    options = _options()
    console, rows = Console(stderr=True, width=160), []
    for name in options.models:
        for workers in options.workers:
            rows.append(measured(name, workers, options))
            console.print(_said(rows[-1]), highlight=False)
            if options.json is not None:
                write_json(options.json, [asdict(row) for row in rows])
    print(_table(rows).markdown())


def measured(name: str, workers: int, options: argparse.Namespace) -> PartsRow:
    """Decide with and without splits, check one step of everything, run all in turn."""
    wide, load = MODELS[name], os.getloadavg()[0]
    plain, theirs = Plain(wide.subject, 1), TensorParallel(name, workers)
    capacity = options.capacity or wide.capacity.get(workers, "all")
    spec = netsplit.cpu_cluster(workers, capacity)
    spec = replace(spec, cross_memory=options.memory, timeout_s=120.0)
    try:
        with tempfile.TemporaryDirectory(prefix="netsplit-bench-", ignore_cleanup_errors=True) as folder:
            kept = Path(folder, "profiles")
            with Session(spec, Path(folder, "workers"), profile="reuse", profile_cache=kept) as session:
                models, told, predicted = _deployed(session, name, options)
                _agree(name, plain, theirs, models, session)
                rounds = _raced(session, models, plain, theirs, name, options)
    finally:
        plain.close()
        theirs.close()
    pairs = [(f"{each} again", each) for each in (PLAIN, UNITY, TORCH)]
    pairs += [(each, UNITY) for each in (PLAIN, WHOLE, PARTS, TORCH)]
    pairs += [(PLAIN, PARTS), (WHOLE, PARTS), (TORCH, PARTS), (PLAIN, WHOLE), (PLAIN, TORCH)]
    there = [(above, below) for above, below in pairs if rounds.has(above, below)]
    return PartsRow(
        name, workers, capacity, told, predicted,
        {each: median(took) / options.steps for each, took in rounds.seconds.items()},
        {f"{above} / {below}": rounds.ratio(above, below) for above, below in there},
        {f"{above} / {below}": rounds.work(above, below) for above, below in there}, load,
    )  # fmt: skip


def _deployed(
    session: Session, name: str, options: argparse.Namespace
) -> tuple[dict[str, ParallelModel], dict[str, str], dict[str, float]]:
    """Models on the workers, what was decided in words, and predicted seconds."""
    subject, models, told, predicted = MODELS[name].subject, {}, {}, {}
    for which in (WHOLE, PARTS, UNITY):
        open_ = AutoSchedule(options.microbatches, time_limit_s=options.time_limit, splits=which == PARTS)
        given = (subject.fresh(), nn.CrossEntropyLoss(), subject.batch(1))
        try:
            step = session.step(*given, Training(OPTIMIZER))
            order, method = (SingleBatch(), "unity") if which == UNITY else (open_, "auto")
            plan = session.plan(step, order, METHODS[method]())
        except InfeasibleError as refusal:
            told[which] = str(refusal)
            continue
        models[which] = session.deploy(step, plan)
        session.pool.call(_keep, which)
        told[which] = (
            plan.lines[0]
            if plan.choice.frontier
            else "; ".join([plan.placement.report.summary(), *plan.lines_on_parts])
        )
        predicted[which] = plan.simulated[1].iteration_s
    return models, told, predicted


def _agree(
    name: str, plain: Plain, theirs: TensorParallel, models: dict[str, ParallelModel], session: Session
) -> None:
    """One step from the same parameters is the same update everywhere."""
    subject = MODELS[name].subject
    before = subject.fresh().state_dict()
    plain.step()
    wanted = {k: t - before[k] for k, t in plain.state().items()}
    theirs.step()
    states: dict[str, dict[str, Tensor]] = {TORCH: theirs.state()}
    for which, model in models.items():
        _ready(session, models, which)
        model.train_batch(*subject.batch(1))
        states[which] = model.state_dict()
    least = 1e-3 * float(torch.stack([each.norm() for each in wanted.values()]).norm())
    for which, state in states.items():
        for key, update in wanted.items():
            off = float((state[key] - before[key] - update).norm() / (update.norm() + least))
            assert off < SAME, f"{which} updates '{key}' otherwise than plain PyTorch: {off:.2g}"


def _ready(session: Session, models: dict[str, ParallelModel], name: str) -> None:
    session.pool.call(_use, name)
    session.pool.deployed = models[name].runtime
    session.pool.programs = {1: models[name].runtime.program}


def _raced(
    session: Session,
    models: dict[str, ParallelModel],
    plain: Plain,
    theirs: TensorParallel,
    name: str,
    options: argparse.Namespace,
) -> Rounds:
    batch = MODELS[name].subject.batch(1)
    pids = tuple(hello.pid for hello in session.pool.hellos)

    def steps(step: Any) -> Any:
        def run() -> None:
            for _ in range(options.steps):
                step()

        return run

    def ours(name: str, of: str) -> Contender:
        train = partial(models[of].train_batch, *batch)

        def warm() -> None:
            _ready(session, models, of)
            train()

        return Contender(name, steps(train), warm, pids=pids)

    def others(name: str, of: Plain | TensorParallel) -> list[Contender]:
        names = name, f"{name} again"
        return [Contender(each, steps(of.step), of.step, pids=of.pids) for each in names]

    contenders = others(PLAIN, plain)
    contenders += [ours(each, each) for each in models]
    contenders += [ours(f"{UNITY} again", UNITY)] if UNITY in models else []
    contenders += others(TORCH, theirs)
    rounds = Rounds(contenders)
    rounds.warm_up()
    for _ in range(options.rounds):
        rounds.round()
    return rounds


def _said(row: PartsRow) -> str:
    ratios = "; ".join(f"{key} {ratio}" for key, ratio in row.ratios.items())
    work = "; ".join(f"{key} {ratio:.2f}" for key, ratio in row.work.items())
    decided = "\n  ".join(f"{which}: {told}" for which, told in row.decided.items())
    return (
        f"{row.model} on {row.workers} of {row.capacity} (load {row.load:.0f})\n  {decided}\n"
        f"  {ratios}\n  in CPU s: {work}"
    )


def _table(rows: list[PartsRow]) -> Table:
    shown = [f"{above} / {UNITY}" for above in (PLAIN, WHOLE, PARTS, TORCH)]
    floors = [f"{each} again / {each}" for each in (PLAIN, UNITY, TORCH)]
    columns = (
        Column("model", text=True), Column("workers"), Column("of each", text=True),
        Column("load", ",.0f"), Column("parts ms", ",.0f", 1e3), Column("unity ms", ",.0f", 1e3),
        Column("predicted ms", ",.0f", 1e3), *(Column(each, text=True) for each in (*shown, *floors)),
    )  # fmt: skip
    cells = [
        (
            row.model, row.workers, row.capacity, row.load, row.seconds.get(PARTS), row.seconds.get(UNITY),
            row.predicted_s.get(UNITY), *(str(row.ratios.get(each, "refused")) for each in (*shown, *floors)),
        )
        for row in rows
    ]  # fmt: skip
    return Table(columns, cells)


def _options() -> argparse.Namespace:
    parser = command_parser("parts", __doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="MODEL")
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 4])
    parser.add_argument(
        "--capacity", help="memory of each worker, such as 12MiB (all; dlrm: less than a table)"
    )
    parser.add_argument(
        "--microbatches", nargs="+", type=int, default=[1, 2, 4], help="counts to choose from (1 2 4)"
    )
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds of a decision (30)")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of all plans in turn (10)")
    parser.add_argument("--steps", type=int, default=3, help="iterations of each in a round (3)")
    parser.add_argument(
        "--memory", action="store_true", help="workers read each other's memory instead of using gloo"
    )
    parser.add_argument("--json", type=Path, help="file for the rows")
    return parser.parse_args()


if __name__ == "__main__":
    main()
