"""A DTensor from one device mesh to another, with other placements; and its gradient back.

    mesh a                       mesh b
    x  ──────── redistribute ──► y           every process of either mesh calls it
    x.grad ◄──────────────────── y.grad      and takes part in backward

`DTensor.redistribute` of torch 2.13 moves between placements of one mesh alone. Planned by `reshard/`.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from math import prod
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement, Shard

from netsplit.errors import ReshardError, WorkerError
from netsplit.reshard import Layout, Mesh, Network, ReshardPlan, plan_reshard
from netsplit.reshard.placements import mesh_from, out_of_order, spec_from
from netsplit.runtime.resharding.reshard_piece import reshard_piece
from netsplit.runtime.transport.process import ProcessTransport

__all__ = ["redistribute"]

_Told = TypeVar("_Told")

# Only their ratios count: for the strategy and the number of chunks. Bytes per second, and seconds.
_NIC_BANDWIDTH, _INSIDE_BANDWIDTH = 1.25e9, 1.25e10
_NIC_LATENCY_S, _INSIDE_LATENCY_S = 1e-4, 2e-5


@dataclass
class Meeting:
    """What its processes keep between the reshardings that one of them leads.

    Args:
        leader: the rank that plans, and tells the others.
        ranks: of all of them, ascending.
        hosts: by rank.
        calls: redistributions so far.
        timeout_s: of each thing that they say.
        plans: by what they are for, alike on all.
    """

    leader: int
    ranks: tuple[int, ...]
    transport: ProcessTransport
    timeout_s: float
    hosts: dict[int, str] = field(default_factory=dict)
    calls: int = 0
    plans: dict[Hashable, ReshardPlan] = field(default_factory=dict)

    @property
    def network(self) -> Network:
        """The processes of a host behind one NIC, all NICs and all insides alike."""
        by_host: dict[str, list[int | str]] = {}
        for rank, host in self.hosts.items():
            by_host.setdefault(host, []).append(rank)
        return Network.uniform(by_host, _NIC_BANDWIDTH, _INSIDE_BANDWIDTH, _NIC_LATENCY_S, _INSIDE_LATENCY_S)

    def announced(self, at: str, what: _Told | None) -> _Told:
        """What the leader says, to all."""
        answer: _Told = self._round(at, None, lambda _: what)
        return answer

    def objection(self, at: str, own: str) -> str:
        """The first that any of them has, for all; "" where none has."""
        first: str = self._round(at, own, lambda every: next(filter(None, every), ""))
        return first

    def learn_hosts(self) -> None:
        self.hosts = self._round(
            "the first redistribution",
            socket.gethostname(),
            lambda names: dict(sorted(zip((self.leader, *self._others()), names, strict=True))),
        )

    def _round(self, at: str, own: object, answer: Callable[[list[Any]], Any]) -> Any:
        """All tell the leader where they are and what they have to say, and get what it makes of that. Who
        goes back through several redistributions in another order than the others would otherwise be sent the
        gradient of another one."""
        at = f"{at} among ranks {list(self.ranks)}"
        if dist.get_rank() != self.leader:
            self._say((at, own), self.leader)
            wrong, answered = self._hear(self.leader)
        else:
            said = {rank: self._hear(rank) for rank in self._others()}
            wrong = next(
                (self._elsewhere(rank, where, at) for rank, (where, _) in said.items() if where != at), ""
            )
            answered = None if wrong else answer([own, *(what for _, what in said.values())])
            for rank in said:
                self._say((wrong, answered), rank)
        if wrong:
            raise ReshardError(wrong)
        return answered

    def _elsewhere(self, rank: int, where: str, at: str) -> str:
        return (
            f"rank {rank} is at {where}, rank {self.leader} at {at}: call redistribute and its backward in "
            "the same order on all ranks."
        )

    def _others(self) -> list[int]:
        return [rank for rank in self.ranks if rank != self.leader]

    def _say(self, what: object, rank: int) -> None:
        packed = torch.frombuffer(bytearray(pickle.dumps(what)), dtype=torch.uint8)
        for each in (torch.tensor([packed.numel()]), packed):
            self._over(dist.isend, each.to(self.transport.device), rank)

    def _hear(self, rank: int) -> Any:
        size = torch.zeros(1, dtype=torch.int64, device=self.transport.device)
        self._over(dist.irecv, size, rank)
        packed = torch.empty(int(size), dtype=torch.uint8, device=self.transport.device)
        self._over(dist.irecv, packed, rank)
        return pickle.loads(packed.cpu().numpy().tobytes())

    def _over(self, operation: Callable[..., dist.Work | None], tensor: Tensor, rank: int) -> None:
        try:
            work = operation(tensor, rank)
            assert work is not None
            work.wait(timedelta(seconds=self.timeout_s))
        except RuntimeError as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise WorkerError(
                f"rank {dist.get_rank()} and rank {rank} did not both call redistribute within "
                f"{self.timeout_s:g} s: {reason}."
            ) from error


_Key = tuple[str, int, tuple[int, ...]]
_meetings: WeakKeyDictionary[dist.ProcessGroup, dict[_Key, Meeting]] = WeakKeyDictionary()


def meeting_of(leader: int, ranks: tuple[int, ...], device: torch.device, timeout_s: float) -> Meeting:
    """The meeting of these processes, who all call this; the same until ``torch.distributed`` is ended.

    No group of its own: torch 2.13 names what members make alone (`use_local_synchronization`) by how many
    groups each has already, and hangs where that differs, as it does once there are meshes of some ranks.
    """
    world = dist.group.WORLD
    assert world is not None
    known = _meetings.setdefault(world, {})
    key = device.type, leader, ranks
    if key not in known:
        devices = {str(rank): device for rank in range(dist.get_world_size())}
        transport = ProcessTransport(devices, str(dist.get_rank()), timeout_s, in_order=True)
        meeting = Meeting(leader, ranks, transport, timeout_s)
        meeting.learn_hosts()
        known[key] = meeting
    known[key].timeout_s = timeout_s
    return known[key]


def redistribute(
    tensor: DTensor | None,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    *,
    source: DeviceMesh | None = None,
    network: Network | None = None,
    timeout_s: float = 300.0,
) -> DTensor:
    """The tensor on another mesh, which may share processes with its own, bit for bit; differentiable.

    All processes of both meshes call it, in the same order where they call it several times, and all take
    part in the backward: one that is of the source alone has nothing to compute with the result, and calls
    ``result.sum().backward()`` on its empty piece. Nothing else of NetSplit is needed for it.

    Args:
        tensor: on its mesh, without a partial sum. A process of the destination alone may give None and
            `source`: shape, dtype and whether there is a gradient come from the source's first process.
        mesh: the destination.
        placements: there.
        source: the tensor's mesh; only where a process has no tensor.
        network: hosts and their NICs, by rank, of the source's first process; None: the processes of a host
            behind one NIC, all alike.
        timeout_s: of each transfer.

    Returns:
        On a process that is not of the destination, a DTensor with an empty piece, as torch has them.

    Raises:
        ReshardError: a partial sum, meshes of two kinds of devices, pieces along an axis whose ranks torch's
            own operators take in another order, processes that ask for different things.
        WorkerError: a transfer was not over in time, or the other end is gone.
    """
    if tensor is None and source is None:
        raise ReshardError("redistribute without a tensor needs source, the tensor's mesh: give it.")
    origin = source if tensor is None else tensor.device_mesh
    assert origin is not None
    if origin.device_type != mesh.device_type:
        raise ReshardError(
            f"the tensor is on {origin.device_type} and the mesh on {mesh.device_type}: move the tensor "
            "there first."
        )
    own, ways = dist.get_rank(), (mesh_from(origin), mesh_from(mesh))
    ranks = tuple(sorted({int(rank) for each in ways for rank in each.devices}))
    if own not in ranks:
        raise ReshardError(
            f"rank {own} is on neither mesh: only ranks of the two meshes may call redistribute."
        )
    leader = int(ways[0].devices[0])
    meeting = meeting_of(leader, ranks, _device(mesh), timeout_s)
    meeting.calls += 1
    name = f"redistribution {meeting.calls}"
    said = _asked(tensor, ways, placements, network, meeting) if own == leader else None
    task = meeting.announced(name, said)
    if wrong := task.wrong or meeting.objection(name, task.objection(tensor, (origin, mesh), placements)):
        raise ReshardError(wrong)
    meeting.plans.update(task.plans)
    carrier = _Carrier(name, task, meeting, timeout_s, _device(mesh))
    moved = _Redistribute.apply(carrier.local(tensor), carrier)
    stride = tuple(prod(max(size, 1) for size in task.shape[i + 1 :]) for i in range(len(task.shape)))
    return DTensor.from_local(
        moved, mesh, task.placements, run_check=False,
        shape=torch.Size(task.shape) if task.shape else None, stride=stride or None,
    )  # fmt: skip


@dataclass(frozen=True)
class _Asked:
    """What the leader says: what is to be moved, and how; or what is `wrong` with it.

    Args:
        there, back: keys of the plans of tensor and gradient.
        plans: those that the others do not have yet.
    """

    wrong: str = ""
    shape: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    has_gradient: bool = False
    source: Mesh | None = None
    held: tuple[Placement, ...] = ()
    mesh: Mesh | None = None
    placements: tuple[Placement, ...] = ()
    there: Hashable = None
    back: Hashable = None
    plans: dict[Hashable, ReshardPlan] = field(default_factory=dict)

    def objection(
        self, tensor: DTensor | None, meshes: tuple[DeviceMesh, DeviceMesh], placements: Sequence[Placement]
    ) -> str:
        """What this process asks for that is not the same, or not to be had; "" where there is nothing."""
        assert self.source is not None
        assert self.mesh is not None
        own, leader = dist.get_rank(), "the source's first process"
        ways, asked = (mesh_from(meshes[0]), mesh_from(meshes[1])), _normal(placements, self.shape)
        if (ways[1], asked) != (self.mesh, self.placements):
            return (
                f"rank {own} asks for {asked} on ranks {list(ways[1].devices)}, {leader} for "
                f"{self.placements} on {list(self.mesh.devices)}: give the same on all ranks."
            )
        if ways[0] != self.source:
            return (
                f"rank {own} has the tensor on a mesh {ways[0].shape} of ranks {list(ways[0].devices)}, "
                f"{leader} on {self.source.shape} of {list(self.source.devices)}: give the same on all "
                "ranks."
            )
        for mesh, each in zip(meshes, (self.held, self.placements), strict=True):
            if wrong := out_of_order(mesh, each):
                return wrong
        if tensor is None:
            return (
                ""
                if own not in self.source.devices
                else f"rank {own} is on the source mesh but gave no tensor: give its local one."
            )
        held = _normal(tensor.placements, self.shape)
        if (tuple(tensor.shape), tensor.dtype, held) != (self.shape, self.dtype, self.held):
            return (
                f"rank {own} has a tensor {list(tensor.shape)} of {tensor.dtype} by {held}, {leader} "
                f"{list(self.shape)} of {self.dtype} by {self.held}: give the same on all ranks."
            )
        if own in self.source.devices and _has_gradient(tensor) != self.has_gradient:
            words = ("requires no gradient", "requires a gradient")
            return (
                f"rank {own} {words[not self.has_gradient]} of its tensor, {leader} "
                f"{words[self.has_gradient]}: do the same on all ranks."
            )
        return "" if own not in self.source.devices else self._other_size(tensor)

    def _other_size(self, tensor: DTensor) -> str:
        """That this process's piece is of another size than its place says; "" where it is of that."""
        assert self.source is not None
        own, shape = dist.get_rank(), tuple(tensor.to_local().shape)
        box = Layout(self.source, spec_from(self.held, len(self.shape))).region(own, self.shape)
        sizes = tuple(stop - start for start, stop in box)
        if shape == sizes:
            return ""
        return (
            f"rank {own} has a piece of {list(shape)}, but {self.held} gives it {list(sizes)} of "
            f"{list(self.shape)}: give DTensor.from_local pieces as torch.chunk cuts them."
        )


