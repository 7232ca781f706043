"""Rates in a file: what was fitted to measured profiles on one machine, for planning on another."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from netsplit.cluster.rates import Efficiency, Overheads, Rates
from netsplit.errors import ConfigError
from netsplit.files import parsed_json, write_text

__all__ = ["read_rates", "write_rates"]


def write_rates(rates: Rates, path: str | Path) -> None:
    """Whole or not at all."""
    write_text(path, json.dumps(asdict(rates), indent=1) + "\n")


def read_rates(path: str | Path, key: str) -> dict[str, Any]:
    """The arguments of `Rates` that `write_rates` wrote.

    Raises:
        ConfigError: naming `key`: no such file, or none of rates.
    """
    try:
        written = parsed_json(Path(path).read_text(encoding="utf-8"))
        efficiency = {str(kind): Efficiency(**each) for kind, each in written["efficiency"].items()}
        given = {**written, "efficiency": efficiency, "tensor_classes": tuple(written["tensor_classes"])}
        if (beside := written.get("overheads")) is not None:
            given["overheads"] = Overheads(**beside)
        rates = Rates(**given)
        positive = [rates.flops, rates.bandwidth, *(s.compute for s in efficiency.values())]
        if rates.overheads is not None:
            positive += [rates.overheads.instruction_s, rates.overheads.message_s]
        if not (isinstance(rates.name, str) and all(value > 0 for value in positive)):
            raise ValueError("a rate is not above 0")
    except OSError as error:
        raise ConfigError(f"{key} is '{path}', which cannot be read: {error.strerror}.") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{key} is '{path}', which holds no rates: write them with `python -m benchmarks.predictor "
            "--rates <file>`."
        ) from error
    return {each.name: getattr(rates, each.name) for each in fields(Rates)}
