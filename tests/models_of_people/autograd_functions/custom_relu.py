"""The ReLU of the PyTorch tutorial."""

import torch
from torch import nn


class MyReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input):  # noqa: A002
        ctx.save_for_backward(input)
        return input.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors  # noqa: A001
        grad_input = grad_output.clone()
        grad_input[input < 0] = 0
        return grad_input


class TwoLayerNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(6, 10)
        self.fc2 = nn.Linear(10, 5)

    def forward(self, x):
        relu = MyReLU.apply
        return self.fc2(relu(self.fc1(x)))
