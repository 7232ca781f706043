"""Forward hooks collect features into a dict; the forward reads them: a perceptual loss."""

from torch import nn

from tests.models_of_people.data import images


class Perceptual(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU())
        self.features = {}
        for name in (1, 3):
            self.net[name].register_forward_hook(self.save(name))
        self.head = nn.Linear(8, 5)

    def save(self, name):
        def hook(module, inputs, output):
            self.features[name] = output

        return hook

    def forward(self, x):
        self.net(x)
        pooled = [self.features[k].mean((2, 3)) for k in sorted(self.features)]
        return self.head(__import__("torch").cat(pooled, 1))


batch = images()
