"""torch.nn.utils.prune: weight_orig times a mask, by a pre-hook."""

from torch import nn
from torch.nn.utils import prune


def build():
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 5))
    prune.l1_unstructured(model[0], name="weight", amount=0.4)
    prune.ln_structured(model[2], name="weight", amount=0.3, n=2, dim=1)
    return model
