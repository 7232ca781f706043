"""Tensors between processes of one host: the receiver reads them from the sender's memory.

    p                                       q
    send x ──── offer: tag, address ──────► reads x into its buffer when it next has to do with
    x is over ◄──────── taken: tag ──────── any transfer, or waits for one

This takes one copy and two small packets over a socket, where gloo copies twice in its own threads. MPI calls
it cross-memory attach (process_vm_readv of Linux). If the system forbids it, no process is a neighbour.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
import sys
import time
import uuid
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from netsplit.runtime.transport.handle import TransportLost, TransportTimeout

__all__ = ["Neighbours", "may_be_read"]

_PACKET = struct.Struct("=BqQQ")  # kind, tag, address, bytes
_OFFER, _TAKEN = 0, 1
_MEETING_S = 60.0
_AT_ONCE = 2**30  # bytes of one call, which the system limits to 2 GiB
_SET_PTRACER, _ANYBODY = 0x59616D61, 2**64 - 1  # prctl option that the Yama security module needs


class Neighbours:
    """The other processes of this host, by rank, and transfers under way with them.

    For one thread. A tag is used once at a time between the same two, each way.
    """

    def __init__(self, sockets: Mapping[int, socket.socket] | None = None) -> None:
        self.wires = {rank: _Wire(each) for rank, each in (sockets or {}).items()}
        self.poll = select.poll()
        for wire in self.wires.values():
            self.poll.register(wire.socket, select.POLLIN)

    @classmethod
    def meet(cls, rank: int) -> Neighbours:
        """Find which processes of the default group can read each other. All call this together."""
        count, name = dist.get_world_size(), f"netsplit-{uuid.uuid4().hex}"
        token = torch.frombuffer(bytearray(uuid.uuid4().bytes), dtype=torch.uint8)  # to be read by the others
        place = _place() if count > 1 and may_be_read() else ""
        cards: list[Any] = [None] * count
        readable: list[Any] = [None] * count
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) if place else nullcontext() as door:
            if door is not None:
                door.bind(f"\0{name}")
                door.listen(count)
            own = place, name, os.getpid(), token.data_ptr(), token.numpy().tobytes()
            dist.all_gather_object(cards, own)
            near = [q for q, (there, *_) in enumerate(cards) if place == there != "" and q != rank]
            dist.all_gather_object(readable, {q for q in near if _can_read(*cards[q][2:])})
            names = {q: cards[q][1] for q in near if q in readable[rank] and rank in readable[q]}
            return cls({} if door is None else _joined(door, rank, names))

    def __contains__(self, rank: object) -> bool:
        return rank in self.wires

    def send(self, tensor: Tensor, rank: int, tag: int) -> _Offered:
        """Offer a contiguous CPU tensor; it must not change until the transfer is over."""
        wire = self.wires[rank]
        transfer = wire.given[tag] = _Offered(self, wire, tensor)
        wire.say(_OFFER, tag, tensor.data_ptr(), _nbytes(tensor))
        self.proceed()
        return transfer

    def receive(self, buffer: Tensor, rank: int, tag: int) -> _Offered:
        wire = self.wires[rank]
        transfer = wire.wanted[tag] = _Offered(self, wire, buffer)
        wire.take(tag)
        self.proceed()
        return transfer

    def proceed(self) -> None:
        """Carry out what has become possible, without waiting."""
        for wire in self.wires.values():
            wire.proceed()

    def await_any(self, seconds: float) -> None:
        """Wait until something can proceed, or `seconds` have passed."""
        for wire in self.wires.values():
            if wire.lost and not wire.left:
                self.poll.unregister(wire.socket)
                wire.left = True
            elif not wire.lost:
                self.poll.modify(wire.socket, select.POLLIN | (select.POLLOUT if wire.unsaid else 0))
        self.poll.poll(1e3 * seconds)
        self.proceed()


class _Offered:
    def __init__(self, neighbours: Neighbours, wire: _Wire, tensor: Tensor) -> None:
        self.neighbours = neighbours
        self.wire = wire
        self.tensor = tensor
        self.over = False

    def wait(self, timeout_s: float) -> Tensor:
        deadline = time.monotonic() + timeout_s
        self.neighbours.proceed()
        while not self.over:
            if self.wire.lost:
                raise TransportLost(f"process {self.wire.pid} is gone")
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TransportTimeout(f"not moved within {timeout_s:g} s")
            self.neighbours.await_any(left_s)
        return self.tensor

    def done(self) -> bool:
        if not self.over:
            self.neighbours.proceed()
        return self.over


class _Wire:
    """The socket to one neighbour and the transfers agreed over it."""

    def __init__(self, own: socket.socket) -> None:
        own.setblocking(False)
        self.socket = own
        self.pid, _ = _credentials(own)
        self.given: dict[int, _Offered] = {}  # by tag: offered
        self.wanted: dict[int, _Offered] = {}
        self.offers: dict[int, tuple[int, int]] = {}  # offered before a receive: address, bytes
        self.unsaid: deque[bytes] = deque()  # while the socket is full
        self.lost = False
        self.left = False

    def say(self, what: int, tag: int, address: int = 0, nbytes: int = 0) -> None:
        self.unsaid.append(_PACKET.pack(what, tag, address, nbytes))
        self._flush()

    def proceed(self) -> None:
        if self.lost:
            return
        self._flush()
        while True:
            try:
                packet = self.socket.recv(_PACKET.size)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if len(packet) < _PACKET.size:
                self.lost = True
                return
            what, tag, address, nbytes = _PACKET.unpack(packet)
            if what == _TAKEN:
                self.given.pop(tag).over = True
            else:
                self.offers[tag] = address, nbytes
                self.take(tag)

    def take(self, tag: int) -> None:
        if self.lost or tag not in self.offers or tag not in self.wanted:
            return
        (address, nbytes), transfer = self.offers.pop(tag), self.wanted.pop(tag)
        wanted = _nbytes(transfer.tensor)
        assert nbytes == wanted, f"{nbytes} bytes were sent but {wanted} expected"
        try:
            _read(self.pid, address, transfer.tensor.data_ptr(), nbytes)
        except OSError:
            self.lost = True
            return
        transfer.over = True
        self.say(_TAKEN, tag)

    def _flush(self) -> None:
        while self.unsaid and not self.lost:
            try:
                self.socket.send(self.unsaid[0])
            except BlockingIOError:
                return
            except OSError:
                self.lost = True
                return
            self.unsaid.popleft()


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def _read(pid: int, address: int, into: int, nbytes: int) -> None:
    """Copy another process's bytes into this one's memory; raises OSError on failure."""
    assert _libc is not None
    at = 0
    while at < nbytes:
        size = min(nbytes - at, _AT_ONCE)
        own, other = _Vector(into + at, size), _Vector(address + at, size)
        one = ctypes.c_ulong(1)
        moved = _libc.process_vm_readv(
            pid, ctypes.byref(own), one, ctypes.byref(other), one, ctypes.c_ulong(0)
        )
        if moved <= 0:
            raise OSError(ctypes.get_errno(), f"cannot read the memory of process {pid}")
        at += moved


def may_be_read() -> bool:
    """Let this user's processes read this one's memory; false where the system cannot."""
    if _libc is None or not hasattr(_libc, "process_vm_readv"):
        return False
    _libc.process_vm_readv.restype = ctypes.c_ssize_t
    _libc.prctl(_SET_PTRACER, ctypes.c_ulong(_ANYBODY), 0, 0, 0)  # without Yama it does nothing
    return True


def _place() -> str:
    """The namespace of process ids and socket names; "" if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return " ".join((boot, os.readlink("/proc/self/ns/pid"), os.readlink("/proc/self/ns/net")))
    except OSError:
        return ""


def _can_read(pid: int, address: int, expected: bytes) -> bool:
    copied = torch.zeros(len(expected), dtype=torch.uint8)
    with suppress(OSError):
        _read(pid, address, copied.data_ptr(), len(expected))
    return copied.numpy().tobytes() == expected


def _credentials(peer: socket.socket) -> tuple[int, int]:
    pid, uid, _ = struct.unpack("iII", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(pid), int(uid)


def _joined(door: socket.socket, rank: int, names: Mapping[int, str]) -> dict[int, socket.socket]:
    """Sockets by rank; each process connects to higher ranks."""
    sockets: dict[int, socket.socket] = {}
    for q in (q for q in names if q > rank):
        sockets[q] = peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.settimeout(_MEETING_S)
        peer.connect(f"\0{names[q]}")
        peer.send(rank.to_bytes(8, "little"))
    door.settimeout(_MEETING_S)
    while len(sockets) < len(names):
        peer, _ = door.accept()
        _, uid = _credentials(peer)
        if uid == os.getuid():
            peer.settimeout(_MEETING_S)
            sockets[int.from_bytes(peer.recv(8), "little")] = peer
    return sockets
