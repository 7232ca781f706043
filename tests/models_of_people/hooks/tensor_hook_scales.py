"""`tensor.register_hook` in the forward, to scale a gradient."""

from torch import nn


class MuZeroLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.represent = nn.Linear(6, 8)
        self.dynamics = nn.Linear(8, 8)
        self.predict = nn.Linear(8, 5)

    def forward(self, x):
        state = self.represent(x).tanh()
        for _ in range(3):
            state = self.dynamics(state).tanh()
            if state.requires_grad:
                state.register_hook(lambda grad: grad * 0.5)
        return self.predict(state)


EXPECT = "either"
REASON = "hook"
