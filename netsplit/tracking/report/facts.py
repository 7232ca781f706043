"""What a comparison was of, on what and with what: pairs of a word and its value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from netsplit.tracking.report.results import ComparisonResult
from netsplit.tracking.report.units import fixed, moment, took

__all__ = ["facts_of", "lead_of", "links_of", "when_and_where"]

_GIB = 2.0**30
_MOST_DEVICES = 8  # that are named
_OWN = ("_target_", "_partial_")


def lead_of(found: ComparisonResult) -> str:
    """The result in a sentence."""
    best = found.best
    if best is None:
        return found.error or "No method has a throughput within the capacities."
    kind = " predicted" if best.only_predicted else ""
    start = f"Fastest: {best.name} with {fixed(best.throughput, 1)} samples/s{kind}"
    same = [method for method in found.methods if method.only_predicted == best.only_predicted]
    second = replace(found, methods=[method for method in same if method is not best]).best
    if second is None or not second.throughput or not best.throughput:
        return f"{start}."
    return f"{start}, {best.throughput / second.throughput:.2f} times {second.name}, the next."


def when_and_where(found: ComparisonResult) -> str:
    """When it began, how long it took, and the machine, in a line."""
    begun = f"{'Planned' if found.planned else 'Begun'} {moment(found.started)}"
    begun += "" if found.seconds is None else f", took {took(found.seconds)}"
    machine = _machine(found)
    return f"{begun}, on {machine}." if machine else f"{begun}."


def facts_of(found: ComparisonResult) -> list[tuple[str, str]]:
    """Whatever was recorded of these, in the order of interest."""
    tags, params = found.tags, found.params
    facts = [
        ("Mode", "planned: what an iteration takes is predicted" if found.planned else ""),
        ("Model", _with_params(tags.get("model", ""), params, "model")),
        ("Dataset", _with_params(tags.get("dataset", ""), params, "dataset")),
        ("Cluster", _cluster(found)),
        ("Schedule", _with_params(tags.get("schedule", ""), params, "schedule")),
        (
            "Optimiser",
            _with_params(params.get("optimizer._target_", "").rpartition(".")[2], params, "optimizer"),
        ),
        ("Batch, epochs, seed", _several(params, "batch_size", "epochs", "seed")),
        ("System", tags.get("host.os", "")),
        ("Software", _software(found)),
        ("Commit", _commit(found)),
        ("MLflow experiment", found.experiment),
    ]
    return [(name, value) for name, value in facts if value]


def links_of(found: ComparisonResult) -> list[tuple[str, str]]:
    """The probed or given links: "cpu:0 to cpu:1" and what was found."""
    return [
        (key.removeprefix("link."), value) for key, value in found.tags.items() if key.startswith("link.")
    ]


def _with_params(name: str, params: Mapping[str, str], group: str) -> str:
    """`AmoebaNetD (num_layers 3, num_filters 32)`: what the group's config gives beside its target."""
    start = f"{group}."
    given = [
        f"{key.removeprefix(start)} {value}"
        for key, value in params.items()
        if key.startswith(start) and not key.endswith(_OWN) and value not in ("None", "False")
    ]
    return f"{name} ({', '.join(given)})" if name and given else name


def _cluster(found: ComparisonResult) -> str:
    """`cpu2 (cpu:0, cpu:1)`: with the devices that the config names."""
    name = found.tags.get("cluster", "")
    devices: list[str] = []
    while (device := found.params.get(f"cluster.devices.{len(devices)}.name")) is not None:
        devices.append(device)
    most = devices[:_MOST_DEVICES] + ["…"] * (len(devices) > _MOST_DEVICES)
    return f"{name} ({', '.join(most)})" if devices else name


def _several(params: Mapping[str, str], *keys: str) -> str:
    return ", ".join(params.get(key, "?") for key in keys) if any(key in params for key in keys) else ""


def _machine(found: ComparisonResult) -> str:
    tags = found.tags
    parts = [tags.get("host.cpu", "")]
    if "host.cores" in tags:
        parts.append(f"{tags['host.cores']} cores")
    memory = tags.get("host.memory_bytes", "")
    parts.append(f"{int(memory) / _GIB:.1f} GiB" if memory.isdecimal() else "")
    parts.append(tags.get("host.gpus", ""))
    name, rest = tags.get("host.name", ""), ", ".join(part for part in parts if part)
    return f"{name} ({rest})" if name and rest else name or rest


def _software(found: ComparisonResult) -> str:
    start = "version."
    return ", ".join(
        f"{key.removeprefix(start)} {value}" for key, value in found.tags.items() if key.startswith(start)
    )


def _commit(found: ComparisonResult) -> str:
    commit = found.tags.get("git.commit", "")
    changed = " with changes" if found.tags.get("git.dirty") == "true" else ""
    return f"{commit[:12]}{changed}" if commit else ""
