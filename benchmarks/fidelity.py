"""What the simulator promises against what the runtime does.

    python -m benchmarks.fidelity            # 4 models x 4 partitioners x 3 schedules in 9 rounds
    python -m benchmarks.fidelity --quick    # the same in 2 rounds

    a model:  problem ─► plans of all partitioners and schedules, kept on the workers
    a round:  costs measured again, if due ─► every plan predicted anew, and run twice
              error: measured / predicted;  noise floor: the second run / the first

Profile and runs alternate, so that a slow minute hits both: a profile before every third round, with --quick
before each. A case's error is the median of its rounds'; bytes are metered once. The models are small in
both, those of `benchmarks.runtime --quick`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks._command import command_parser
from benchmarks._ours import Deployed, Ours
from benchmarks._subjects import SUBJECTS, Subject, subjects
from netsplit.api import SCHEDULES
from netsplit.files import write_json
from netsplit.partition import METHODS
from netsplit.profile.costs import Costs
from netsplit.program.schedules import Schedule
from netsplit.simulate.simulate import simulate

PARTITIONERS = ("balanced", "layerwise", "m_etf", "round_robin")
ORDER = ("gpipe", "1f1b", "zb_h1")
MICROBATCHES = 4
MEDIAN_ABOVE_FLOOR, WORST_ABOVE_FLOOR, BYTES = 0.03, 0.10, 0.05

Say = Callable[[str], None]


@dataclass
class Case:
    """One plan: what was predicted and measured in each round. `bytes_of`: device -> (predicted, metered)."""

    model: str
    partitioner: str
    schedule: str
    transfers: int = 0
    predicted_s: list[float] = field(default_factory=list)
    measured_s: list[float] = field(default_factory=list)
    again_s: list[float] = field(default_factory=list)
    bytes_of: dict[str, tuple[int, int]] = field(default_factory=dict)
    failure: str = ""

    @property
    def complete(self) -> bool:
        return not self.failure and bool(self.measured_s)

    @property
    def error(self) -> float:
        """Measured / predicted seconds, less 1: positive where the promise was too short."""
        pairs = zip(self.measured_s, self.predicted_s, strict=True)
        return statistics.median(measured / predicted for measured, predicted in pairs) - 1

    @property
    def floor(self) -> float:
        """How far a second run is from the first, relatively: the median of the rounds."""
        pairs = zip(self.again_s, self.measured_s, strict=True)
        return statistics.median(abs(again / first - 1) for again, first in pairs)

    @property
    def bytes_error(self) -> float:
        """Metered / predicted peak bytes, less 1, on the device where it is furthest from 0."""
        errors = [metered / predicted - 1 for predicted, metered in self.bytes_of.values() if predicted]
        return max(errors, key=abs, default=0.0)


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=118)
    began = time.perf_counter()
    cases: list[Case] = []
    for subject in subjects(True, options.models):
        cases += _cases(subject, options, console.print)
        if options.json is not None:
            write_json(options.json, [asdict(case) for case in cases])
    console.print(_table(cases))
    complete = [case for case in cases if case.complete]
    if complete:
        console.print(_verdict(complete))
    console.print(f"{len(complete)} of {len(cases)} cases in {time.perf_counter() - began:.0f} s")
    return 0 if len(complete) == len(cases) else 1


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = command_parser("fidelity", __doc__)
    parser.add_argument("--quick", action="store_true", help="2 rounds, each after a profile of its own")
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="rounds, each running every plan twice (9; quick: 2)"
    )
    parser.add_argument(
        "--profile-every", type=int, metavar="N", help="a profile before every N-th round (3; quick: 1)"
    )
    parser.add_argument("--models", nargs="+", choices=SUBJECTS, help="default: all")
    parser.add_argument("--partitioners", nargs="+", choices=sorted(METHODS), default=list(PARTITIONERS))
    known = [name for name in ORDER if name in SCHEDULES]
    parser.add_argument("--schedules", nargs="+", choices=sorted(SCHEDULES), default=known)
    parser.add_argument("--gloo", action="store_true", help="workers connected by gloo only, as on two hosts")
    parser.add_argument("--json", type=Path, help="file for every measured second")
    options = parser.parse_args(arguments)
    for name, quick, full in (("rounds", 2, 9), ("profile_every", 1, 3)):
        given = getattr(options, name)
        if given is not None and given < 1:
            parser.error(f"--{name.replace('_', '-')} is {given}: give at least 1")
        setattr(options, name, given or (quick if options.quick else full))
    return options


def _cases(subject: Subject, options: argparse.Namespace, say: Say) -> list[Case]:
    """All cases of a model; a failure of one, or of the workers, leaves what was measured before."""
    cases = [Case(subject.name, p, s) for p in options.partitioners for s in options.schedules]
    say(f"{subject.name}: profiling, {len(cases)} plans")
    try:
        ours = Ours(subject, MICROBATCHES, _schedule("gpipe"), options.gloo)
    except Exception as error:
        for case in cases:
            case.failure = f"{type(error).__name__}: {error}"
        return cases
    try:
        ready = [(case, deployed) for case in cases if (deployed := _deployed(ours, case)) is not None]
        for n in range(options.rounds):
            if n % options.profile_every == 0:
                costs = ours.costs()
            _round(ours, ready, costs, n)
            say(f"{subject.name}: round {n + 1} of {options.rounds}")
    except Exception as error:
        say(f"{subject.name}: given up, {type(error).__name__}: {error}")
        for case in cases:
            if not case.measured_s and not case.failure:
                case.failure = f"{type(error).__name__}: {error}"
    finally:
        ours.close()
    return cases


def _schedule(name: str) -> Schedule:
    return SCHEDULES[name](microbatches=MICROBATCHES)  # type: ignore[call-arg]


def _deployed(ours: Ours, case: Case) -> Deployed | None:
    """The case's plan on the workers, warm and its bytes metered; None, the reason noted, if it fails."""
    try:
        deployed = ours.deploy(
            f"{case.partitioner} {case.schedule}", METHODS[case.partitioner](), _schedule(case.schedule)
        )
        case.transfers = deployed.plan.program.transfers
        deployed.ready()
        ours.step(deployed)
        metered = ours.peak_bytes(deployed)
        predicted = deployed.plan.simulated[1].peak_bytes
        case.bytes_of = {device: (predicted[device], metered.get(device, 0)) for device in predicted}
    except Exception as error:
        if not ours.session.pool.connections:
            raise
        case.failure = f"{type(error).__name__}: {error}"
        return None
    return deployed


