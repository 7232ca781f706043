"""Fine-tuning with all BatchNorms in eval mode, the rest in training mode."""

from torch import nn

from tests.models_of_people.data import images


def build():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Flatten(), nn.Linear(64, 5),
    )  # fmt: skip
    model.train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.add_(0.2)
            module.eval()
    return model


batch = images()
