"""What a comparison was of, on what and with what: pairs of a word and its value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from netsplit.report.data.results import ComparisonGroup, ComparisonResult, StudyRecord
from netsplit.report.text import column, fixed, moment, took

__all__ = [
    "facts_of", "failures_of", "lead_of", "lead_of_group", "left_out_of", "links_of", "own_error",
    "when_and_where", "when_recorded",
]  # fmt: skip

_GIB = 2.0**30
_MOST_DEVICES = 8  # that are named
_MOST_WINNERS = 3
_OWN = ("_target_", "_partial_")


def lead_of(comparison: ComparisonResult) -> str:
    """The result in a sentence."""
    best = comparison.best
    if best is None:
        return _without_result(comparison)
    kind = " predicted" if best.only_predicted else ""
    same = [method for method in comparison.methods if method.only_predicted == best.only_predicted]
    second = replace(comparison, methods=[method for method in same if not comparison.won_by(method)]).best
    shown = column([best.throughput, None if second is None else second.throughput])[0]
    if not comparison.contested:
        return f"{best.name}: {shown} samples/s{kind}."
    names = " and ".join(method.name for method in same if comparison.won_by(method))
    start = f"Fastest: {names} with {shown} samples/s{kind}"
    if second is None or not second.throughput or not best.throughput:
        return f"{start}."
    return f"{start}, {fixed(best.throughput / second.throughput, 2)} times {second.name}, the next."


def lead_of_group(group: ComparisonGroup) -> str:
    """Of cases how many, who won, and how far from what others published; of a sweep the fastest."""
    if group.is_sweep:
        return _lead_of_sweep(group)
    won = [(each, method) for each in group.comparisons for method in each.methods]
    winners = Counter(method.name for each, method in won if each.won_by(method))
    text = f"{len(group.comparisons)} cases"
    if winners:
        text += "; fastest: " + ", ".join(f"{name} in {count}" for name, count in winners.most_common())
    known = [
        (abs(method.difference), method.name, comparison.case)
        for comparison in group.comparisons
        for method in comparison.published
        if method.difference is not None
    ]
    if not known:
        return f"{text}."
    most, name, case = max(known)
    middle = median(difference for difference, _, _ in known)
    figures = f"{len(known)} published figure{'s' * (len(known) != 1)}"
    text += f". Beside {figures} ours differ by {fixed(100 * middle, 1)} % in the median"
    return f"{text}, at most by {fixed(100 * most, 1)} % ({name} in {case})."


def left_out_of(comparisons: Sequence[ComparisonResult]) -> str | None:
    """How many comparisons of the same command or name are not shown."""
    more, older = sum(one.more for one in comparisons), sum(one.older for one in comparisons)
    kind = "experiment" if any(one.case for one in comparisons) else "name"
    parts = [f"{more} more of the same command"] if more else []
    parts += [f"{older} older of this {kind}"] if older else []
    return f"Not shown: {', '.join(parts)}; runs=[<id>, ...] shows any." if parts else None


def failures_of(comparison: ComparisonResult) -> list[tuple[str, str]]:
    """Who failed, and why."""
    own = own_error(comparison)
    whole = [] if own is None else [("the comparison", own)]
    return whole + [(f"{each.name} {each.outcome}", each.row.error or "") for each in comparison.failed]


def own_error(comparison: ComparisonResult) -> str | None:
    """Why the comparison failed, unless one of its methods says it."""
    said = comparison.error in [method.row.error for method in comparison.failed]
    return None if said else comparison.error


def when_and_where(comparison: ComparisonResult) -> str:
    """When it began, how long it took, and the machine, in a line."""
    begun = f"{'Planned' if comparison.planned else 'Begun'} {moment(comparison.started)}"
    begun += "" if comparison.seconds is None else f", took {took(comparison.seconds)}"
    machine = _machine(comparison.tags)
    return f"{begun}, on {machine}." if machine else f"{begun}."


def when_recorded(study: StudyRecord) -> str:
    """When a study ended, and the machine, in a line."""
    machine = _machine(study.tags)
    return f"Recorded {moment(study.started)}{f', on {machine}' if machine else ''}."


def facts_of(comparison: ComparisonResult) -> list[tuple[str, str]]:
    """Whatever was recorded of these, in the order of interest."""
    tags, params = comparison.tags, comparison.params
    facts = [
        ("Mode", "planned: what an iteration takes is predicted" if comparison.planned else ""),
        ("Model", _with_params(tags.get("model", ""), params, "model")),
        ("Dataset", _with_params(tags.get("dataset", ""), params, "dataset")),
        ("Cluster", _cluster(comparison)),
        ("Schedule", _with_params(tags.get("schedule", ""), params, "schedule")),
        (
            "Optimiser",
            _with_params(_optimizer(params).rpartition(".")[2], params, "optimizer"),
        ),
        ("Batch, epochs, seed", _several(params, "batch_size", "epochs", "seed")),
        ("System", tags.get("host.os", "")),
        ("Software", _software(comparison.tags)),
        ("Commit", _commit(comparison.tags)),
        ("MLflow experiment", comparison.experiment),
    ]
    return [(name, value) for name, value in facts if value]


def _optimizer(params: Mapping[str, str]) -> str:
    """The dotted name of the class; of groups of parameters that of their optimiser."""
    return params.get("optimizer.optimizer") or params.get("optimizer._target_", "")


def links_of(comparison: ComparisonResult) -> list[tuple[str, str]]:
    """The probed or given links: "cpu:0 to cpu:1" and what was found."""
    return [
        (key.removeprefix("link."), value)
        for key, value in comparison.tags.items()
        if key.startswith("link.")
    ]


def _lead_of_sweep(group: ComparisonGroup) -> str:
    text = f"{len(group.comparisons)} comparisons of one sweep"
    best = group.best
    won = [(one, method) for one in group.comparisons for method in one.methods if group.won_by(one, method)]
    if best is None or not won:
        return f"{text}."
    (shown,) = column([best.throughput])
    kind = " predicted" if best.only_predicted else ""
    names = " and ".join(f"{method.name} ({one.label})" for one, method in won[:_MOST_WINNERS])
    rest = len(won) - _MOST_WINNERS
    return f"{text}. Fastest: {names}{f' and {rest} more' if rest > 0 else ''} with {shown} samples/s{kind}."


def _with_params(name: str, params: Mapping[str, str], group: str) -> str:
    """`AmoebaNetD (num_layers 3, num_filters 32)`: what the group's config gives beside its target."""
    start = f"{group}."
    given = [
        f"{key.removeprefix(start)} {value}"
        for key, value in params.items()
        if key.startswith(start) and not key.endswith(_OWN) and value not in ("None", "False")
    ]
    return f"{name} ({', '.join(given)})" if name and given else name


