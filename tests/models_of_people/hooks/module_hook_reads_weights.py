"""A backward hook of a module reads another's weights."""

from torch import nn


def build():
    m = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    m[1].register_full_backward_hook(lambda mod, gi, go: (gi[0] * m[0].weight.detach().norm(),))
    return m


EXPECT = "refused"
REASON = "passed to it|elsewhere"
