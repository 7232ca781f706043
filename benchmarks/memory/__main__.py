"""How little memory a model is planned for, and what it then takes.

    python -m benchmarks.memory                                   # ten models x 4 schedules x 2, 3, 4 devices
    python -m benchmarks.memory --models gpt_small --devices 2    # some of them; --no-run plans only

    least capacity that `auto` accepts, by bisection ──► its plan, run on workers: metered peak
                    beside: lower bounds (`bounds.py`) of any plan, and of those in which every device
                    computes one segment; and the least under `memory=static`

Metered is the largest peak of a device, of live tensors, in an iteration after the first. Seconds of
operators are taken from their bytes: nothing is timed. What they allocate for themselves is measured.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from rich.console import Console

import netsplit
from benchmarks._command import command_parser
from benchmarks.captured import CAPTURED
from benchmarks.memory.bounds import bound_of_any, bound_of_pipelines
from benchmarks.setting import CONF
from netsplit.cluster.cluster import Cluster, Link
from netsplit.config import build
from netsplit.data.reading.loader import batches
from netsplit.errors import InfeasibleError, NetSplitError
from netsplit.files import write_json
from netsplit.graph import capture, initial_values
from netsplit.graph.batches.batch import Batch
from netsplit.graph.ir import Graph
from netsplit.partition import Auto
from netsplit.partition.base import MemoryRule, Problem
from netsplit.planning.plan import Plan
from netsplit.profile.costs import Costs, DeviceCosts, NodeBytes, NodeSeconds
from netsplit.profile.measure.optimizer import optimizer_alpha
from netsplit.profile.measure.predicted_bytes import transient_bytes
from netsplit.program.schedules import ZBH1, GPipe, OneFOneB, Schedule, SingleBatch
from netsplit.session.request import without_reading
from netsplit.session.session import Session
from netsplit.session.step import ModelStep
from netsplit.tables import Column, Table
from netsplit.training.options import Training

MICROBATCHES = 4
SCHEDULES: dict[str, Schedule] = {
    "gpipe": GPipe(MICROBATCHES),
    "1f1b": OneFOneB(MICROBATCHES),
    "zb_h1": ZBH1(MICROBATCHES),
    "single_batch": SingleBatch(),
}
DEVICES = (2, 3, 4)
CLOSE = 0.01  # of the least capacity: where bisection ends
ACCEPTED_MEAN, ACCEPTED_WORST, METERED = 1.10, 1.25, 1.02  # wanted
_BYTES_A_SECOND = 1e10


@dataclass
class Case:
    """One model under one schedule on so many devices. Bytes of the device that holds most."""

    model: str
    schedule: str
    devices: int
    bound: int
    pipelines: int  # of plans in which every device computes one segment
    accepted: int | None = None
    predicted: int | None = None
    metered: int | None = None
    static: int | None = None
    failure: str = ""

    @property
    def looseness(self) -> float | None:
        return None if self.accepted is None else self.accepted / self.bound

    @property
    def beside_pipelines(self) -> float | None:
        return None if self.accepted is None else self.accepted / self.pipelines

    @property
    def filled(self) -> float | None:
        return None if self.metered is None or self.accepted is None else self.metered / self.accepted


@dataclass(frozen=True)
class _Model:
    name: str
    net: Any
    loss: Any
    optimizer: Any
    batch: tuple[Any, Any]
    graphs: dict[int, tuple[Graph, dict[str, NodeBytes]]]  # by samples of a micro-batch
    alpha: int

    @classmethod
    def of(cls, name: str) -> _Model:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = compose("config", overrides=[f"model={name.split()[0]}", *name.split()[1:]])
        batch = next(batches(build(without_reading(cfg)[0].dataset).train, cfg.batch_size, seed=cfg.seed))
        optimizer = build(cfg.optimizer)
        return cls(name, build(cfg.model), build(cfg.loss), optimizer, batch, {}, optimizer_alpha(optimizer))

    def graph(self, samples: int) -> tuple[Graph, dict[str, NodeBytes]]:
        """The graph of a micro-batch, with the bytes that its operators allocate for themselves here."""
        if samples not in self.graphs:
            rows = Batch.of(*self.batch).rows(0, samples).own()
            graph = capture(self.net, self.loss, rows)
            values = initial_values(self.net, graph, self.loss)
            self.graphs[samples] = graph, transient_bytes(graph, rows.tensors, values, "cpu")
        return self.graphs[samples]

    def problem(
        self, schedule: str, cluster: Cluster, capacity: int, memory: MemoryRule
    ) -> tuple[ModelStep, Problem]:
        asked = SCHEDULES[schedule]
        training = Training(self.optimizer, check=False, memory=memory)
        step = ModelStep(self.net, self.loss, self.batch, training)
        samples = step.whole.samples
        graph, transients = self.graph(asked.microbatch_size(samples))
        devices = tuple(replace(each, capacity_bytes=capacity) for each in cluster.devices)
        costs, known = self._costs(graph, transients, cluster), replace(cluster, devices=devices)
        return step, step.problem(graph, costs, known, asked.for_batch(samples))

    def _costs(self, graph: Graph, transients: dict[str, NodeBytes], cluster: Cluster) -> Costs:
        """An operator takes as long as its tensors take to be read and written, its backward twice that."""
        seconds = {}
        for node in graph:
            tensors = [graph.variables[k] for k in (*node.inputs, *node.outputs) if k in graph.variables]
            moved = sum(tensor.nbytes for tensor in tensors) / _BYTES_A_SECOND
            seconds[node.name] = NodeSeconds(1e-5 + moved, 2e-5 + 2 * moved)
        costs = DeviceCosts(seconds, transients=transients)
        return Costs({device.kind: costs for device in cluster.devices}, self.alpha)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    console = Console(width=130)
    cases: list[Case] = []
    for name in options.models:
        model = _Model.of(name)
        for devices in options.devices:
            with tempfile.TemporaryDirectory() as folder:
                session = Session(netsplit.cpu_cluster(devices), Path(folder))
                with session:
                    for schedule in options.schedules:
                        cases.append(_case(model, schedule, devices, session, options))
                        console.print(_line(cases[-1]), highlight=False)
        write_json(options.out, [asdict(case) for case in cases])
    console.print(_table(cases).terminal())
    console.print(_verdict(cases), highlight=False)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command_parser("memory", __doc__)
    parser.add_argument("--models", nargs="+", default=list(CAPTURED), help="of conf/model: 'NAME OVERRIDES'")
    parser.add_argument("--schedules", nargs="+", choices=list(SCHEDULES), default=list(SCHEDULES))
    parser.add_argument("--devices", nargs="+", type=int, default=list(DEVICES))
    parser.add_argument("--time-limit", type=float, default=2.0, help="seconds of `auto` for each capacity")
    parser.add_argument("--no-run", action="store_true", help="plan only: no metered peaks")
    parser.add_argument("--out", type=Path, default=Path("outputs/benchmarks/memory.json"))
    return parser.parse_args(arguments)


def _case(model: _Model, schedule: str, devices: int, session: Session, options: argparse.Namespace) -> Case:
    cluster = _linked(session.spec.devices)
    _, probe = model.problem(schedule, cluster, 2**50, "lifetimes")
    bounds = (
        bound(probe.graph, probe.the_simulator.schedule, model.alpha, devices)
        for bound in (bound_of_any, bound_of_pipelines)
    )
    case = Case(model.name.split()[0], schedule, devices, *bounds)
    auto = Auto(time_limit_s=options.time_limit, starts=4)

    def planned(capacity: int, memory: MemoryRule) -> Plan | None:
        try:
            step, problem = model.problem(schedule, cluster, capacity, memory)
            return step.plan(problem, auto)
        except InfeasibleError:
            return None

    try:
        case.static = _least(lambda capacity: planned(capacity, "static"), case.bound)[0]
        case.accepted, plan = _least(lambda capacity: planned(capacity, "lifetimes"), case.bound)
        case.predicted = max(plan.simulated[1].peak_bytes.values())
        if not options.no_run:
            step, _ = model.problem(schedule, cluster, case.accepted, "lifetimes")
            with session.deploy(step, plan) as trained:
                trained.train_batch(*model.batch)
                measured = trained.measure_batch(*model.batch, bytes_too=True)[1]
            case.metered = max(measured.peak_bytes.values())
    except NetSplitError as error:
        case.failure = str(error).splitlines()[0]
    return case


def _least(planned: Any, bound: int) -> tuple[int, Plan]:
    """The least capacity with a plan, to within `CLOSE`, and its plan."""
    low, high = bound, bound
    plan = planned(high)
    while plan is None:
        low, high = high, 2 * high
        plan = planned(high)
    while high - low > CLOSE * high:
        middle = (low + high) // 2
        trial = planned(middle)
        if trial is None:
            low = middle
        else:
            high, plan = middle, trial
    return high, plan


def _linked(devices: Any) -> Cluster:
    pairs = [(p.name, q.name) for p in devices for q in devices if p is not q]
    return Cluster(f"cpu{len(devices)}", tuple(devices), dict.fromkeys(pairs, Link(1e-4, 1e-9)))


def _line(case: Case) -> str:
    return f"{case.model}, {case.schedule}, {case.devices} devices: {case.failure or _mib(case.accepted)}"


def _mib(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / 2**20:.1f} MiB"


def _table(cases: Sequence[Case]) -> Table:
    mib = (",.1f", 2**-20)
    columns = [
        Column("model", text=True), Column("schedule", text=True), Column("devices"),
        Column("bound MiB", *mib), Column("pipelines MiB", *mib), Column("accepted MiB", *mib),
        Column("/ bound", ".2f"), Column("/ pipelines", ".2f"), Column("predicted MiB", *mib),
        Column("metered MiB", *mib), Column("/ accepted", ".3f"), Column("static MiB", *mib),
    ]  # fmt: skip
    return Table(
        columns,
        [
            (
                each.model, each.schedule, each.devices, each.bound, each.pipelines, each.accepted,
                each.looseness, each.beside_pipelines, each.predicted, each.metered, each.filled, each.static,
            )
            for each in cases
        ],
        "Least capacity of each device that auto accepts",
    )  # fmt: skip


def _verdict(cases: Sequence[Case]) -> str:
    loose = [case.looseness for case in cases if case.looseness is not None]
    full = [case.filled for case in cases if case.filled is not None]
    static = [case.static / case.accepted for case in cases if case.static and case.accepted]
    lines = [f"{len(loose)} of {len(cases)} cases planned"]
    if loose:
        mean = math.exp(statistics.fmean(map(math.log, loose)))
        lines.append(f"accepted / lower bound: {mean:.3f} in the geometric mean (wanted {ACCEPTED_MEAN:.2f})")
        lines.append(f"accepted / lower bound: {max(loose):.3f} at worst (wanted {ACCEPTED_WORST:.2f})")
        once = [case.beside_pipelines for case in cases if case.beside_pipelines is not None]
        mean = math.exp(statistics.fmean(map(math.log, once)))
        lines.append(
            f"accepted / bound of pipelines: {mean:.3f} in the geometric mean, {max(once):.3f} at worst"
        )
        lines.append(f"static / accepted: {math.exp(statistics.fmean(map(math.log, static))):.2f}")
    if full:
        lines.append(f"metered / accepted: {max(full):.3f} at worst (wanted {METERED:.2f})")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
