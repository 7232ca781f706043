"""The runtime against one device, its own simulator, and torch.distributed.pipelining.

    python -m benchmarks.runtime                    # four models, some minutes each
    python -m benchmarks.runtime --quick            # small ones, two minutes
    python -m benchmarks.runtime --quick --compile inductor   # and both compiled
    python -m benchmarks.runtime --models resnet50 --schedules 1f1b zb_h1 --rounds 20 --json raw.json

On two worker processes of one thread. Every figure is a ratio of things measured in turn in the same round;
the median over the rounds is given with its quartiles, and beside it the noise floor: the same thing against
itself, and the same ratio in processor seconds, which others on the machine hardly move (it says nothing of
waiting). The *ideal* is the simulator's iteration with costs measured in the same run; the *free ideal* has
computations as long as they were in the run, and transfers and instructions for nothing.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks._command import command_parser
from benchmarks._ours import Cut, Deployed, Ours, best_cut, free_ideal
from benchmarks._rivals import Plain, TorchPipeline
from benchmarks._rounds import Contender, Ratio, Rounds, quartiles
from benchmarks._subjects import SUBJECTS, Subject, subjects
from netsplit.api import SCHEDULES
from netsplit.errors import ConfigError
from netsplit.files import write_json
from netsplit.partition import Single
from netsplit.runtime.transport.handle import COMPILING_S
from netsplit.settings import check_backend
from netsplit.simulate.simulate import simulate
from netsplit.simulate.timeline import Timeline

ORDER = ("gpipe", "1f1b", "eager_1f1b", "interleaved_1f1b", "zb_h1")
LEAST_OF_IDEAL, MOST_OVERHEAD = 0.95, 1.02
SAME = 1e-2
"""Largest relative difference (of norms) between two ways' first updates of the parameters. They add the same
float32 gradients in another order, and the update is read as a difference of rounded parameters, which leaves
1e-4 to 1e-3; a gradient that is wrong or missing for one layer leaves far more."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Line:
    """A figure, with what is wanted of it."""

    what: str
    ratio: Ratio
    floor: Ratio | None
    wanted: str = ""
    met: bool | None = None
    work: float | None = None  # the same ratio in processor seconds


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=132)
    raw: dict[str, Any] = {"machine": platform.platform(), "torch": torch.__version__, "models": {}}
    failed = False
    for subject in subjects(options.quick, options.models):
        began = time.perf_counter()
        try:
            lines, raw["models"][subject.name] = _measured(subject, options, console.print)
        except Exception as error:
            failed = True
            console.print(f"{subject.name}: given up, {type(error).__name__}: {error}", markup=False)
            raw["models"][subject.name] = {"error": str(error)}
        else:
            console.print(_table(subject, lines, time.perf_counter() - began))
        if options.json is not None:
            write_json(options.json, raw)
    return 1 if failed else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("runtime", __doc__)
    parser.add_argument("--quick", action="store_true", help="small models, few rounds")
    parser.add_argument("--rounds", type=int, help="number of measurement rounds (12; quick: 5)")
    parser.add_argument("--models", nargs="+", choices=SUBJECTS, help="default: all")
    parser.add_argument("--schedules", nargs="+", choices=ORDER, help="default: all")
    parser.add_argument("--profile-every", type=int, default=4, help="rounds between profiles (4)")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--gloo", action="store_true", help="also ours over gloo, as between hosts")
    parser.add_argument(
        "--compile", metavar="BACKEND", help="also plain and ours with torch.compile, such as inductor"
    )
    parser.add_argument("--json", type=Path, help="file for every measured second")
    options = parser.parse_args(arguments)
    try:
        check_backend(options.compile, ["cpu"])
    except ConfigError as error:
        parser.error(str(error))
    options.rounds = options.rounds or (5 if options.quick else 12)
    options.schedules = [name for name in ORDER if name in SCHEDULES and name in (options.schedules or ORDER)]
    return options


