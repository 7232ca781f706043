"""SyncBatchNorm outside any process group, where it falls back to plain BatchNorm."""

from torch import nn

from tests.models_of_people.data import images


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.SyncBatchNorm.convert_sync_batchnorm(
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        )
        self.fc = nn.Linear(4, 5)

    def forward(self, x):
        return self.fc(self.body(x).mean((2, 3)))


batch = images()
EXPECT = "either"
REASON = "SyncBatchNorm"
