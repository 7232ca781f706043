"""An operator of one's own by torch.library, with a fake and a registered gradient."""

from uuid import uuid4

import torch
from torch import nn


# This file is executed for every model made of it. torch frees an operator that is defined again, while
# models of before go on calling it.
@torch.library.custom_op(f"people::softsign_{uuid4().hex}", mutates_args=())
def softsign(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.from_numpy((x.numpy() * scale) / (1 + abs(x.numpy() * scale)))


@softsign.register_fake
def _(x, scale):
    return torch.empty_like(x)


def setup_context(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.scale = inputs[1]


def backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * ctx.scale / (1 + (x * ctx.scale).abs()) ** 2, None


softsign.register_autograd(backward, setup_context=setup_context)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.b(softsign(self.a(x), 1.5))


EXPECT = "either"
REASON = "people|custom"
