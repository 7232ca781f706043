"""The files of a checkpoint: planned, written, put in place, read again.

    device 0 ─ plan ─┐                      ┌─ its part of the plan ─► __0_0.distcp ─┐
    device 1 ─ plan ─┼─► one plan, no key  ─┼─ its part of the plan ─► __1_0.distcp ─┼─► .metadata, renamed
    controller plan ─┘   written twice      └─ its part of the plan ─► __2_0.distcp ─┘   netsplit.json

The files are those of `torch.distributed.checkpoint`, so plain PyTorch reads them. The controller asks over
its own connections, so no device waits for one whose disk is full.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch
from torch import Tensor

from netsplit.errors import ConfigError, NetSplitError
from netsplit.files import EXTRA, METADATA, is_complete, parsed_json
from netsplit.interrupts import interrupts_held
from netsplit.runtime.checkpoint.torch_format import piece_at, plain_values, read_metadata, reader_of

if TYPE_CHECKING:  # it takes a second to load, in every worker, and many never save
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.planner import SavePlan
    from torch.distributed.checkpoint.storage import WriteResult

__all__ = [
    "CHECKSUMS",
    "CheckpointPart",
    "Kind",
    "Refusal",
    "Saved",
    "State",
    "check_fits",
    "kind_of",
    "read_extra",
    "reason_of",
    "write_checkpoint",
]

_REMOVALS, _REMOVAL_S = 40, 0.05  # tries to remove what a failed save leaves, and seconds between them
_FORMAT = 1
CHECKSUMS = "checksums.json"
_AT_ONCE = 2**24  # bytes of a file that are read

State = dict[str, Any]  # by the keys of `checkpoint`
Kind = tuple[str, tuple[int, ...]]  # dtype, shape


@dataclass(frozen=True)
class Refusal:
    """Why a device could not do its part; an answer rather than an exception, which would end the workers."""

    reason: str


class CheckpointPart:
    """One writer's share of a checkpoint."""

    def __init__(self, state: State, folder: Path) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemWriter

        self.planner = _save_planner()
        self.writer = FileSystemWriter(folder)
        self.planner.set_up_planner(state, is_coordinator=False)

    def plan(self) -> SavePlan:
        return self.planner.create_local_plan()

    def write(self, plan: SavePlan) -> list[WriteResult] | Refusal:
        try:
            return self.writer.write_data(self.planner.finish_plan(plan), self.planner).wait()
        except (OSError, RuntimeError) as error:  # torch wraps some system errors
            return Refusal(reason_of(error))


@interrupts_held()  # so that nothing half-written is left
def write_checkpoint(
    folder: Path,
    extra: Mapping[str, Any],
    own: State,
    plan: Callable[[Path], list[SavePlan]],
    write_parts: Callable[[list[SavePlan]], list[list[WriteResult] | Refusal]],
) -> None:
    """Write a checkpoint, whole or not at all: `folder` appears, or is replaced, when everything is on disk.

    Args:
        extra: plain values for `netsplit.json`; `own` is what the controller itself adds.
        plan: asks every device for its plan, given the folder to write to.
        write_parts: hands every device its part; the answers in the same order.

    Raises:
        ConfigError: `folder` holds something else, or `extra` is not what JSON takes.
        NetSplitError: it cannot be written: no room, no permission, a folder that the devices do not share.
    """
    text = _as_json(extra)
    restore(folder)
    if folder.exists() and not is_complete(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"'{folder}' holds other files than a checkpoint: give it a folder of its own.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _clean(folder)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.{os.getpid()}."))
    except OSError as error:
        raise _failed(folder, reason_of(error)) from error
    try:
        mine = CheckpointPart(own, temporary)
        plans = [*plan(temporary), mine.plan()]
        parts, metadata = _save_planner().create_global_plan(plans)
        # So that torch's conversion to one file nests what belongs together.
        metadata.planner_data = {key: tuple(key.split(".", 1)) for key in metadata.state_dict_metadata}
        parts = mine.writer.prepare_global_plan(parts)
        results = [*write_parts(parts[:-1]), mine.write(parts[-1])]
        refused = [result for result in results if isinstance(result, Refusal)]
        if refused:
            raise _failed(folder, refused[0].reason)
        written = [result for result in results if not isinstance(result, Refusal)]
        names = _check_shared(temporary, folder, written)
        _write_synced(temporary / EXTRA, text)
        mine.writer.finish(metadata, written)
        sums = {name: _checksum(temporary / name) for name in sorted({*names, EXTRA, METADATA})}
        _write_synced(temporary / CHECKSUMS, json.dumps(sums))
        temporary.chmod(0o755)
        _put_in_place(temporary, folder)
    except OSError as error:
        raise _failed(folder, reason_of(error)) from error
    finally:
        _remove(temporary)


