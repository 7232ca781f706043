"""A checkpointed method with keywords, None and several outputs."""

from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.models_of_people.data import sequences


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.mlp = nn.Linear(6, 6)

    def _inner(self, x, mask=None, scale=1.0):
        y, weights = self.attention(x, x, x, attn_mask=mask)
        return x + scale * y, weights

    def forward(self, x):
        x, weights = checkpoint(self._inner, x, mask=None, scale=0.5, use_reentrant=False)
        return self.mlp(x).mean(1) + weights.mean()


def build():
    return nn.Sequential(Layer(), nn.Linear(6, 5))


batch = sequences()
