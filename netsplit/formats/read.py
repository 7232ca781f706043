"""A graph file, whichever of the formats it has: told apart by what is in the file."""

from __future__ import annotations

from pathlib import Path

from netsplit.errors import ConfigError, NetSplitError
from netsplit.formats.msr import read_msr
from netsplit.formats.own import read_own
from netsplit.formats.pipedream import Inputs, read_pipedream
from netsplit.graph.files import parse_json
from netsplit.planning.workload import Workload

__all__ = ["read_workload"]


def read_workload(path: str | Path, inputs: Inputs = "free") -> Workload:
    """Read a graph file, whichever of the formats it has.

    Args:
        inputs: whether time measured at PipeDream's `Input` nodes counts (see `formats.pipedream`).

    Raises:
        NetSplitError: no such file, no known format, or the first thing that is wrong with it, by line.
    """
    file = Path(path)
    text, where = _text(file), str(file)
    if not text.lstrip().startswith(("{", "[")):
        if " -- " not in text:
            raise NetSplitError(f"{where}: {_UNKNOWN}.")
        return read_pipedream(text, where, file.stem, inputs)
    if inputs != "free":
        raise ConfigError(f"inputs is {inputs}, but {where} is not a PipeDream file: leave inputs out.")
    data = parse_json(text, where)
    if isinstance(data, dict) and "format" in data:
        return read_own(data, text, where, file.stem)
    if isinstance(data, dict) and {"maxFPGAs", "maxSizePerFPGA", "edges", "nodes"} & data.keys():
        return read_msr(data, where, file.stem)
    raise NetSplitError(f"{where}: {_UNKNOWN}.")


_UNKNOWN = (
    "not a graph file: neither NetSplit's JSON, nor PipeDream's graph.txt ('id -- description -- "
    "forward_compute_time=...'), nor the JSON of dnn-partitioning ('maxFPGAs', 'nodes', 'edges')"
)


def _text(file: Path) -> str:
    try:
        raw = file.read_bytes()
    except FileNotFoundError as error:
        raise NetSplitError(f"graph file '{file}' does not exist.") from error
    except OSError as error:
        raise NetSplitError(f"graph file '{file}' cannot be read: {error.strerror}.") from error
    if not raw.strip():
        raise NetSplitError(f"{file}: the file is empty.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise NetSplitError(f"{file}, line {line}: not text in UTF-8, so not a graph file.") from error
