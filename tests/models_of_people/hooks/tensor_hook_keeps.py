"""Grad-CAM: a hook keeps the gradient of an activation on the module; nothing is changed by it."""

from torch import nn

from tests.models_of_people.data import images


class GradCam(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.fc = nn.Linear(4, 5)
        self.gradients = None

    def keep(self, grad):
        self.gradients = grad

    def forward(self, x):
        x = self.conv(x).relu()
        x.register_hook(self.keep)
        return self.fc(x.mean((2, 3)))


batch = images()
EXPECT = "either"
REASON = "hook"
