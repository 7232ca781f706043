"""A forward that sets torch's generator is refused, whatever it calls for that."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.errors import CaptureError
from netsplit.graph import capture

SET = torch.manual_seed  # past whatever looks at torch's own name


def forked() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        torch.rand(3)


def same_again() -> None:
    state = torch.get_rng_state()
    torch.rand(3)
    torch.set_rng_state(state)


SETTERS = {
    "manual_seed": lambda: torch.manual_seed(7),
    "seed": torch.seed,
    "state": same_again,
    "fork": forked,
    "its own name": lambda: SET(7),
    "the generator itself": lambda: torch.default_generator.manual_seed(7),
}


class Seeding(nn.Module):
    def __init__(self, kind: str, whole: bool) -> None:
        super().__init__()
        self.fc, self.kind, self.whole = nn.Linear(4, 4), kind, whole

    def forward(self, x: Tensor) -> Tensor:
        if self.whole and x.mean() > 9:  # needs a value
            return x
        SETTERS[self.kind]()
        return F.dropout(self.fc(x), 0.5)


PUT_BACK = (
    "state",
    "fork",
)  # fine in what stays whole: it is one node


@pytest.mark.parametrize(
    ("kind", "whole"), [(k, w) for k in SETTERS for w in (False, True) if not (w and k in PUT_BACK)]
)
def test_a_forward_that_sets_the_generator_is_refused(kind: str, whole: bool) -> None:
    model, batch = Seeding(kind, whole), (torch.randn(3, 4), torch.randn(3, 4))
    before = torch.get_rng_state()
    with pytest.raises(CaptureError, match="torch's generator") as e:
        capture(model, nn.MSELoss(), batch)
    assert "\n" not in str(e.value)
    assert torch.equal(torch.get_rng_state(), before)
