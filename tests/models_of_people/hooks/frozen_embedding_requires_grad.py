"""A hook that lets gradients begin at the output of a frozen embedding, as for adapters."""

from torch import nn

from tests.models_of_people.data import tokens


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.embed.weight.requires_grad = False
        self.embed.register_forward_hook(lambda module, given, output: output.requires_grad_(True))
        self.left, self.right = nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, ids):
        h = self.embed(ids).mean(1)
        return self.left(h) + self.right(h)


batch = tokens()