class _Field:
    """All contenders on one model, in processes that stay."""

    def __init__(
        self,
        subject: Subject,
        microbatches: int,
        schedules: list[str],
        gloo: bool,
        backend: str | None,
        say: Say,
    ) -> None:
        self.subject, self.m, self.backend, self.say = subject, microbatches, backend, say
        self.closing: list[Callable[[], None]] = []
        self.theirs: TorchPipeline | None = None
        self.deployed: dict[str, Deployed] = {}
        self.by_gloo: dict[str, Deployed] = {}
        self.compiled: dict[str, Deployed] = {}
        self.plain_compiled: Plain | None = None
        self.traces: dict[str, list[Timeline]] = {}
        try:
            self._open(schedules, gloo)
        except BaseException:
            self.close()
            raise

    def _open(self, schedules: list[str], gloo: bool) -> None:
        self.plain = Plain(self.subject, self.m)
        self.closing.append(self.plain.close)
        if self.backend is not None:
            self.plain_compiled = Plain(self.subject, self.m, self.backend)
            self.closing.append(self.plain_compiled.close)
        self.ours = self._ours()
        cut = best_cut(self.ours.subject, self.ours.problem, 2 if self.subject.chain else 4)
        self.say(f"{self.subject.name}: cut before units {', '.join(map(str, cut.places))}")
        others = self._ours(gloo=True) if gloo else None
        alone = self._schedule("1f1b" if "1f1b" in SCHEDULES else "gpipe")
        self._deploy("single", Single(), alone)
        for name in schedules:
            finer = name == "interleaved_1f1b" and self.subject.chain
            places = best_cut(self.ours.subject, self.ours.problem, 4) if finer else cut
            self._deploy(name, places, self._schedule(name))
            if self.backend is not None:
                self.compiled[name] = self.ours.deploy(
                    f"{name} compiled", places, self._schedule(name), self.backend
                )
            if others is not None:
                self.by_gloo[name] = others.deploy(name, places, self._schedule(name))
        if self.subject.chain:
            self.theirs = TorchPipeline(self.subject, self.m, cut.places[0])
            self.closing.append(self.theirs.close)

    def _ours(self, gloo: bool = False) -> Ours:
        timeout = {} if self.backend is None else {"timeout_s": COMPILING_S}
        ours = Ours(self.subject, self.m, self._schedule("gpipe"), gloo, **timeout)
        self.closing.append(ours.close)
        return ours

    def _schedule(self, name: str) -> Any:
        return SCHEDULES[name](microbatches=self.m)  # type: ignore[call-arg]

    def _deploy(self, name: str, cut: Cut | Single, schedule: Any) -> None:
        self.deployed[name] = self.ours.deploy(name, cut, schedule)

    def contenders(self) -> list[Contender]:
        """One device, ours and theirs, in turn; some of them twice, for the noise floor."""
        entrants = [self._plain("plain"), self._own("single"), self._plain("plain again")]
        if self.plain_compiled is not None:
            entrants.append(
                Contender("plain compiled", self.plain_compiled.step, pids=self.plain_compiled.pids)
            )
        for name in self.deployed:
            if name == "single":
                continue
            entrants.append(self._own(name, traced=True))
            if name in self.compiled:
                entrants.append(self._run(f"{name} compiled", self.compiled[name]))
            if name in self.by_gloo:
                entrants.append(self._run(f"{name} by gloo", self.by_gloo[name]))
            if name in TorchPipeline.SCHEDULES:
                entrants += self._torch(name)
        first = next(name for name in reversed(ORDER[:2]) if name in self.deployed)
        if "1f1b" not in self.deployed:
            entrants += self._torch("1f1b")
        return [*entrants, self._own(first, " again"), *self._torch("1f1b", " again")]

    def _plain(self, name: str) -> Contender:
        return Contender(name, self.plain.step, pids=self.plain.pids)

    def _torch(self, name: str, suffix: str = "") -> list[Contender]:
        """None where the model is no chain."""
        theirs = self.theirs
        if theirs is None:
            return []
        return [Contender(f"torch {name}{suffix}", lambda: theirs.step(name), pids=theirs.pids)]

    def _own(self, name: str, suffix: str = "", traced: bool = False) -> Contender:
        return self._run(
            name + suffix, self.deployed[name], self.traces.setdefault(name, []) if traced else None
        )

    def _run(self, name: str, deployed: Deployed, traces: list[Timeline] | None = None) -> Contender:
        def trace() -> None:
            if traces is not None:
                traces.append(self.ours.trace(deployed))

        return Contender(name, lambda: self.ours.step(deployed), deployed.ready, trace, deployed.pids)

    def check(self) -> None:
        """One iteration from the same parameters everywhere gives the same update.

        Raises:
            AssertionError: it does not.
        """
        before = self.subject.fresh().state_dict()
        self.plain.step()
        wanted = _update(before, self.plain.state())
        if self.plain_compiled is not None:
            self.plain_compiled.step()
            self._same(wanted, _update(before, self.plain_compiled.state()), "plain compiled")
        for name, deployed in [*self.deployed.items(), *self.by_gloo.items(), *self.compiled.items()]:
            deployed.ready()
            self.ours.step(deployed)
            self._same(wanted, _update(before, deployed.model.state_dict()), name)
        if self.theirs is not None:
            for name in TorchPipeline.SCHEDULES:
                self.theirs.step(
                    name
                )  # its first one runs stages to find shapes, which moves BatchNorm's averages
                self.theirs.reset()
                self.theirs.step(name)
                self._same(wanted, _update(before, self.theirs.state()), f"torch {name}")

    def _same(self, wanted: dict[str, Tensor], updates: dict[str, Tensor], name: str) -> None:
        for key, update in wanted.items():
            scale = update.norm() + 1e-3 * _total(wanted)
            difference = float((updates[key] - update).norm() / scale)
            assert difference < SAME, f"{name} updates '{key}' otherwise than plain PyTorch: {difference:.2g}"

    def close(self) -> None:
        for close in reversed(self.closing):
            close()


def _update(before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: after[k] - value for k, value in before.items() if value.is_floating_point()}


def _total(update: dict[str, Tensor]) -> float:
    return float(torch.stack([each.norm() for each in update.values()]).norm())


