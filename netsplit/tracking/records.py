"""What of a comparison is written down, whether its methods were trained or only planned."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

from torch import nn

from netsplit.cluster.cluster import Cluster
from netsplit.data.dataset import Data
from netsplit.data.reading.loader import batches
from netsplit.files import write_json, write_text
from netsplit.formats.own import save_workload
from netsplit.pictures.graph_figure import graph_figure
from netsplit.pictures.timeline_figure import timeline_figure
from netsplit.placement.placement import SolverReport
from netsplit.planning.parts import algebra_lines, parts_summary, placed_views
from netsplit.planning.plan import Plan
from netsplit.planning.workload import Workload
from netsplit.settings import Settings
from netsplit.simulate.trace import write_trace
from netsplit.tracking.figures import PICTURES, comparison_figure, throughput_figure, training_figure
from netsplit.tracking.runs import MethodRun
from netsplit.tracking.table import ComparisonRow, comparison_markdown, verdict_of
from netsplit.training.adapt.adaptation import Decision
from netsplit.training.epochs import Epoch, Iteration, Observer
from netsplit.training.history import History
from netsplit.training.parallel import ParallelModel
from netsplit.training.training_state import save_state

__all__ = [
    "Comparison", "Progress", "ProgressRecorder", "capacities", "figures_of", "keep_trained",
    "record_comparison", "record_decisions", "record_model", "record_plan", "record_result", "record_row",
    "record_solver", "record_whole", "record_workload", "row_of", "write_last_plan", "write_plan",
    "write_whole",
]  # fmt: skip


class Progress(Observer, Protocol):
    """An observer that is told which method is next, and how many iterations it will take; and before the
    first method, how many parts are done of what takes a while, and of how many.
    """

    def waiting(self, what: str, done: int, parts: int) -> None: ...

    def method(self, name: str, iterations: int) -> None: ...


class ProgressRecorder:
    """Passes on to the progress shown what it writes to MLflow, and knows which iterations this run did."""

    def __init__(self, run: MethodRun, progress: Progress) -> None:
        self.run = run
        self.progress = progress
        self.first: int | None = None  # step that this run began with; None: nothing was left to train
        self.rates: tuple[float, ...] = ()  # learning rates written last

    def measured(self, history: History) -> History:
        """The iterations of this run, where it did any: earlier ones may have had another plan."""
        own = [each for each in history.iterations if self.first is not None and each.step >= self.first]
        return replace(history, iterations=own) if own else history

    def iteration(self, done: Iteration) -> None:
        self.first = done.step if self.first is None else self.first
        values = {"train/loss": done.loss} | ({"train/iteration_s": done.seconds} if done.timed else {})
        if done.learning_rates != self.rates:
            self.rates = done.learning_rates
            values |= {f"train/learning_rate{f'.{i}' * bool(i)}": rate for i, rate in enumerate(self.rates)}
        self.run.metrics([(key, value, done.step) for key, value in values.items()])
        self.progress.iteration(done)

    def epoch(self, done: Epoch) -> None:
        values = [("train/epoch_loss", done.train_loss), ("train/epoch_s", done.seconds)]
        if done.score is not None:
            values.append((f"test/{done.metric}", done.score))
        self.run.metrics([(key, value, done.index) for key, value in values])
        self.progress.epoch(done)


@dataclass
class Comparison:
    """Rows in the order of the methods; everything else is in `folder` and in MLflow."""

    folder: Path
    rows: list[ComparisonRow] = field(default_factory=list)
    histories: dict[str, History] = field(default_factory=dict)
    decided: Plan | None = None  # where the schedule was decided with the placement
    charts: str = ""  # what follows MLflow's address, to see it there; empty where nothing is recorded

    @property
    def reason(self) -> str:
        """Why methods failed; empty where none did."""
        return " ".join(row.reason for row in self.rows if row.failed)

    @property
    def best_s(self) -> float | None:
        """The least seconds of an iteration, of what fits: measured where trained, else predicted."""
        fits = [row for row in self.rows if not row.failed and not row.overfull]
        iterations = [row.measured_s or row.predicted_s for row in fits]
        return min((each for each in iterations if each is not None), default=None)


def row_of(plan: Plan, name: str, history: History | None = None, earlier: bool = False) -> ComparisonRow:
    """A method's line; without a history its throughput is the predicted one. `earlier`: the history is of an
    earlier run, whose plan may have been another.
    """
    report, predicted = plan.placement.report, plan.simulated[1]
    last = history.epochs[-1] if history is not None else None
    return ComparisonRow(
        method=name,
        status=report.status,
        objective_s=report.objective,
        gap=report.gap,
        solve_s=report.seconds,
        predicted_s=plan.iteration_s,
        measured_s=history.iteration_s if history is not None else None,
        throughput=history.throughput if history is not None else plan.compiler.batch_size / plan.iteration_s,
        spread=history.spread if history is not None else None,
        score=last.score if last is not None else None,
        metric=last.metric if last is not None else "",
        predicted_peak=predicted.peak_bytes,
        measured_peak=history.peak_bytes if history is not None else {},
        capacity=capacities(plan.problem.cluster),
        nodes=plan.nodes,
        loss=last.train_loss if last is not None else None,
        earlier=earlier,
        optimises=report.optimises,
        parts=parts_summary(plan.splits),
    )


def capacities(cluster: Cluster) -> dict[str, int]:
    return {device.name: device.capacity_bytes for device in cluster.devices}


def record_workload(run: MethodRun, workload: Workload, folder: Path) -> None:
    """What all methods share: the graph with its costs and links, which `runners.partition` reads."""
    assert workload.cluster is not None
    save_workload(workload, folder / "graph.json")
    run.artifact(folder / "graph.json")
    links = {}
    for (p, q), link in workload.cluster.links.items():
        fit = "given" if link.r_squared is None else f"R² {link.r_squared:.4f}"
        rates = f"{1e6 * link.latency_s:.1f} µs, {link.bandwidth / 1e9:.2f} GB/s"
        links[f"link.{p} to {q}"] = f"{rates}, {fit}"
    run.tags(links)


def record_plan(run: MethodRun, plan: Plan, folder: Path) -> None:
    """Record placement, program, summary and the placed graph's picture, before any training."""
    record_solver(run, plan.placement.report)
    write_plan(plan, folder)
    run.tags(
        {
            "operators_in_parts": len({each.captured for each in plan.splits}),
            "in_parts": parts_summary(plan.splits),
            "algebra": "; ".join(algebra_lines(plan.placement)),
        }
    )
    run.describe(f"```\n{plan.summary()}\n```")


