"""What of a comparison is written down, whether its methods were trained or only planned."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from netsplit.cluster.cluster import Cluster, Link
from netsplit.experiment.session import Plan, Study
from netsplit.files import write_text
from netsplit.formats.own import save_workload
from netsplit.tracking import ComparisonRow, MethodRun, markdown, outline
from netsplit.tracking.pictures.figures import TrainingCurve, comparison_figure, training_figure
from netsplit.tracking.pictures.graph_figure import graph_figure
from netsplit.training.history import History

__all__ = ["Comparison", "capacities", "record_comparison", "record_study", "row_of", "write_plan"]


@dataclass
class Comparison:
    """Rows in the order of the methods; everything else is in `folder` and in MLflow."""

    folder: Path
    rows: list[ComparisonRow] = field(default_factory=list)
    histories: dict[str, History] = field(default_factory=dict)

    @property
    def failed(self) -> list[ComparisonRow]:
        return [row for row in self.rows if row.failed]

    @property
    def best_s(self) -> float | None:
        """The least seconds of an iteration, of what fits: measured where trained, else predicted."""
        fits = [row for row in self.rows if not row.failed and not row.overfull]
        found = [row.measured_s or row.predicted_s for row in fits]
        return min((each for each in found if each is not None), default=None)


def row_of(plan: Plan, name: str, history: History | None = None, earlier: bool = False) -> ComparisonRow:
    """A method's line; without a history its throughput is the predicted one.

    Args:
        earlier: the history is of an earlier run, whose plan may have been another.
    """
    report, predicted_s = plan.placement.report, plan.predicted.iteration_s
    last = history.epochs[-1] if history is not None else None
    batch = plan.study.compiler.batch_size
    return ComparisonRow(
        method=name,
        status=report.status,
        objective_s=report.objective,
        gap=report.gap,
        solve_s=report.seconds,
        predicted_s=predicted_s,
        measured_s=history.iteration_s if history is not None else None,
        throughput=history.throughput if history is not None else batch / predicted_s,
        accuracy=last.test_accuracy if last is not None else None,
        predicted_peak=plan.predicted.peak_bytes,
        measured_peak=history.peak_bytes if history is not None else {},
        capacity=capacities(plan.study.cluster),
        nodes=plan.nodes,
        loss=last.train_loss if last is not None else None,
        earlier=earlier,
    )


def capacities(cluster: Cluster) -> dict[str, int]:
    return {device.name: device.capacity_bytes for device in cluster.devices}


def record_study(run: MethodRun, study: Study, folder: Path) -> None:
    """What all methods share: the graph with its costs and links, which `runners.partition` reads."""
    save_workload(study.workload, folder / "graph.json")
    run.artifact(folder / "graph.json")
    run.tags({f"link.{p} to {q}": _in_words(link) for (p, q), link in study.cluster.links.items()})


def write_plan(plan: Plan, folder: Path) -> None:
    """Placement, program, summary and the placed graph's picture."""
    placement = plan.placement
    write_text(folder / "placement.json", json.dumps(asdict(placement), indent=1))
    write_text(folder / "program.txt", plan.program.show())
    write_text(folder / "summary.txt", plan.summary())
    graph_figure(
        plan.study.graph, placement, folder / "graph.png", costs=plan.study.costs, cluster=plan.study.cluster
    )


def record_comparison(run: MethodRun, found: Comparison) -> None:
    """The table, and the pictures of all methods."""
    write_text(found.folder / "comparison.md", markdown(found.rows) + "\n")
    run.describe(f"```\n{outline(found.rows)}\n```")
    run.artifact(found.folder / "comparison.md")
    done = [row for row in found.rows if not row.failed]
    if done:
        comparison_figure(done, found.folder / "comparison.png")
        run.artifact(found.folder / "comparison.png")
    curves = _curves(found.histories)
    if curves:
        training_figure(curves, found.folder / "training.png")
        run.artifact(found.folder / "training.png")


def _curves(histories: Mapping[str, History]) -> dict[str, TrainingCurve]:
    return {
        name: TrainingCurve(
            [epoch.train_loss for epoch in history.epochs],
            [epoch.test_accuracy for epoch in history.epochs],
            [epoch.seconds for epoch in history.epochs],
        )
        for name, history in histories.items()
        if history.epochs
    }


def _in_words(link: Link) -> str:
    fit = "given" if link.r_squared is None else f"R² {link.r_squared:.4f}"
    return f"{1e6 * link.latency_s:.1f} µs, {link.bandwidth / 1e9:.2f} GB/s, {fit}"
