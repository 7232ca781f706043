"""The whole plan beside plans that were asked for by name, run in turn on CPU workers.

    decided:    `schedule=auto`, from operators measured at two sizes of micro-batches, running no plan
    by name:    methods x schedules x micro-batches that fit, each from operators measured at its own size
    a round:    all of them in a drawn order, and the whole plan again, which gives the noise floor

Those by name that take more than `--behind` times the fastest are left out after the warm-up. Ratios are made
within a round; of the rounds' the median counts. Above 1 the plan by name is slower than the whole plan.

The best by name is the least of many medians, chosen by the very rounds that judge it. Beside it stand the
one that was first in the two rounds before, those by name that are the whole plan's own program, deployed
once more (how far these are from 1 is noise of deployments, which the floor, one run twice, does not show),
and the best whose program is another, beside the median of all deployments of the whole plan's.

The finals: the whole plan, the best by name, and the first three by name whose programs are others, each
deployed three times more, in new rounds. A plan counts with the median of its deployments in a round; so
neither one deployment's luck nor the choice of the best among many is in the ratio. The first in the finals
is the best of the earlier rounds, judged by rounds that did not choose it; of the others, the least is said.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console

import netsplit
from benchmarks._command import command_parser
from benchmarks._ours import _keep, _use
from benchmarks._rounds import Contender, Ratio, Rounds, quartiles
from benchmarks.captured import CAPTURED, composed
from netsplit.config import build
from netsplit.data.reading.loader import batches
from netsplit.errors import NetSplitError
from netsplit.files import write_json
from netsplit.partition import METHODS
from netsplit.planning.whole.auto_schedule import AutoSchedule
from netsplit.planning.whole.judge import problem_under
from netsplit.program import Program
from netsplit.program.schedules import SCHEDULES
from netsplit.session.request import without_reading
from netsplit.session.session import Session
from netsplit.tables import Column, Table
from netsplit.training.options import Training
from netsplit.training.parallel import ParallelModel

WHOLE, AGAIN = "whole plan", "whole plan again"
MODELS = ("gpt_small", "resnet152_small", "unet_small", "vgg19_small", "wide_resnet152_small")
NAMED = ("single", "ddp", "balanced", "m_topo", "pipedream")
ORDERS = ("gpipe", "1f1b", "zb_h1")
COUNTS = (2, 4, 8)
FINALISTS = DEPLOYED = 3  # of other programs, and deployments of each in the finals


@dataclass(frozen=True)
class RunRow:
    """A model on so many workers. Ratios are seconds of what is named / seconds of the whole plan."""

    model: str
    workers: int
    capacity: str
    whole: str  # what was decided, in words
    decided_s: float  # measuring included
    predicted_s: float
    iteration_s: float  # measured, median
    floor: Ratio
    best: str  # of those by name, as measured; empty: none fits
    ratio: Ratio | None  # of the best
    before: Ratio | None  # of the one by name that was first in the two rounds before
    same: list[float]  # of those by name whose program is the whole plan's
    another: Ratio | None  # the best of another program / the median of all deployments of the whole plan's
    finals: dict[str, Ratio]  # of the best, then of the first other programs, all deployed anew
    others: dict[str, float]  # by name -> ratio of those that ran all rounds
    tried: int


def main() -> None:
    options = _options()
    console, rows = Console(stderr=True), []
    for words in CAPTURED:
        for workers in options.workers if words.split()[0] in options.models else ():
            rows.append(measured(words, workers, options))
            console.print(_said(rows[-1]), highlight=False)
            if options.json is not None:
                write_json(options.json, [asdict(row) for row in rows])
    print(_table(rows).markdown())


def measured(words: str, workers: int, options: argparse.Namespace) -> RunRow:
    """Decide, deploy all, run them in turn."""
    cfg = composed(words, "cpu2")
    batch: Any = next(batches(build(without_reading(cfg)[0].dataset).train, cfg.batch_size, seed=cfg.seed))
    with tempfile.TemporaryDirectory(prefix="netsplit-bench-", ignore_cleanup_errors=True) as folder:
        spec = replace(netsplit.cpu_cluster(workers, options.capacity), timeout_s=120.0)
        kept = Path(folder, "profiles")
        with Session(spec, Path(folder, "workers"), profile="reuse", profile_cache=kept) as session:
            began = perf_counter()
            subject = (build(cfg.model).train(), build(cfg.loss), batch)
            open_ = AutoSchedule(time_limit_s=options.time_limit)
            step = session.step(*subject, Training(build(cfg.optimizer)))
            plan = session.plan(step, open_, METHODS["auto"]())
            decided_s = perf_counter() - began
            plans = {WHOLE: (step, plan)} | {name: made for name, *made in _by_name(session, cfg, batch)}
            models = {name: _deployed(session, *made, name) for name, made in plans.items()}
            rounds, first = _raced(session, models, batch, options)
            program = models[WHOLE].runtime.program
            same = {name for name, model in models.items() if _alike(model.runtime.program, program)}
            ran = [name for name in models if name != WHOLE and rounds.has(name)]
            ratios = {name: rounds.ratio(name, WHOLE) for name in ran}
            going = _finalists(
                {name: models[name] for name in sorted(ran, key=lambda n: ratios[n].median)}, same
            )
            finals = _finals(session, {name: plans[name] for name in (WHOLE, *going)}, batch, options)
    best = min(ratios, key=lambda name: ratios[name].median, default="")
    seconds = sorted(rounds.seconds[WHOLE])
    return RunRow(
        words.split()[0], workers, str(options.capacity), plan.lines[0], decided_s,
        plan.simulated[1].iteration_s, seconds[len(seconds) // 2], rounds.ratio(AGAIN, WHOLE), best,
        ratios.get(best), rounds.ratio(first, WHOLE) if first else None,
        [ratios[name].median for name in ran if name in same],
        _another(rounds, [name for name in ran if name not in same], [WHOLE, AGAIN, *(same & {*ran})]),
        finals, {name: ratio.median for name, ratio in ratios.items()}, len(models) - 1,
    )  # fmt: skip


def _finalists(models: dict[str, ParallelModel], same: set[str]) -> list[str]:
    """The first of `models`, the fastest first, and one of each program that is not among the `same`."""
    others: list[str] = []
    for name, model in models.items():
        before = [models[each].runtime.program for each in others]
        if name not in same and not any(_alike(model.runtime.program, each) for each in before):
            others.append(name)
    return list(dict.fromkeys([*models][:1] + others[:FINALISTS]))


def _finals(
    session: Session, plans: dict[str, tuple[Any, Any]], batch: Any, options: argparse.Namespace
) -> dict[str, Ratio]:
    """Name -> ratio to the whole plan, each by the median of its new deployments in a round."""
    if len(plans) == 1:
        return {}
    of = {name: [f"{name}, deployment {turn}" for turn in range(DEPLOYED)] for name in plans}
    models = {each: _deployed(session, *plans[name], each) for name in plans for each in of[name]}
    rounds = _turns(session, models, list(models), batch, options.rounds)
    whole = _medians(rounds, of.pop(WHOLE))
    return {name: _over(_medians(rounds, deployments), whole) for name, deployments in of.items()}


def _medians(rounds: Rounds, names: list[str]) -> list[float]:
    """The median of these in every round."""
    return [statistics.median(turn) for turn in zip(*(rounds.seconds[name] for name in names), strict=True)]


def _over(above: list[float], below: list[float]) -> Ratio:
    return quartiles([a / b for a, b in zip(above, below, strict=True)])


def _another(rounds: Rounds, others: list[str], own: list[str]) -> Ratio | None:
    """The least ratio of the `others` to what the deployments `own` took in the median of a round."""
    took = _medians(rounds, own)
    made = [_over(rounds.seconds[name], took) for name in others]
    return min(made, key=lambda ratio: ratio.median, default=None)


def _by_name(session: Session, cfg: Any, batch: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, step and plan of each that fits; where nothing depends on the schedule, under one alone."""
    for m in COUNTS:
        subject = (build(cfg.model).train(), build(cfg.loss), batch)
        step = session.step(*subject, Training(build(cfg.optimizer)))
        problem = session.problem(step, SCHEDULES["1f1b"]().with_microbatches(m))
        for method in NAMED:
            for order in ORDERS if method not in ("single", "ddp") else ORDERS[1:2]:
                under = problem_under(problem, SCHEDULES[order]().with_microbatches(m))
                try:
                    plan = step.plan(under, METHODS[method]())
                except NetSplitError:
                    continue
                peaks, devices = plan.simulated[1].peak_bytes, problem.cluster.devices
                if all(peaks.get(each.name, 0) <= each.capacity_bytes for each in devices):
                    yield f"{method}, {order} x {m}", step, plan