def record_solver(run: MethodRun, report: SolverReport) -> None:
    """What a solver said: its objective is a tag, as a chart of it beside another method's would mislead."""
    run.summary({"solver_seconds": report.seconds, "solver_gap": report.gap})
    run.tags(
        {
            "solver_status": report.status,
            "solver_engine": report.engine,
            "solver_optimises": report.optimises,
            "solver_objective_s": report.objective,
            "solver_bound_s": report.bound,
            "solver_notes": report.notes,
        }
    )


def figures_of(row: ComparisonRow) -> dict[str, float | None]:
    """The metrics of a method's run: seconds and bytes of an iteration, predicted and measured."""
    iteration_s = row.predicted_s if row.measured_s is None else row.measured_s
    samples = None if iteration_s is None or row.throughput is None else iteration_s * row.throughput
    return {
        "speed/samples_per_s": None if row.measured_s is None else row.throughput,
        "speed/samples_per_s_predicted": samples / row.predicted_s if samples and row.predicted_s else None,
        "speed/seconds_per_iteration": row.measured_s,
        "seconds_per_iteration_predicted": row.predicted_s,
        "prediction_error": row.prediction_error,
        "peak_bytes": max(row.measured_peak.values(), default=None),
        "peak_bytes_predicted": max(row.predicted_peak.values(), default=None),
    }


def record_whole(run: MethodRun, plan: Plan, folder: Path) -> None:
    """What was decided together with the placement, and what it was chosen from."""
    schedule = plan.schedule
    decided = {"kind": plan.choice.frontier[0].kind, "schedule": schedule.name}
    decided |= {"microbatches": str(schedule.microbatches), "recompute": str(schedule.recompute).lower()}
    run.tags({"decided": decided})
    write_whole(plan, folder)


def write_whole(plan: Plan, folder: Path) -> None:
    """All of it as plan.json, and as text with the table of what it was chosen from."""
    write_json(folder / "plan.json", plan.to_dict())
    write_text(folder / "frontier.txt", f"{plan}\n")


def write_plan(plan: Plan, folder: Path) -> list[str]:
    """Placement, program and summary as files, and the placed graph's picture; of a rewritten graph the
    parallel computation graph. Answers the names of the files."""
    problem, placement = plan.problem, plan.placement
    program, _ = plan.simulated
    texts = {
        "placement.json": json.dumps(placement.to_dict(), indent=1),
        "program.txt": program.show(),
        "summary.txt": str(plan.summary()),
    }
    if plan.parallel_graph is not None:
        (_, parallel), devices = plan.parallel_graph, placed_views(placement, problem.graph)
        texts["parallel_graph.json"] = json.dumps(parallel.to_dict() | {"devices": devices}, indent=1)
        texts["parallel_graph.txt"] = f"{parallel.summary()}\n"
    for name, text in texts.items():
        write_text(folder / name, text)
    graph_figure(problem.graph, placement, folder / "graph.png", costs=problem.costs, cluster=problem.cluster)
    return [*texts, "graph.png"]