def _measured(subject: Subject, options: argparse.Namespace, say: Say) -> tuple[list[Line], dict[str, Any]]:
    field = _Field(subject, options.microbatches, options.schedules, options.gloo, options.compile, say)
    try:
        field.check()
        rounds = Rounds(field.contenders())
        rounds.warm_up()
        predicted: dict[str, list[float]] = {name: [] for name in field.deployed}
        costs = field.ours.problem.costs
        for n in range(options.rounds):
            began = time.perf_counter()
            if n % options.profile_every == 0:
                costs = field.ours.costs()
            profiled = time.perf_counter()
            for name, deployed in field.deployed.items():
                timeline = simulate(deployed.plan.program, field.ours.problem.cluster, costs)
                predicted[name].append(timeline.iteration_s)
            rounds.round()
            say(
                f"{subject.name}: round {n + 1} of {options.rounds}, profile {profiled - began:.1f} s, "
                f"runs {time.perf_counter() - profiled:.1f} s"
            )
        free = {
            name: [
                free_ideal(field.deployed[name].plan.program, field.ours.problem.cluster, [each], costs)
                for each in traces
            ]
            for name, traces in field.traces.items()
        }
        traced = {name: [each.iteration_s for each in traces] for name, traces in field.traces.items()}
    finally:
        field.close()
    raw = {
        "seconds": rounds.seconds,
        "processor_s": rounds.processor_s,
        "predicted": predicted,
        "free_ideal": free,
        "traced": traced,
    }
    return _lines(rounds, predicted, free, traced), raw


def _lines(
    rounds: Rounds,
    predicted: dict[str, list[float]],
    free: dict[str, list[float]],
    traced: dict[str, list[float]],
) -> list[Line]:
    own = next(name for name in ("1f1b", "gpipe") if rounds.has(f"{name} again"))
    alone, floor = rounds.ratio("plain again", "plain"), rounds.ratio(f"{own} again", own)

    def line(
        what: str, above: str, below: str, wanted: str = "", met: Callable[[float], bool] | None = None
    ) -> Line:
        ratio = rounds.ratio(above, below)
        met_ = None if met is None else met(ratio.median)
        noise = alone if below == "plain" else floor
        return Line(what, ratio, noise, wanted, met_, rounds.work(above, below))

    lines = [
        line("one worker / plain PyTorch", "single", "plain", f"<= {MOST_OVERHEAD}", MOST_OVERHEAD.__ge__),
        Line("one worker: ideal / measured", rounds.ratio(predicted["single"], "single"), alone),
    ]
    for name in free:
        ideal = rounds.ratio(predicted[name], name)
        lines += [
            line(f"{name}: plain / ours (speed-up)", "plain", name),
            Line(
                f"{name}: ideal / ours", ideal, floor, f">= {LEAST_OF_IDEAL}", ideal.median >= LEAST_OF_IDEAL
            ),
            Line(f"{name}: free ideal / ours", _quotient(free[name], traced[name]), floor),
        ]
        if rounds.has(f"{name} compiled"):
            lines.append(line(f"{name}: ours / compiled", name, f"{name} compiled"))
            lines.append(line(f"{name}: plain / ours, both compiled", "plain compiled", f"{name} compiled"))
        if rounds.has(f"{name} by gloo"):
            lines.append(line(f"{name}: by gloo / ours", f"{name} by gloo", name))
        if rounds.has(f"torch {name}") and name != "1f1b":
            lines.append(line(f"{name}: torch's {name} / ours", f"torch {name}", name))
    if rounds.has("torch 1f1b"):
        theirs = rounds.ratio("torch 1f1b again", "torch 1f1b")
        lines.append(Line("torch's 1f1b: plain / it", rounds.ratio("plain", "torch 1f1b"), theirs))
        if rounds.has("1f1b"):
            lines.append(line("torch's 1f1b / our 1f1b", "torch 1f1b", "1f1b", ">= 1", lambda r: r >= 1))
        if rounds.has("zb_h1"):
            lines.append(line("torch's 1f1b / our zb_h1", "torch 1f1b", "zb_h1", "> 1", lambda r: r > 1))
    if rounds.has("1f1b", "zb_h1"):
        lines.append(line("our 1f1b / our zb_h1", "1f1b", "zb_h1"))
    return lines


def _quotient(above: list[float], below: list[float]) -> Ratio:
    return quartiles([a / b for a, b in zip(above, below, strict=True)])


def _table(subject: Subject, lines: list[Line], seconds: float) -> Table:
    table = Table(
        title=f"{subject.name}: medians of ratios (quartiles), {seconds:.0f} s in all", title_justify="left"
    )
    for name in ("figure", "median (quartiles)", "noise floor", "wanted", "met", "in CPU s"):
        table.add_column(name)
    for line in lines:
        met = "" if line.met is None else "yes" if line.met else "no"
        work = "" if line.work is None else f"{line.work:.3f}"
        table.add_row(line.what, str(line.ratio), str(line.floor or ""), line.wanted, met, work)
    return table


if __name__ == "__main__":
    sys.exit(main())
