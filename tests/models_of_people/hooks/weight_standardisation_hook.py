"""A pre-hook of one's own recomputes `weight` from `weight_raw` each time, as old code does."""

from torch import nn

from tests.models_of_people.data import images


def standardise(module, args):
    w = module.weight_raw
    mean = w.mean((1, 2, 3), keepdim=True)
    module.weight = (w - mean) / (w.std((1, 2, 3), keepdim=True) + 1e-5)


def standardised(conv):
    weight = conv.weight
    del conv._parameters["weight"]
    conv.register_parameter("weight_raw", nn.Parameter(weight.data))
    conv.weight = weight.data
    conv.register_forward_pre_hook(standardise)
    return conv


def build():
    return nn.Sequential(
        standardised(nn.Conv2d(3, 4, 3)), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)
    )


batch = images()
