"""Train a model of your own on two worker processes: `python examples/own_model.py`."""

import torch
from sklearn.datasets import load_digits
from torch import nn

import netsplit


class TwoPaths(nn.Module):
    """A residual network whose first layer feeds two paths: not a chain."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(64, 256)
        self.left = nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 256))
        self.right = nn.Sequential(nn.Linear(256, 256), nn.Tanh())
        self.head = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        return self.head(self.left(x) + self.right(x) + x)


digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
train = list(zip(images[:1536].split(128), labels[:1536].split(128), strict=True))

cluster = netsplit.cpu_cluster(2, capacity="4MiB")
with netsplit.parallelize(TwoPaths(), nn.CrossEntropyLoss(), train[0], cluster=cluster) as parallel:
    print(parallel.summary())
    for epoch in range(5):
        losses = [parallel.train_batch(inputs, targets) for inputs, targets in train]
        accuracy = parallel.evaluate([(images[1536:], labels[1536:])])
        print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.3f}, test accuracy {accuracy:.1%}")
    parallel.save("outputs/two_paths.pt")
