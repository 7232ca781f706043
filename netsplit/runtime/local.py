"""All devices of a program in one process, their instructions taken in the program's global order."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from netsplit.cluster.cluster import Cluster
from netsplit.program.instructions import Program
from netsplit.runtime.executor import Executor, OptimizerFactory, Share
from netsplit.runtime.feeds import split_batch
from netsplit.runtime.transport import LocalTransport

__all__ = ["LocalRuntime"]


class LocalRuntime:
    """Trains a program in this process.

    Every device keeps only its own parameters, on its own ``torch.device``; transfers are the
    program's explicit ones.
    """

    def __init__(
        self,
        program: Program,
        cluster: Cluster,
        values: Mapping[str, Tensor],
        optimizer: OptimizerFactory | None,
    ) -> None:
        self.torch_device = {d.name: torch.device(d.torch_device) for d in cluster.devices}
        self.cluster = cluster
        self.shares = {
            name: Share.of(
                {k: values[k] for k, home in program.initializer_device.items() if home == name},
                self.torch_device[name],
                optimizer,
                [k for k, init in program.graph.initializers.items() if init.requires_grad],
            )
            for name in program.devices
        }
        self.program = program
        self.executors = self._executors(program)

    def train_batch(self, inputs: Tensor | tuple[Tensor, ...], targets: Tensor | tuple[Tensor, ...]) -> float:
        """One iteration; the mean loss of the micro-batches."""
        losses = self.run(self.program, self.executors, inputs, targets)
        return float(torch.stack([loss.cpu() for loss in losses.values()]).mean())

    def run(
        self,
        program: Program,
        executors: dict[str, Executor],
        inputs: Tensor | tuple[Tensor, ...],
        targets: Tensor | tuple[Tensor, ...] = (),
    ) -> dict[tuple[str, int], Tensor]:
        """Outputs of every micro-batch, by (variable, i)."""
        feeds = split_batch(program, inputs, targets)
        for name, executor in executors.items():
            executor.begin([{k: feed[k] for k in program.feeds[name]} for feed in feeds])
        at = dict.fromkeys(program.devices, 0)
        for name in program.order:
            executors[name].execute(at[name])
            at[name] += 1
        outputs: dict[tuple[str, int], Tensor] = {}
        for executor in executors.values():
            outputs.update(executor.finish())
        return dict(sorted(outputs.items(), key=lambda item: item[0][1]))

    def predict(self, program: Program, inputs: Tensor | tuple[Tensor, ...]) -> dict[tuple[str, int], Tensor]:
        """Run an inference program on the trained tensors."""
        return self.run(program, self._executors(program), inputs)

    def state(self) -> dict[str, Tensor]:
        """Every initializer by the model's own name, on the CPU."""
        return {
            k: t.detach().cpu().clone() for share in self.shares.values() for k, t in share.tensors.items()
        }

    def _executors(self, program: Program) -> dict[str, Executor]:
        transport = LocalTransport(self.torch_device)
        return {
            name: Executor(program, name, self.shares[name], transport, self.torch_device[name])
            for name in program.devices
        }
