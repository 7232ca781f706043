"""A forward hook that logs statistics as Python numbers: it needs values, and changes nothing."""

from torch import nn

LOG = []


def statistics(module, inputs, output):
    LOG.append((output.detach().mean().item(), output.detach().std().item()))


def build():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5))
    model[0].register_forward_hook(statistics)
    return model


EXPECT = "either"
REASON = "item|value|hook|state|statistics"
