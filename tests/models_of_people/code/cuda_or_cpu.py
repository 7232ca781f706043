"""`.to(device)` on everything, everywhere, with a device found out at import."""

import torch
from torch import nn

from tests.models_of_people.data import images

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).to(device)
        self.fc = nn.Linear(144, 5).to(device)
        self.mask = torch.ones(4, 1, 1, device=device)

    def forward(self, x):
        x = x.to(device, non_blocking=True)
        x = self.conv(x).to(device) * self.mask.to(x.device)
        return self.fc(torch.flatten(x.relu().contiguous(), 1)).to("cpu")


batch = images()
