"""Moving state between workers when a model changes its placement.

    every worker ─► Inventory ─► controller: moves_of ─► every worker: sends, receives, a new Share
                    names, kinds      who sends what        parameters, moments, averages of its own

Tensors go from worker to worker, over training's connections; numbers (step counters, hyperparameters, a
scheduler's state) go through the controller, as every device may need them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from netsplit.errors import WorkerError
from netsplit.optim.optimizers import plain_attributes
from netsplit.program.instructions import Program
from netsplit.runtime.checkpoint.files import Kind, Saved, State, kind_of
from netsplit.runtime.checkpoint.shares import Copies, Holder
from netsplit.runtime.share import OptimizerFactory, Share, UpdateRule
from netsplit.runtime.transport.handle import Handle, TransportLost, TransportTimeout
from netsplit.runtime.worker_calls import add
from netsplit.runtime.workers.messages import Worker

__all__ = ["Inventory", "StateMove", "inventory", "move", "moves_of"]


class CarriedState(Saved):
    """State under the keys of a checkpoint; its tensors are handed over, not copied."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.folder = Path("the other devices")
        self.entries = dict(state)
        self._index()

    def kind(self, place: str) -> Kind | None:
        value = self.entries.get(place)
        return kind_of(value) if isinstance(value, Tensor) else None

    def blank(
        self, place: str, device: torch.device | None = None, shape: tuple[int, ...] | None = None
    ) -> Any:
        value = self.entries[place]
        return value.to(device or "cpu") if isinstance(value, Tensor) else None

    def read(self, flat: dict[str, Any]) -> dict[str, Any]:
        for place, value in flat.items():
            source = self.entries[place]
            if not isinstance(value, Tensor) or not isinstance(source, Tensor):
                flat[place] = source
            elif value.data_ptr() != source.data_ptr() or value.device != source.device:
                value.copy_(source)
        return flat


_ATTRIBUTES = "optimizer.attributes"  # checkpoints have none, like torch's


@dataclass(frozen=True)
class Inventory:
    """What one worker holds: tensors with dimensions as meta tensors, and all else as it is."""

    tensors: dict[str, Tensor]
    values: State
    waiting: bool  # gradients wait for a step


@dataclass(frozen=True)
class StateMove:
    """One tensor on its way between two devices, by its checkpoint key."""

    key: str
    source: str
    target: str
    like: Tensor  # on meta


def inventory(worker: Worker, copies: Copies) -> Inventory:
    state = _state(worker, copies)
    share: Share = worker.memory["share"]
    if share.optimizer is not None and share.parameters:  # others may have taken fewer steps
        state[_ATTRIBUTES] = plain_attributes(share.optimizer)
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor) and value.dim() > 0}
    return Inventory(
        {key: torch.empty_like(tensor, device="meta") for key, tensor in tensors.items()},
        {
            key: value.cpu() if isinstance(value, Tensor) else value
            for key, value in state.items()
            if key not in tensors
        },
        any(parameter.grad is not None for parameter in share.stepped.values()),
    )


def moves_of(program: Program, inventories: Mapping[str, Inventory]) -> list[StateMove]:
    """What each device lacks under a program, and which device sends it."""
    holders: dict[str, list[str]] = {}
    below: dict[str, list[str]] = {}
    for name, own in inventories.items():
        for key in own.tensors:
            if key not in holders:
                below.setdefault(key.rpartition(".")[0], []).append(key)
            holders.setdefault(key, []).append(name)
    moves: list[StateMove] = []
    for target in program.devices:
        for k in program.held[target]:
            states = below.get(f"optimizer.state.{k}", ())
            for key in (f"model.{k}", f"average.{k}", *states):
                sources = holders.get(key, [])
                if sources and target not in sources:
                    moves.append(StateMove(key, sources[0], target, inventories[sources[0]].tensors[key]))
    return moves


def move(
    worker: Worker,
    program: Program,
    before: Copies,
    moves: Sequence[StateMove],
    values: State,
    optimizer: OptimizerFactory | None,
    rule: UpdateRule,
) -> None:
    """Exchange state, then hold this device's part of the program."""
    name, memory = worker.device.name, worker.memory
    state = {**_state(worker, before), **values}
    state |= _exchanged(worker, state, moves)
    held = program.held[name]
    tensors = {k: _own(state, k, name) for k in held}
    trainable = [k for k in held if program.graph.initializers[k].requires_grad]
    share = Share.of(
        tensors, worker.torch_device, optimizer, trainable, rule, program.copies_on(name), tensors.keys(),
        memory["offload"], program.graph.regions,
    )  # fmt: skip
    after = Copies({name: share.copies}, bool(program.replicas))
    Holder(_by_parts(share), name, copies=after).take(CarriedState(state))
    if share.optimizer is not None:
        vars(share.optimizer).update(values.get(_ATTRIBUTES, {}))
    memory["share"], memory["programs"] = share, {}
    add(worker, 0, program, {})


def _state(worker: Worker, copies: Copies) -> State:
    name = worker.device.name
    share: Share = worker.memory["share"]
    state = Holder(_by_parts(share), name, copies=copies).state()
    for k, region in share.regions.items():  # optimiser groups name whole parameters
        start = f"optimizer.param_groups.{k}."
        own = {key.removeprefix(start): value for key, value in state.items() if key.startswith(start)}
        state |= {f"optimizer.param_groups.{region.whole}.{key}": value for key, value in own.items()}
    return state


def _by_parts(share: Share) -> Share:
    """Treat every part as a tensor of its own, as both plans have the same parts."""
    return replace(share, regions={})


def _own(state: State, k: str, name: str) -> Tensor:
    tensor: Tensor = state[key if (key := f"model.{k}") in state else f"replica.{name}.{k}"]
    return tensor


def _exchanged(worker: Worker, state: State, moves: Sequence[StateMove]) -> State:
    name, transport = worker.device.name, worker.transport
    transport.connect(sorted({(each.source, each.target) for each in moves}))
    buffers: State = {}
    coming: list[tuple[Tensor, Handle]] = []
    going: list[Handle] = []
    try:
        for tag, each in enumerate(moves):
            if each.target == name:
                buffer = buffers[each.key] = torch.empty_like(each.like, device=worker.torch_device)
                coming.append((_flat(buffer), transport.receive(_flat(buffer), each.source, tag)))
            elif each.source == name:
                tensor = state[each.key].detach().to(worker.torch_device)
                dense = tensor if tensor.is_contiguous() else tensor.clone()  # of the order of dimensions
                going.append(transport.send(_flat(dense), each.target, tag, watched=False))
        for flat, handle in coming:
            arrived = handle.wait(worker.timeout_s)
            if arrived.data_ptr() != flat.data_ptr():
                flat.copy_(arrived)
        for handle in going:
            handle.wait(worker.timeout_s)
    except TransportTimeout as error:
        raise WorkerError(
            f"device {name} waited {worker.timeout_s:g} s for its part of the new plan"
        ) from error
    except TransportLost as error:
        raise WorkerError(f"device {name} lost another device while changing the plan") from error
    return buffers


def _flat(dense: Tensor) -> Tensor:
    """The tensor's memory as a vector."""
    return dense.as_strided((dense.numel(),), (1,))