def _asked(
    tensor: DTensor | None,
    ways: tuple[Mesh, Mesh],
    placements: Sequence[Placement],
    network: Network | None,
    meeting: Meeting,
) -> _Asked:
    if tensor is None:
        return _Asked(wrong="the source's first process has no tensor: give it there.")
    shape, plans = tuple(tensor.shape), dict[Hashable, ReshardPlan]()

    def planned(a: Layout, b: Layout) -> Hashable:
        key = a, b, shape, tensor.dtype.itemsize, _figures(known)
        if key not in meeting.plans:
            plans[key] = plan_reshard(a, b, shape, tensor.dtype.itemsize, known)
        return key

    try:
        known = network or meeting.network
        a = Layout(ways[0], spec_from(tensor.placements, len(shape)))
        b = Layout(ways[1], spec_from(placements, len(shape)))
        for name, mesh, given in (
            ("source", ways[0], tensor.placements),
            ("destination", ways[1], placements),
        ):
            if len(given) != len(mesh.shape):
                raise ReshardError(
                    f"{len(given)} placements for the {name}'s mesh of {len(mesh.shape)} axes: give one "
                    "for each axis."
                )
        has_gradient = _has_gradient(tensor)
        there, back = planned(a, b), planned(b, a) if has_gradient else None
    except ReshardError as error:
        return _Asked(wrong=str(error))
    held, normal = (_normal(each, shape) for each in (tensor.placements, placements))
    return _Asked("", shape, tensor.dtype, has_gradient, ways[0], held, ways[1], normal, there, back, plans)