def _deployed(session: Session, step: Any, plan: Any, name: str) -> ParallelModel:
    model = session.deploy(step, plan)
    session.pool.call(_keep, name)
    return model


def _raced(
    session: Session, models: dict[str, ParallelModel], batch: Any, options: argparse.Namespace
) -> tuple[Rounds, str]:
    """The rounds, and which plan by name was the fastest of them before they began."""
    before = Rounds([_contender(session, models, name, name, batch) for name in models])
    before.warm_up(2)
    before.round()
    before.round()
    took = {name: min(seconds) for name, seconds in before.seconds.items()}
    limit_s = options.behind * min(took.values())
    limit_s = max(limit_s, min((s for name, s in took.items() if name != WHOLE), default=0.0))
    going = [name for name in models if name == WHOLE or took[name] <= limit_s]
    rounds = _turns(session, models, going, batch, options.rounds, again=True)
    return rounds, min((name for name in going if name != WHOLE), key=took.__getitem__, default="")


def _turns(
    session: Session,
    models: dict[str, ParallelModel],
    going: list[str],
    batch: Any,
    times: int,
    again: bool = False,
) -> Rounds:
    """So many rounds, each in a drawn order: what runs before a plan has its share in what that takes."""
    rounds = Rounds([_contender(session, models, name, name, batch) for name in going])
    if again:
        rounds.contenders.append(_contender(session, models, AGAIN, WHOLE, batch))
    else:
        rounds.warm_up(2)
    draw = random.Random(0)
    for _ in range(times):
        draw.shuffle(rounds.contenders)
        rounds.round()
    return rounds


