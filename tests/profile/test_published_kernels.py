"""Kernels of data-centre GPUs beside what others measured of them, and chains that are one kernel."""

from __future__ import annotations

from statistics import median

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.cluster.catalogue import SUSTAINED, Pass, accelerator
from netsplit.graph import Graph, capture
from netsplit.profile.fusion import chains, fused_pass
from netsplit.profile.predict import predicted_seconds, works_of
from netsplit.profile.roofline import node_work

HOPPER = accelerator("H100-SXM").under("bfloat16", casts=False)
PRODUCTS = {
    (1, 1024, 1024, 1024): 236, (1, 1024, 4096, 4096): 738, (1, 2048, 256, 2048): 216,
    (1, 2048, 4096, 256): 299, (1, 2048, 4096, 4096): 754, (1, 4096, 1024, 2048): 632,
    (2, 512, 1024, 1024): 235, (2, 2048, 512, 4096): 645, (2, 4096, 4096, 1024): 693,
    (4, 1024, 4096, 256): 391, (4, 2048, 2048, 512): 542, (4, 4096, 2048, 2048): 759,
}  # fmt: skip
"""Batch, rows, columns, inner dimension -> TFLOP/s of an H100 (github.com/openxla/xla,
xla/service/gpu/model/matmul_interpolator_data.h)."""
ATTENTION = {
    (128, True): (260, 298, 319, 333, 335), (128, False): (350, 362, 368, 370, 370),
    (64, False): (306, 318, 321, 322, 324),
}  # fmt: skip
BACKWARD = {(128, False): (260, 291, 310, 318, 322)}
"""Head, causal -> TFLOP/s of FlashAttention-2 on an H100 by length, 1,024 to 16,384 (Shah et al.,
FlashAttention-3, 2024, figures 5 and 6), of 16,384 tokens of width 2,048."""


def test_products_are_as_published() -> None:
    errors = []
    for (batch, rows, columns, inner), published in PRODUCTS.items():
        flops = 2.0 * batch * rows * columns * inner
        seconds = HOPPER.seconds(
            "matmul", "forward", Pass(flops * SUSTAINED, starts=flops * SUSTAINED / inner)
        )
        errors.append(abs(flops / seconds / 1e12 / published - 1))
    assert median(errors) < 0.05
    assert max(errors) < 0.15


class Attention(nn.Module):
    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.one = nn.Parameter(torch.ones(1, device="meta", dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (x * self.one for _ in range(3))
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


def attention(head: int, causal: bool, length: int) -> Graph:
    shape = (16_384 // length, 2048 // head, length, head)
    x = torch.empty(shape, device="meta", dtype=torch.bfloat16)
    return capture(Attention(causal), nn.MSELoss(), ((x,), (x,)))


@pytest.mark.parametrize("of", ["forward", "input"])
def test_attention_is_as_published(of: str) -> None:
    for (head, causal), published in (ATTENTION if of == "forward" else BACKWARD).items():
        for i, tflops in enumerate(published):
            length = 1024 << i
            graph = attention(head, causal, length)
            node = next(each for each in graph if each.kind == "scaled_dot_product_attention")
            done = getattr(node_work(graph, node), of)
            alone = Pass(
                *(SUSTAINED * x for x in (done.flops, 0.0, 0.0, 0.0, done.masked_flops, done.starts))
            )
            nominal = (
                4.0 * 2048 * 16_384 * length * (0.5 if causal else 1.0) * (1 if of == "forward" else 2.5)
            )
            reached = nominal / HOPPER.seconds("attention", of, alone) / 1e12
            assert reached == pytest.approx(tflops, rel=0.12), (head, causal, length)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.device("meta"):
            self.up, self.gate, self.down = nn.Linear(64, 256), nn.Linear(64, 256), nn.Linear(256, 64)
            self.norm = nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x + self.down(F.silu(self.gate(x)) * self.up(x)))
        return x + y * 2.0


def test_a_chain_moves_what_comes_in_and_goes_out() -> None:
    x = torch.empty(1024, 64, device="meta")
    graph = capture(Block().to("meta"), nn.MSELoss(), ((x,), (x,)))
    works = works_of(graph, graph.nodes)
    first, second = chains(graph, works)
    assert [set(each) for each in (first, second)] == [
        {"silu", "mul"}, {"add", "layer_norm", "mul_1", "add_1", "broadcast_tensors"}
    ]  # fmt: skip
    forward, backward = fused_pass(graph, works, first)
    assert forward.nbytes == 4 * 1024 * 256 * 3  # two factors in, a product out
    assert backward.nbytes == 4 * 1024 * 256 * 5  # its gradient and both factors in, two gradients out
    eager, compiled = (
        predicted_seconds(graph, accelerator(name)) for name in ("A100-SXM4-80GB", "A100-SXM4-80GB compiled")
    )
    for name, each in eager.items():
        if name in (*first, *second):
            assert compiled[name].total_s < each.total_s or not each.total_s
        else:
            assert compiled[name] == each