@dataclass(frozen=True)
class _Carrier:
    """Moves this process's pieces, either way."""

    name: str
    task: _Asked
    meeting: Meeting
    timeout_s: float
    device: torch.device

    def local(self, tensor: DTensor | None) -> Tensor:
        """This process's piece; an empty one to hang the result's gradient on, where it has none."""
        if tensor is not None and tensor.device_mesh.get_coordinate() is not None:
            return tensor.to_local()
        return self.kind.new_empty(0).requires_grad_(self.task.has_gradient)

    @property
    def kind(self) -> Tensor:
        return torch.empty(0, dtype=self.task.dtype, device=self.device)

    def moved(self, key: Hashable, local: Tensor, otherwise: Sequence[int]) -> Tensor:
        """The new piece; where this process gets none, an empty tensor of the shape `otherwise`."""
        own, plan = dist.get_rank(), self.meeting.plans[key]
        piece = local.detach() if own in plan.source.mesh.devices else None
        transport, in_order = self.meeting.transport, self.device.type == "cuda"
        new = reshard_piece(plan, own, piece, transport, self.kind, self.timeout_s, in_order)
        return self.kind.new_zeros(otherwise) if new is None else new


class _Redistribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, local: Tensor, carrier: _Carrier) -> Tensor:
        ctx.carrier, ctx.shape = carrier, local.shape
        return carrier.moved(carrier.task.there, local, (0,) if carrier.task.shape else ())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        carrier: _Carrier = ctx.carrier
        carrier.meeting.objection(f"the gradient of {carrier.name}", "")
        return carrier.moved(carrier.task.back, gradient, ctx.shape), None


def _figures(network: Network) -> Hashable:
    """All that tells one network from another."""
    tables = (network.host_of, network.nic, network.inside)
    return *(tuple(each.items()) for each in tables), network.nic_latency_s, network.inside_latency_s


def _has_gradient(tensor: Tensor) -> bool:
    return tensor.requires_grad and torch.is_grad_enabled()


def _normal(placements: Sequence[Placement], shape: tuple[int, ...]) -> tuple[Placement, ...]:
    """Placements with dimensions counted from the first."""
    return tuple(
        Shard(each.dim % len(shape)) if type(each) is Shard and shape else each for each in placements
    )


def _device(mesh: DeviceMesh) -> torch.device:
    kind = torch.device(mesh.device_type)
    return kind if kind.type == "cpu" else torch.device(kind.type, torch.accelerator.current_device_index())
