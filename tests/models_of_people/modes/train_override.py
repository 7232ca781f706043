"""`train()` is overridden to keep the BatchNorms frozen, as detection code does."""

from torch import nn

from tests.models_of_people.data import images


class ResNetLike(nn.Module):
    def __init__(self, norm_eval=True):
        super().__init__()
        self.norm_eval = norm_eval
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 5)

    def train(self, mode=True):
        super().train(mode)
        if mode and self.norm_eval:
            for m in self.modules():
                if isinstance(m, nn.BatchNorm2d):
                    m.eval()
        return self

    def forward(self, x):
        return self.fc(self.bn(self.conv(x)).relu().mean((2, 3)))


def build():
    return ResNetLike().train()


batch = images()
