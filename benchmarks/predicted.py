"""What it costs to plan from predicted seconds (`profile=predicted`) instead of measured ones.

    a model:  captured once ─► costs predicted, costs measured ─► a plan of each, both kept on two workers
    a round:  both plans in turn, and that of the measured costs again, which gives the noise floor

Ratios are made within a round, so that a slow minute hits both; of the rounds' the median counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks._command import command_parser
from benchmarks._ours import Ours
from benchmarks._rounds import Contender, Ratio, Rounds
from benchmarks.captured import CAPTURED, composed
from netsplit.config import build
from netsplit.data.reading.loader import batches
from netsplit.files import write_json
from netsplit.partition import METHODS
from netsplit.profile.costs import Costs
from netsplit.session.request import without_reading

DEFAULT = ("resnet152_small", "vgg19_small", "gpt_small", "unet_small", "amoebanet_d_small")
STEPS = 2  # of a contender in one round


@dataclass(frozen=True)
class Configured:
    """A model of `conf/model` with the first batch of its data, as `Ours` takes it."""

    words: str  # of `CAPTURED`

    @property
    def name(self) -> str:
        return self.words.split()[0]

    def fresh(self) -> nn.Module:
        model: nn.Module = build(composed(self.words, "cpu2").model)
        return model.train()

    def batch(self, microbatches: int) -> tuple[Tensor, Tensor]:
        cfg = composed(self.words, "cpu2")
        first: Any = next(
            batches(build(without_reading(cfg)[0].dataset).train, cfg.batch_size, seed=cfg.seed)
        )
        return first


@dataclass(frozen=True)
class Result:
    """The result for one model. Seconds; errors are predicted / measured, less 1."""

    model: str
    operators: int
    measuring_s: float
    predicting_s: float
    slower: Ratio  # iteration of the plan from predicted costs / of that from measured ones
    work: float  # processor seconds likewise, which other programs hardly move
    floor: Ratio  # the plan from measured costs again / the first time in the round
    iteration_s: tuple[float, float]  # measured, median: plan from measured costs, from predicted ones
    errors: tuple[float, float]  # of the iteration, likewise, each by the costs that it was made of
    node_sum_error: float  # of all operators' seconds, predicted beside measured
    node_median_error: float  # of |predicted / measured - 1| over the operators


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=140)
    results = []
    for words in CAPTURED:
        if words.split()[0] in options.models:
            results.append(_contest(Configured(words), options))
            console.print(_table(results[-1:]))
    console.print(_table(results))
    if options.json is not None:
        write_json(options.json, [asdict(result) for result in results])
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("predicted", __doc__)
    names = [words.split()[0] for words in CAPTURED]
    parser.add_argument("--models", nargs="+", choices=names, default=DEFAULT)
    parser.add_argument("--partitioner", choices=sorted(METHODS), default="auto")
    parser.add_argument("--rounds", type=int, default=15, help="times both plans run in turn (15)")
    parser.add_argument("--json", type=Path, help="file for all results")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}: give at least 1")
    return options


def _contest(subject: Configured, options: argparse.Namespace) -> Result:
    schedule = build(composed(subject.words, "cpu2").schedule)
    ours = Ours(subject, schedule.microbatches, schedule, profile="predicted")
    try:
        predicting_s, predicted = _timed(ours.costs)
        ours.session.profile = "off"
        measuring_s, measured = _timed(ours.costs)
        plans = {}
        for name, costs in (("measured", measured), ("predicted", predicted)):
            ours.problem = ours.problem.moved_to(ours.problem.cluster, costs)
            plans[name] = ours.deploy(name, METHODS[options.partitioner](), schedule)
        turns = [*plans.items(), ("again", plans["measured"])]
        rounds = Rounds(
            [Contender(name, partial(_steps, ours, each), each.ready, pids=each.pids) for name, each in turns]
        )
        rounds.warm_up()
        for _ in range(options.rounds):
            rounds.round()
    finally:
        ours.close()
    took = {name: statistics.median(rounds.seconds[name]) / STEPS for name in plans}
    promised = {name: each.plan.simulated[1].iteration_s for name, each in plans.items()}
    return Result(
        subject.name,
        len(ours.problem.graph),
        measuring_s,
        predicting_s,
        rounds.ratio("predicted", "measured"),
        rounds.work("predicted", "measured"),
        rounds.ratio("again", "measured"),
        (took["measured"], took["predicted"]),
        tuple(promised[name] / took[name] - 1 for name in plans),
        *_node_errors(measured, predicted),
    )


def _timed(costs: Callable[[], Costs]) -> tuple[float, Costs]:
    start = time.perf_counter()
    answer = costs()
    return time.perf_counter() - start, answer


def _steps(ours: Ours, each: Any) -> None:
    for _ in range(STEPS):
        ours.step(each)


def _node_errors(measured: Costs, predicted: Costs) -> tuple[float, float]:
    (kind,) = measured.devices
    pairs = [
        (each.total_s, predicted.total_s(name, kind)) for name, each in measured.devices[kind].nodes.items()
    ]
    whole = sum(there for _, there in pairs) / sum(here for here, _ in pairs) - 1
    return whole, statistics.median(abs(there / here - 1) for here, there in pairs if here > 0)


def _table(results: list[Result]) -> Table:
    table = Table(title="Plans from predicted and from measured costs", title_justify="left")
    table.add_column("model")
    for column in (
        "operators", "measuring s", "predicting s", "measured: ms, error", "predicted: ms, error",
        "predicted / measured", "work", "floor", "operators' sum", "node median",
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for each in results:
        table.add_row(
            each.model,
            str(each.operators),
            f"{each.measuring_s:.1f}",
            f"{each.predicting_s:.1f}",
            *(f"{1e3 * s:.0f}, {100 * e:+.0f} %" for s, e in zip(each.iteration_s, each.errors, strict=True)),
            str(each.slower),
            f"{each.work:.2f}",
            str(each.floor),
            f"{100 * each.node_sum_error:+.0f} %",
            f"{100 * each.node_median_error:.0f} %",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
