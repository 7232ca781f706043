"""All devices of a program in one process, their instructions taken in the program's global order."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from netsplit.cluster.cluster import Cluster
from netsplit.errors import BatchError
from netsplit.graph.random_draws import DrawCounter, DrawKey, generators_kept
from netsplit.profile.costs import Offload
from netsplit.profile.measure.optimizer import check_element_wise
from netsplit.program.instructions import Program
from netsplit.runtime.checkpoint.torch_format import whole_tensors
from netsplit.runtime.executor import Executor
from netsplit.runtime.faults import AS_BEFORE, failure_of, require_steady
from netsplit.runtime.feeds import loss_fractions, mean_loss, mean_metrics, split_batch
from netsplit.runtime.share import OptimizerFactory, Share, UpdateRule, sliced_for
from netsplit.runtime.sliced import SlicedParameters
from netsplit.runtime.transport.handle import LocalTransport
from netsplit.runtime.values import Absent

__all__ = ["LocalRuntime"]


class LocalRuntime:
    """Trains a program in this process, each device with its own parameters on its own ``torch.device``."""

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        values: Mapping[str, Tensor],
        optimizer: OptimizerFactory | None,
        rule: UpdateRule | None = None,
        seed: int = 0,
        offload: Offload | None = None,
    ) -> None:
        program = sliced_for(program, optimizer)
        self.draws = DrawCounter(seed)
        self.torch_device = {d.name: torch.device(d.torch_device) for d in cluster.devices}
        self.cluster = cluster
        initializers = program.graph.initializers
        trainable = [k for k, init in initializers.items() if init.requires_grad]
        check_element_wise(optimizer, program.graph)
        self.shares = {
            name: Share.of(
                {k: initializers[k].within(values) for k in program.held[name]},
                self.torch_device[name],
                optimizer,
                trainable,
                rule,
                copies=program.copies_on(name),
                offload=offload,
                regions=program.graph.regions,
                sliced=SlicedParameters.of_program(program, name),
            )
            for name in program.devices
        }
        self.program = program
        self.offload = offload or Offload()
        self.metrics: Any = None
        self._kept: dict[int, tuple[Program, dict[str, Executor]]] = {}

    def train_batch(
        self,
        inputs: Any,
        targets: Any = None,
        *,
        fraction: float = 1.0,
        step: bool = True,
        program: Program | None = None,
    ) -> float:
        """One iteration, as `DistributedRuntime.train_batch`; `program` is for another batch size."""
        program = self.program if program is None else program
        executors = self.executors_of(program)
        key = self.draws.training()
        losses = self.run(program, executors, inputs, targets, loss_fractions(program, fraction), step, key)
        self.draws.batches += 1
        self._share_scale()
        outputs = {key: float(tensor) for key, tensor in losses.items()}
        self.metrics = mean_metrics(program, outputs)
        return mean_loss(program, outputs)

    def run(
        self,
        program: Program,
        executors: dict[str, Executor],
        inputs: Any,
        targets: Any = None,
        fractions: list[float] | None = None,
        step: bool = True,
        key: DrawKey | None = None,
    ) -> dict[tuple[str, int], Tensor]:
        drawing = any(piece.draws for each in executors.values() for piece in each.pieces.whole.values())
        one = next(iter(executors.values()))
        with generators_kept() if drawing else nullcontext(), one.grad_mode():
            return self._run(program, executors, split_batch(program, inputs, targets), fractions, step, key)

    def _run(
        self,
        program: Program,
        executors: dict[str, Executor],
        feeds: list[dict[str, Tensor]],
        fractions: list[float] | None,
        step: bool,
        key: DrawKey | None,
        absent: Absent = frozenset(),
        attempt: int = 1,
    ) -> dict[tuple[str, int], Tensor]:
        for name, executor in executors.items():
            own = [{k: feed[k].clone() for k in program.fed(name, i)} for i, feed in enumerate(feeds)]
            executor.begin(own, fractions, step, key, absent)
        at = dict.fromkeys(program.devices, 0)
        computed = False
        for place, name in enumerate(program.order):
            if program.steps_last and not computed and at[name] >= executors[name].computing:
                computed = True
                nothing = frozenset(each for own in executors.values() for each in own.state.nothing)
                if nothing != absent:
                    self._abandon(executors)
                    require_steady(program, attempt)
                    return self._run(program, executors, feeds, fractions, step, key, nothing, attempt + 1)
            try:
                executors[name].execute(at[name])
            except Exception as error:
                if not program.steps_last or at[name] >= executors[name].computing:
                    raise
                self._abandon(executors)
                where = f" at its {program.instructions[name][at[name]]}"
                failure = failure_of(error, name, where, program.graph, place)
                raise BatchError(f"device {name} {failure.reason}: {AS_BEFORE}.") from error
            at[name] += 1
        outputs: dict[tuple[str, int], Tensor] = {}
        for executor in executors.values():
            outputs.update(executor.finish())
        return dict(sorted(outputs.items(), key=lambda item: item[0][1]))

    def _share_scale(self) -> None:
        """Copy the loss scale to devices that had nothing to step on."""
        stepped = [share.scale for share in self.shares.values() if not share.idle]
        for share in self.shares.values():
            if share.idle and share.scale is not None and stepped and stepped[0] is not None:
                share.scale = replace(stepped[0])

    def _abandon(self, executors: dict[str, Executor]) -> None:
        for executor in executors.values():
            executor.abandon()
            assert isinstance(executor.transport, LocalTransport)
            executor.transport.forget()

    def predict(self, program: Program, inputs: Any) -> dict[tuple[str, int], Tensor]:
        outputs = self.run(program, self.executors_of(program), inputs, key=self.draws.predicting())
        self.draws.predictions += 1
        return outputs

    def state(self) -> dict[str, Tensor]:
        """Every parameter and buffer by the model's own name, on the CPU, from its first holder."""
        tensors = {k: t.clone() for share in self.shares.values() for k, t in share.state().items()}
        regions = {k: r for share in self.shares.values() for k, r in share.regions.items()}
        return whole_tensors(tensors, regions)

    def executors_of(self, program: Program) -> dict[str, Executor]:
        if id(program) not in self._kept:
            transport = LocalTransport(self.torch_device)
            executors = {
                name: Executor(
                    program, name, self.shares[name], transport, self.torch_device[name],
                    offload=self.offload.activations,
                )
                for name in program.devices
            }  # fmt: skip
            self._kept[id(program)] = program, executors
        return self._kept[id(program)][1]