def _contender(
    session: Session, models: dict[str, ParallelModel], name: str, of: str, batch: Any
) -> Contender:
    def ready() -> None:
        session.pool.call(_use, of)
        session.pool.deployed = models[of].runtime
        session.pool.programs = {1: models[of].runtime.program}

    pids = tuple(hello.pid for hello in session.pool.hellos)
    return Contender(name, partial(models[of].train_batch, *batch), ready, pids=pids)


def _alike(one: Program, other: Program) -> bool:
    return (one.instructions, one.segments) == (other.instructions, other.segments)


def _said(row: RunRow) -> str:
    return (
        f"{row.model} on {row.workers}: {row.whole}; {1e3 * row.iteration_s:.0f} ms "
        f"(predicted {1e3 * row.predicted_s:.0f}), floor {row.floor}; "
        f"best by name {row.best or 'none fits'}: {row.ratio or ''}"
    )


def _table(rows: list[RunRow]) -> Table:
    columns = (
        Column("model", text=True), Column("workers"), Column("of each", text=True),
        Column("whole plan", text=True), Column("decided s", ",.0f"), Column("ms", ",.0f", 1e3),
        Column("predicted ms", ",.0f", 1e3), Column("floor", text=True), Column("best by name", text=True),
        Column("best by name / whole", text=True), Column("first before / whole", text=True),
        Column("same program / whole", text=True),
        Column("best of another program / all of this one", text=True), Column("finals", text=True),
        Column("by name"),
    )  # fmt: skip
    return Table(
        columns,
        [
            (
                row.model, row.workers, row.capacity, row.whole, row.decided_s, row.iteration_s,
                row.predicted_s, str(row.floor), row.best or "none fits", str(row.ratio or ""),
                str(row.before or ""),
                ", ".join(f"{ratio:.3f}" for ratio in row.same) or "none",
                str(row.another or "none"),
                "; ".join(f"{ratio} {name}" for name, ratio in row.finals.items()), row.tried,
            )
            for row in rows
        ],
    )  # fmt: skip


def _options() -> argparse.Namespace:
    parser = command_parser("whole_plan.measured", __doc__)
    names = [words.split()[0] for words in CAPTURED]
    parser.add_argument("--models", nargs="+", choices=names, default=list(MODELS), metavar="MODEL")
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--capacity", default="all", help="memory of each worker, such as 48MiB (all)")
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds of a decision (30)")
    parser.add_argument("--rounds", type=int, default=10, help="rounds of all plans in turn (10)")
    parser.add_argument(
        "--behind",
        type=float,
        default=1.25,
        help="leave out plans slower than this many times the fastest (1.25)",
    )
    parser.add_argument("--json", type=Path, help="file for the rows")
    return parser.parse_args()


if __name__ == "__main__":
    main()
