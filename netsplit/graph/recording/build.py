"""From what was recorded to nodes and variables (thesis section 4.1.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import fields, replace

from netsplit.errors import CaptureError
from netsplit.graph.analyse import (
    Facts,
    analyse,
    carries,
    is_spread,
    kept_for_backward,
    memory_order,
    repeated_dims,
    storage_id,
)
from netsplit.graph.arguments import Reference, read_by, renamed
from netsplit.graph.ir import CALL, Graph, Node, Variable
from netsplit.graph.recording.record import Recorder
from netsplit.graph.recording.stand_ins import RecordedCall, refuse_sharing
from netsplit.graph.recording.whole import GradientHook

__all__ = ["built"]


def built(recorder: Recorder, inputs: Sequence[str], outputs: Sequence[str], autocast: str | None) -> Graph:
    """The graph of a finished recording; what has no effect is left out."""
    held = {storage_id(t): k for k, t in recorder.stand_ins.fake.items()}
    written = {storage_id(recorder.tensor(*each)) for call in recorder.calls for each in call.writes}
    refuse_sharing(recorder.stand_ins.real, {k for storage, k in held.items() if storage in written})
    _refuse_writes(recorder)
    _add_hooks(recorder)
    calls = list(_used(recorder, recorder.calls, outputs))
    read = {reference for call in calls for reference in read_by(call)}
    initializers = {
        name: init for name, init in recorder.stand_ins.initializers.items() if ("init", name) in read
    }
    names = [*inputs, *(k for call in calls for k in call.outputs if k)]
    own = {storage_id(tensor) for tensor in recorder.stand_ins.fake.values()}
    nodes = _without_recomputed({call.name: _node(recorder, call, own) for call in calls})
    graph = Graph(
        nodes=nodes,
        variables=_variables(recorder, nodes, names),
        input_variables=tuple(inputs),
        output_variables=tuple(outputs),
        initializers=initializers,
        autocast=autocast,
        constants={k: t for k, t in recorder.stand_ins.constants.items() if k in initializers},
        calls={node.op: recorder.payloads[node.op] for node in nodes.values() if node.op.startswith(CALL)},
    )
    facts = Facts(
        {k: storage_id(recorder.tensors[k]) for k in names},
        {k: storage_id(recorder.stand_ins.fake[k]) for k in initializers},
        frozenset(k for k in names if carries(recorder.tensors[k])),
        {call.name: call.writes for call in calls},
    )
    return analyse(graph, facts)


def _used(
    recorder: Recorder, calls: Sequence[RecordedCall], outputs: Sequence[str]
) -> Iterator[RecordedCall]:
    """Drops calls that nothing depends on; those that write or draw stay.

    What draws stays for the sake of what draws after it; what writes, where its storage is one that
    somebody reads.
    """
    wanted = {("var", k) for k in outputs}
    keep: set[str] = set()
    for call in reversed(calls):
        if call.random or call.writes or any(("var", k) in wanted for k in call.outputs):
            keep.add(call.name)
            wanted.update(read_by(call))
    return (call for call in calls if call.name in keep)


def _node(recorder: Recorder, call: RecordedCall, own: Set[int]) -> Node:
    read = list(dict.fromkeys(read_by(call)))
    inputs = tuple(name for tag, name in read if tag == "var")
    local = {k: recorder.tensors[k] for k in (*inputs, *(k for k in call.outputs if k))}
    saved, other = kept_for_backward(call.tensors, local, own)
    given = {each.name: getattr(call, each.name) for each in fields(Node)}
    initializers = tuple(name for tag, name in read if tag == "init")
    return Node(**given | {
        "inputs": inputs, "initializers": initializers, "saved": saved, "saved_bytes": other,
    })  # fmt: skip


def _without_recomputed(nodes: dict[str, Node]) -> dict[str, Node]:
    """Nodes where a checkpoint keeps alive only what comes into it: the rest is computed again."""
    groups: dict[str, list[Node]] = {}
    for node in nodes.values():
        if node.checkpoint:
            groups.setdefault(node.checkpoint, []).append(node)
    kept = dict(nodes)
    for group in groups.values():
        outputs = {k for node in group for k in node.outputs}
        for node in group:
            kept[node.name] = replace(
                node, saved=tuple(k for k in node.inputs if k not in outputs), saved_bytes=0
            )
    return kept


def _variables(recorder: Recorder, nodes: Mapping[str, Node], names: Sequence[str]) -> dict[str, Variable]:
    producer = {k: node.name for node in nodes.values() for k in node.outputs if k}
    consumers: dict[str, list[str]] = {k: [] for k in names}
    for node in nodes.values():
        for k in node.inputs:
            consumers[k].append(node.name)
    return {
        k: Variable(
            name=k,
            dtype=str(recorder.tensors[k].dtype).removeprefix("torch."),
            shape=recorder.layouts[k][0],
            producer=producer.get(k),
            consumers=tuple(consumers[k]),
            order=memory_order(*recorder.layouts[k]),
            repeated=repeated_dims(*recorder.layouts[k]),
            spread=is_spread(*recorder.layouts[k]),
        )
        for k in names
    }


def _refuse_writes(recorder: Recorder) -> None:
    """Refuses writes whose result depends on the order of micro-batches, or on a recomputation."""
    trained = {storage_id(t): k for k, t in recorder.stand_ins.fake.items() if t.requires_grad}
    held = {storage_id(t): k for k, t in recorder.stand_ins.fake.items()}
    for call in recorder.calls:
        where = f" at {call.source}" if call.source else ""
        for reference in call.writes:
            key = storage_id(recorder.tensor(*reference))
            if key in trained and not call.op.startswith(CALL):
                raise CaptureError(_written(trained[key], recorder, where))
            if key in held and call.checkpoint:
                raise CaptureError(
                    f"the buffer '{held[key]}' is written within torch.utils.checkpoint{where}, so every "
                    "backward writes it again: leave that module (say, a BatchNorm) out of the checkpoint or "
                    "freeze it."
                )


def _written(name: str, recorder: Recorder, where: str) -> str:
    if recorder.stand_ins.initializers[name].requires_grad:
        renormed = any(call.op.startswith("aten.embedding_renorm_") for call in recorder.calls)
        instead = (
            "leave max_norm out and renormalise the rows after the step"
            if renormed
            else "change it after the step, or make it a buffer"
        )
        return (
            f"the parameter '{name}' is written in the forward{where}, between forwards and backwards of "
            f"other micro-batches: {instead}."
        )
    return (
        f"the value written into the buffer '{name}'{where} carries a gradient, which would flow into "
        "earlier micro-batches: write the detached value (tensor.detach())."
    )


def _add_hooks(recorder: Recorder) -> None:
    """A node for the hooks of every parameter that has some, which all its readers read instead of it."""
    for name, tensor in recorder.stand_ins.real.items():
        if getattr(tensor, "_post_accumulate_grad_hooks", None):
            raise CaptureError(
                f"parameter '{name}' has a post-accumulate-grad hook, which needs gradients summed over "
                "micro-batches: do its work in the optimiser."
            )
        hooks = tuple((tensor._backward_hooks or {}).values()) if tensor.is_leaf else ()
        if hooks and name in recorder.stand_ins.fake:
            before, recorder.calls = recorder.calls, []
            stand_in = recorder.stand_ins.fake[name]
            with recorder.mode:
                view = stand_in.view_as(stand_in)
            recorder.call(GradientHook(hooks), [stand_in], [view], [])
            (hook,) = recorder.calls
            hook = replace(hook, no_grad=False, autocast=None)
            names: dict[Reference, Reference] = {("init", name): ("var", hook.outputs[0])}
            recorder.calls = [hook, *(replace(call, **renamed(call, names)) for call in before)]
