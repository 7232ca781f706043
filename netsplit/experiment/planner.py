"""Plans of one model on a cluster, made of what is known before anything is decided."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from netsplit.experiment.parts.measured_parts import MeasuredParts
from netsplit.experiment.stages import Stages
from torch import Tensor, nn

from netsplit.cluster.cluster import Cluster
from netsplit.graph.batches.calls import Loss
from netsplit.graph.checks.replicated import require_replicable
from netsplit.graph.ir import Graph
from netsplit.partition.base import MemoryRule, Problem
from netsplit.partition.partitioner import Partitioner
from netsplit.placement.placement import Placement
from netsplit.planning.decide import decide, verified
from netsplit.planning.plan import Plan
from netsplit.planning.whole.whole_plan import WholePlan
from netsplit.planning.workload import Workload
from netsplit.profile.costs import Costs
from netsplit.profile.measure.optimizer_parts import check_element_wise
from netsplit.program.instructions import Program
from netsplit.program.schedules import Schedule
from netsplit.runtime.checkpoint.weights import WeightSource
from netsplit.runtime.share import OptimizerFactory, UpdateRule
from netsplit.simulate.simulator import Simulator
from netsplit.training.captures import MAX_PROGRAMS, Captures
from netsplit.training.programs import Programs, warn_of_overflow

__all__ = ["Planner"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Planner:
    """What is known of a model on a cluster before anything is decided."""

    model: nn.Module
    graph: Graph  # of the training step, at the micro-batch size
    values: dict[str, Tensor]  # initializers; the model's own tensors
    costs: Costs
    cluster: Cluster
    schedule: Schedule
    optimizer: OptimizerFactory
    loss: Loss | None
    rule: UpdateRule = field(default_factory=UpdateRule)
    tail: Graph | None = None  # at the size of the last micro-batch, where that is smaller
    key: Hashable = None  # of batches with the shapes of the graph; None: all have them
    known: dict[Hashable, tuple[int | None, ...]] = field(default_factory=dict)  # see `Batch.of`
    max_programs: int = MAX_PROGRAMS
    check: bool = True  # of every training graph against plain PyTorch
    memory: MemoryRule = "lifetimes"  # what fits
    weights: WeightSource | None = None  # of those values that are on the meta device
    decided: WholePlan | None = None  # with the schedule, before this
    parts: MeasuredParts | None = None  # where seconds are measured

    @cached_property
    def captures(self) -> Captures:
        """Graphs of the model on other batches, and of its evaluation."""
        kind = torch.device(self.cluster.devices[0].torch_device).type
        return Captures(
            self.model,
            self.loss,
            self.graph.autocast,
            kind,
            self.max_programs,
            self.check,
        )

    @property
    def compiler(self) -> Simulator:
        """Programs of a whole batch, and what they take."""
        return Simulator(
            self.graph,
            self.cluster,
            self.all_costs,
            self.schedule,
            shared_norm=self.rule.shared_norm,
            tail=self.tail,
        )

    @property
    def workload(self) -> Workload:
        """The graph with its measured costs, on this cluster: what `runners.partition` plans from a file."""
        return Workload(type(self.model).__name__, self.graph, self.all_costs, self.cluster)

    @property
    def meter(self) -> MeasuredParts | None:
        """Of parts, where seconds are those that were measured."""
        return self.parts if self.parts is not None and self.parts.whole is self.costs else None

    @property
    def all_costs(self) -> Costs:
        """With those of parts that earlier plans had."""
        return self.costs if self.meter is None else self.meter.costs

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All that the model and a loss module have now, under the names that graphs give them."""
        tensors: dict[str, Tensor] = {}
        for prefix, module in (("loss.", self.loss), ("", self.model)):
            if isinstance(module, nn.Module):
                tensors |= {prefix + k: v for k, v in module.named_parameters(remove_duplicate=False)}
                tensors |= {prefix + k: v for k, v in module.named_buffers(remove_duplicate=False)}
        return {k: tensor.detach() for k, tensor in (tensors | self.values).items()}

    def problem(self, seed: int = 0) -> Problem:
        """The least simulated iteration of the schedule, with its micro-batches."""
        problem = self.workload.problem(
            objective="simulated", schedule=self.schedule, seed=seed, memory=self.memory
        )
        return replace(problem, costs=self.all_costs, simulator=self.compiler, meter=self.meter)

    def plan(self, partitioner: Partitioner, seed: int = 0, stages: Stages | None = None) -> Plan:
        """What a method decides, or was decided before; told to `stages`.

        Over the capacities only if the method heeds none.

        Raises:
            ConfigError: it has parameters in parts, of which the optimiser would make something else.
            InfeasibleError: the method finds no placement within the capacities.
            NetSplitError: its answer breaks a rule, or has replicas that would train something else.
        """
        problem = self.problem(seed)
        if self.decided is not None:
            for line in self.decided.lines:
                log.log(logging.WARNING if line in self.decided.notes else logging.INFO, "%s", line)
            plan = verified(problem, self.decided.placement, self.decided.seconds)
            check_element_wise(self.optimizer, plan.problem.graph)
            return plan
        if stages is not None:
            stages.stage(f"plan by {partitioner.name}", getattr(partitioner, "time_limit_s", None), "s")
            problem = replace(
                problem, improved=lambda s, source: stages.note(f"best so far {1e3 * s:.4g} ms, by {source}")
            )
        plan = decide(problem, partitioner, room=partitioner.respects_capacity)
        check_element_wise(self.optimizer, plan.problem.graph)
        require_replicable(self.graph, plan.placement.replicated)
        plan = replace(plan, problem=replace(plan.problem, improved=None))  # which belongs to the search
        iteration_ms, report = 1e3 * plan.iteration_s, plan.placement.report
        told = f"predicted {iteration_ms:,.1f} ms per iteration"
        log.info("%s: %s; %s", plan.placement.method, told, report.summary())
        if partitioner.respects_capacity and self.memory == "static":
            method, peaks = plan.placement.method, plan.simulated[1].peak_bytes
            warn_of_overflow(method, peaks, self.cluster, "the static count fits")
        return plan

    def programs(self, placement: Placement, program: Program) -> Programs:
        """Of batches of any shapes and sizes; `program` is that of a whole batch."""
        return Programs(self.compiler, placement, program, self.captures, self.key, self.known)
