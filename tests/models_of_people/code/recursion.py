"""A recursive net over a tree given as nested tuples; one cell for every node."""

import torch
from torch import nn

from tests.models_of_people.data import sequences

TREE = ((0, 1), (2, (3, 4)))


class TreeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.leaf, self.node, self.fc = nn.Linear(6, 8), nn.Linear(16, 8), nn.Linear(8, 5)

    def embed(self, tree, x):
        if isinstance(tree, int):
            return self.leaf(x[:, tree]).tanh()
        return self.node(torch.cat([self.embed(each, x) for each in tree], 1)).tanh()

    def forward(self, x):
        return self.fc(self.embed(TREE, x))


batch = sequences()
