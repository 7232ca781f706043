"""Under autocast a graph has the dtypes of its run, and gives the plain loop's bits."""

import pytest
import torch
from torch import Tensor, nn

from netsplit.errors import ConfigError
from netsplit.graph import (
    WeightGradients,
    capture,
    capture_inference,
    dumps,
    initial_values,
    loads,
    rebuild,
)
from netsplit.graph.batches.batch import Batch
from netsplit.graph.operators import autocast_of
from netsplit.training.captures import Captures
from netsplit.training.options import Training
from tests.cover import covering
from tests.nets import CASES


def _model(name: str) -> tuple[nn.Module, tuple[Tensor, ...], Tensor, nn.Module]:
    case = CASES[name]
    inputs = tuple(t.float() if t.is_floating_point() else t for t in case.inputs)
    return case.fresh().float(), inputs, case.targets, case.loss


@covering(name=CASES, deferrable=[False, True])
def test_loss_and_gradients_are_those_of_the_plain_loop_bit_for_bit(name: str, deferrable: bool) -> None:
    """On one device; `tests/runtime/equivalence/test_precision.py` cuts them."""
    model, inputs, targets, loss_of = _model(name)
    twin = _model(name)[0]
    graph = capture(twin, loss_of, (inputs, targets), autocast="bfloat16")
    module = rebuild(graph, initial_values(twin, graph), deferrable=deferrable)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = loss_of(model(*inputs), targets)
    wanted.backward()
    queue = WeightGradients()
    with autocast_of(graph, "cpu"):
        loss = module(*inputs, targets)
    with queue.collect():
        loss.backward()
    queue.run()
    assert torch.equal(loss, wanted)
    for (key, p), q in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        assert (p.grad is None) == (q[1].grad is None), key
        assert p.grad is None or torch.equal(p.grad, q[1].grad), key


def test_an_inference_graph_has_the_dtypes_of_its_run_and_keeps_them_in_its_file() -> None:
    model, inputs, targets, loss_of = _model("chain")
    graph = capture_inference(model, inputs, autocast="bfloat16")
    (output,) = graph.output_variables
    assert graph.variables[output].dtype == "bfloat16"
    assert loads(dumps(graph)) == graph
    assert loads(dumps(graph)).autocast == "bfloat16"
    plain = capture(model, loss_of, (inputs, targets))
    assert plain.autocast is None
    assert {v.dtype for v in plain.variables.values()} == {"float32", "int64"}


def test_encoder_layers_predict_under_autocast_as_they_train(caplog: pytest.LogCaptureFixture) -> None:
    """Plain PyTorch takes a fused kernel on a CPU, which answers bfloat16."""
    torch.manual_seed(0)
    model, x = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), torch.randn(4, 5, 16)
    captures = Captures(
        model, None, Training(autocast="bfloat16"), trained=lambda: dict(model.named_parameters())
    )
    graph = captures.inference(Batch.of(x))
    assert [graph.variables[k].dtype for k in graph.output_variables] == ["float32"]
    assert captures.outputs(Batch.of(x)).dtype == torch.float32
    captures.inference(Batch.of(x[:3]))
    assert caplog.text.count("predicts with the attention layers it trains with") == 1
    assert torch.backends.mha.get_fastpath_enabled()


def test_casts_count_among_what_a_backward_keeps() -> None:
    model, inputs, targets, loss_of = _model("chain")
    graphs = [capture(model, loss_of, (inputs, targets), autocast=a) for a in (None, "bfloat16")]
    (plain, cast) = (next(node for node in graph if node.kind == "conv2d") for graph in graphs)
    assert (plain.saved, plain.saved_bytes) == (("batch_0",), 0)
    # The input and the weight in two bytes an element; the weight itself is there anyway.
    assert (cast.saved, cast.saved_bytes) == ((), 2 * (8 * 3 * 8 * 8 + 6 * 3 * 3 * 3))


def test_an_unknown_precision_and_a_device_that_is_not_here_are_refused() -> None:
    model, inputs, targets, loss_of = _model("tied")
    with pytest.raises(ConfigError, match="autocast is 'float8': give bfloat16 or float16"):
        capture(model, loss_of, (inputs, targets), autocast="float8")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="autocast of cuda cannot be captured"):
            capture(model, loss_of, (inputs, targets), autocast="bfloat16", device_type="cuda")