def _round(ours: Ours, ready: list[tuple[Case, Deployed]], costs: Costs, n: int) -> None:
    """Every case predicted from the costs and run twice; another case begins each round."""
    turn = n % max(1, len(ready))
    for case, deployed in ready[turn:] + ready[:turn]:
        predicted = simulate(deployed.plan.program, ours.problem.cluster, costs).iteration_s
        deployed.ready()
        first, again = _seconds(ours, deployed), _seconds(ours, deployed)
        case.predicted_s.append(predicted)
        case.measured_s.append(first)
        case.again_s.append(again)


def _seconds(ours: Ours, deployed: Deployed) -> float:
    start = time.perf_counter()
    ours.step(deployed)
    return time.perf_counter() - start


def _table(cases: list[Case]) -> Table:
    table = Table(title="Predicted against measured iteration and peak bytes", title_justify="left")
    for name in ("model", "partitioner", "schedule"):
        table.add_column(name)
    for name in ("transfers", "predicted ms", "measured ms", "error", "noise floor", "bytes"):
        table.add_column(name, justify="right")
    for case in cases:
        names = (case.model, case.partitioner, case.schedule)
        if not case.complete:
            table.add_row(
                *names, "", "", "", case.failure.splitlines()[0][:60] if case.failure else "not run"
            )
            continue
        table.add_row(
            *names,
            str(case.transfers),
            f"{1e3 * statistics.median(case.predicted_s):.1f}",
            f"{1e3 * statistics.median(case.measured_s):.1f}",
            f"{100 * case.error:+.1f} %",
            f"{100 * case.floor:.1f} %",
            f"{100 * case.bytes_error:+.1f} %",
        )
    return table


def _verdict(cases: list[Case]) -> Table:
    """Median and worst of all cases beside the noise floor, which is the median of theirs."""
    floor = statistics.median(case.floor for case in cases)
    errors = sorted(abs(case.error) for case in cases)
    sizes = sorted(abs(case.bytes_error) for case in cases)
    table = Table(title=f"All cases; noise floor {100 * floor:.1f} %", title_justify="left")
    for name in ("", "error", "wanted", "met"):
        table.add_column(name, justify="left" if name == "" else "right")
    rows = (
        ("seconds, median", statistics.median(errors), floor + MEDIAN_ABOVE_FLOOR),
        ("seconds, worst", errors[-1], floor + WORST_ABOVE_FLOOR),
        ("bytes, median", statistics.median(sizes), BYTES),
        ("bytes, worst", sizes[-1], BYTES),
    )
    for what, error, wanted in rows:
        table.add_row(
            what, f"{100 * error:.1f} %", f"<= {100 * wanted:.1f} %", "yes" if error <= wanted else "no"
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