def _cluster(comparison: ComparisonResult) -> str:
    """`cpu2 (cpu:0, cpu:1)`: with the devices that the config names."""
    name = comparison.tags.get("cluster", "")
    devices: list[str] = []
    while (device := comparison.params.get(f"cluster.devices.{len(devices)}.name")) is not None:
        devices.append(device)
    most = devices[:_MOST_DEVICES] + ["…"] * (len(devices) > _MOST_DEVICES)
    return f"{name} ({', '.join(most)})" if devices else name


def _several(params: Mapping[str, str], *keys: str) -> str:
    return ", ".join(params.get(key, "?") for key in keys) if any(key in params for key in keys) else ""


def _machine(tags: Mapping[str, str]) -> str:
    parts = [tags.get("host.cpu", "")]
    if "host.cores" in tags:
        parts.append(f"{tags['host.cores']} cores")
    memory = tags.get("host.memory_bytes", "")
    parts.append(f"{int(memory) / _GIB:.1f} GiB" if memory.isdecimal() else "")
    parts.append(tags.get("host.gpus", ""))
    name, rest = tags.get("host.name", ""), ", ".join(part for part in parts if part)
    return f"{name} ({rest})" if name and rest else name or rest


def _software(tags: Mapping[str, str]) -> str:
    start = "version."
    return ", ".join(
        f"{key.removeprefix(start)} {value}" for key, value in tags.items() if key.startswith(start)
    )


def _commit(tags: Mapping[str, str]) -> str:
    commit = tags.get("git.commit", "")
    changed = " with changes" if tags.get("git.dirty") == "true" else ""
    return f"{commit[:12]}{changed}" if commit else ""


def _without_result(comparison: ComparisonResult) -> str:
    methods = comparison.methods
    if not methods:
        return "No method was begun."
    if len(comparison.failed) < len(methods):
        return "No method has a throughput within the capacities."
    return "The only method failed." if len(methods) == 1 else "Every method failed."
