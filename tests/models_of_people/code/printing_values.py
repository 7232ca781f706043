"""A print of a value in the forward."""

import contextlib
import io

from torch import nn


class Printing(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x):
        h = self.a(x).relu()
        with contextlib.redirect_stdout(io.StringIO()):
            print(f"mean {h.mean():.3f}")  # noqa: T201
        return self.b(h)


EXPECT = "either"
REASON = "format|item|value|data-dependent"