def _remove(temporary: Path) -> None:
    for _ in range(_REMOVALS):
        shutil.rmtree(temporary, ignore_errors=True)
        if not temporary.exists():
            return
        time.sleep(_REMOVAL_S)


def restore(folder: Path) -> None:
    """Bring back the checkpoint that was being replaced when a save was killed."""
    if folder.exists():
        return
    for old in sorted(folder.parent.glob(f".{glob.escape(folder.name)}.*.old")):
        if is_complete(old):
            old.rename(folder)
            return


def _clean(folder: Path) -> None:
    """Remove what a killed save of this checkpoint has left half-written or half-removed."""
    left = re.compile(rf"\.{re.escape(folder.name)}\.(\d+)\.(old|\w{{8}})")
    for place in folder.parent.glob(f".{glob.escape(folder.name)}.*"):
        match = left.fullmatch(place.name)
        if match is None or (match[2] == "old" and not folder.exists()):
            continue
        process = int(match[1])
        if process == os.getpid() or not psutil.pid_exists(process):
            shutil.rmtree(place, ignore_errors=True)


def _as_json(extra: Mapping[str, Any]) -> str:
    try:
        return json.dumps({"format": _FORMAT, **extra}, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"extra cannot be written as JSON ({error}): give plain values.") from error


def read_extra(folder: Path) -> dict[str, Any]:
    """What was given as `extra` for the checkpoint; raises NetSplitError for none, or a damaged one."""
    restore(folder)
    if not is_complete(folder):
        raise ConfigError(f"there is no complete checkpoint at '{folder}': give a folder that holds one.")
    _require_unharmed(folder)
    try:
        extra = parsed_json((folder / EXTRA).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NetSplitError(f"checkpoint '{folder}' cannot be read: {reason_of(error)}.") from error
    if not isinstance(extra, dict) or extra.pop("format", None) != _FORMAT:
        raise ConfigError(f"checkpoint '{folder}' was written by another version of netsplit.")
    return dict(extra)


def _require_unharmed(folder: Path) -> None:
    """Compare checksums, as torch takes a flipped bit for a number."""
    if not (folder / CHECKSUMS).is_file():
        return
    name = CHECKSUMS
    try:
        expected = parsed_json((folder / CHECKSUMS).read_text(encoding="utf-8"))
        for name, before in expected.items():
            if _checksum(folder / str(name)) != before:
                raise ValueError("another sum")
    except (OSError, ValueError, AttributeError) as error:
        what = f"checkpoint '{folder}' is damaged: its {name} has changed since it was written"
        raise NetSplitError(f"{what}; use an earlier checkpoint.") from error


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while part := file.read(_AT_ONCE):
            value = zlib.crc32(part, value)
    return value


def check_fits(folder: Path, needed: Mapping[str, Kind]) -> None:
    """Raises ConfigError, naming the first difference: the checkpoint is of another model."""
    start = f"checkpoint '{folder}' was saved from another model"
    saved = Saved(folder)
    for name, (dtype, shape) in needed.items():
        kind = saved.kind(f"model.{name}")
        if kind is None:
            raise ConfigError(f"{start}: it has no '{name}'.")
        if kind != (dtype, shape):
            raise ConfigError(f"{start}: '{name}' is {kind[0]} {kind[1]} there and {dtype} {shape} here.")
    left = [name for name in saved.names if name not in needed]
    if left:
        raise ConfigError(f"{start}: this one has no '{left[0]}'.")


class Saved:
    """What a checkpoint has, and how it is read; raises NetSplitError where it cannot be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.entries: dict[str, Any] = dict(read_metadata(folder).state_dict_metadata)
        except Exception as error:  # a truncated pickle can raise anything
            raise NetSplitError(f"checkpoint '{folder}' cannot be read: {reason_of(error)}.") from error
        self._index()

    def _index(self) -> None:
        self._below: dict[str, dict[str, str]] = {}
        for place in self.entries:
            start, _, last = place.rpartition(".")
            self._below.setdefault(start, {})[last] = place

    @property
    def names(self) -> list[str]:
        return [place.removeprefix("model.") for place in self.entries if place.startswith("model.")]

    def below(self, start: str) -> dict[str, str]:
        """Last part of the key -> whole key, for the keys directly below `start`."""
        return self._below.get(start, {})

    def kind(self, place: str) -> Kind | None:
        """(dtype, shape) of a tensor; None where there is none."""
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        entry = self.entries.get(place)
        if not isinstance(entry, TensorStorageMetadata):
            return None
        return str(entry.properties.dtype).removeprefix("torch."), tuple(entry.size)

    def blank(
        self, place: str, device: torch.device | None = None, shape: tuple[int, ...] | None = None
    ) -> Any:
        """A buffer for a value; `device` and the `shape` of a part apply to tensors only."""
        from torch.distributed.checkpoint.metadata import TensorStorageMetadata

        entry = self.entries[place]
        if isinstance(entry, TensorStorageMetadata):
            return torch.empty(shape or entry.size, dtype=entry.properties.dtype, device=device)
        return None

    def read(self, flat: dict[str, Any]) -> dict[str, Any]:
        """Fill the tensors of `flat` in place and replace its other values."""
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict_loader import load

        if not flat:
            return flat
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warns that no process group is used
                load(flat, storage_reader=reader_of(self.folder), planner=plain_values(), no_dist=True)
        except (CheckpointException, Exception) as error:  # CheckpointException is no Exception
            failures = getattr(error, "failures", None) or {}
            reason = reason_of(next((each[0] for each in failures.values()), error))
            raise NetSplitError(f"checkpoint '{self.folder}' cannot be read: {reason}.") from error
        return flat


def kind_of(tensor: Tensor) -> Kind:
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def _save_planner() -> DefaultSavePlanner:
    """torch's planner; a list or mapping is one value, and of equal keys the first device's is written."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    class PlannerOfParts(DefaultSavePlanner):
        def lookup_object(self, index: MetadataIndex) -> Any:
            return piece_at(self.state_dict, index, super().lookup_object)

    return PlannerOfParts(False, False, dedup_save_to_lowest_rank=True)


def _check_shared(temporary: Path, folder: Path, results: Iterable[list[WriteResult]]) -> set[str]:
    """All files of the checkpoint; raises where another machine's are missing here."""
    names = {result.storage_data.relative_path for part in results for result in part}
    missing = sorted(name for name in names if not (temporary / name).is_file())
    if missing:
        raise _failed(folder, f"{missing[0]} is not here: give a folder that all machines share")
    return names


def _write_synced(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _put_in_place(temporary: Path, folder: Path) -> None:
    """Rename; an earlier checkpoint there is moved away first and removed last."""
    old = None
    if folder.exists():
        old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
        folder.rename(old)
    try:
        temporary.rename(folder)
    except OSError:
        if old is not None:
            old.rename(folder)
        raise
    handle = os.open(folder.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    if old is not None:
        with suppress(OSError):
            (old / METADATA).unlink()  # otherwise a half-removed one would look complete
        shutil.rmtree(old, ignore_errors=True)


def _failed(folder: Path, reason: str) -> NetSplitError:
    return NetSplitError(
        f"checkpoint '{folder}' could not be written completely: {reason}; free some space, or choose "
        "another checkpoint.folder (earlier checkpoints are untouched)."
    )


def reason_of(error: BaseException) -> str:
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, OSError) and at.strerror:
            return at.strerror
        at = at.__cause__ or at.__context__
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