def write_last_plan(last: Plan, first: Plan, folder: Path) -> None:
    """What was trained by last, in a folder of its own, where that is not the plan that training began with.

    What an earlier training has left there is removed.
    """
    own = folder / "last_plan"
    shutil.rmtree(own, ignore_errors=True)
    if last.placement != first.placement:
        own.mkdir()
        write_plan(last, own)


def record_decisions(run: MethodRun, decisions: Sequence[Decision], folder: Path) -> None:
    """What was decided about the plan while it trained: a point each, and all of it as a file."""
    for each in decisions:
        seconds = [(f"adaptive.{key}", value) for key, value in asdict(each).items() if key.endswith("_s")]
        run.metrics([(key, value, each.iteration) for key, value in seconds if value is not None])
    write_json(folder / "adaptive.json", [asdict(each) for each in decisions])


def record_row(
    run: MethodRun,
    plan: Plan,
    folder: Path,
    history: History | None = None,
    earlier: bool = False,
    decisions: Sequence[Decision] = (),
) -> ComparisonRow:
    """What is predicted, beside what was measured where there is a history: trace, picture, metrics, row."""
    program, predicted = plan.simulated
    measured = history.measured if history is not None else None
    write_trace(folder / "trace.json", predicted, measured, plan.event_parts)
    timeline_figure(predicted, measured, folder / "timeline.png")
    row = replace(row_of(plan, run.name, history, earlier), changes=sum(each.changed for each in decisions))
    write_json(folder / "row.json", asdict(row))  # which the report reads
    run.summary(figures_of(row))
    run.tags(
        {
            "predicted_peak_bytes": row.predicted_peak,
            "measured_peak_bytes": row.measured_peak,
            "predicted_host_bytes": predicted.host_bytes,
            "measured_host_bytes": measured.host_bytes if measured is not None else {},
            "capacity_bytes": row.capacity,
            "over_capacity": ", ".join(row.overfull),
            "nodes": row.nodes,
            "transfers": program.transfers,
            "measured_by": "an earlier run" if earlier else None,
        }
    )
    run.artifact(folder)
    return row


def record_result(run: MethodRun, row: ComparisonRow) -> None:
    """Record what came out of one method, as metrics ``<method>/...`` of the comparison's run."""
    figures = figures_of(row) | {row.metric: row.score, "loss": row.loss, "solver_seconds": row.solve_s}
    run.summary({f"{row.method}/{name.rpartition('/')[2]}": value for name, value in figures.items()})


def record_comparison(run: MethodRun, comparison: Comparison) -> None:
    """The table, and the pictures of all methods."""
    table, folder = comparison_markdown(comparison.rows), comparison.folder
    write_text(folder / "comparison.md", table)
    run.describe(table)
    run.tags({"verdict": verdict_of(comparison.rows)})  # by the spread of iterations, which no run has
    if done := [row for row in comparison.rows if not row.failed]:
        comparison_figure(done, folder / "comparison.png")
    else:
        run.failure = "every method failed"
    if trained := {name: history for name, history in comparison.histories.items() if history.epochs}:
        throughput_figure(trained, folder / "throughput.png")
        training_figure(trained, folder / "training.png")
    for path in (folder / "comparison.md", *(folder / f"{name}.png" for name in PICTURES)):
        if path.is_file():
            run.artifact(path)


def record_model(run: MethodRun, plain: nn.Module, model: ParallelModel, data: Data) -> None:
    """A copy of the plain model with what was trained, where the tracker logs models."""
    if not run.logs_model:
        return
    trained, half = copy.deepcopy(plain), data.test if len(data.test) else data.train
    trained.load_state_dict(model.state_dict())
    # Two samples as its example, as exporting takes one for a constant.
    run.model(trained.eval(), next(batches(half, 2, shuffle=False, drop_last=False))[0])


def keep_trained(model: ParallelModel, folder: Path, settings: Settings) -> None:
    """The plain model's parameters, and averages of them, as files for `torch.load`."""
    if settings.checkpoint.trained == "none":
        return
    model.save(folder / "checkpoint.pt")
    if settings.ema_decay is not None:
        save_state(model.ema_state_dict(), folder / "averages.pt")
