"""A forward that sets torch's generator is refused, whatever it calls for that."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from netsplit.errors import CaptureError
from netsplit.graph import capture

SET = torch.manual_seed  # past whatever looks at torch's own name


def fork() -> None:
    with torch.random.fork_rng(devices=[]):
        pass


SETTERS = {
    "manual_seed": lambda: torch.manual_seed(7),
    "seed": torch.seed,
    "state": lambda: torch.set_rng_state(torch.get_rng_state()),
    "devices": lambda: torch.cuda.manual_seed_all(7),
    "fork": fork,
    "the process's seed": lambda: torch.initial_seed(),
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


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kind", SETTERS)
def test_a_forward_that_sets_the_generator_is_refused(kind: str, whole: bool) -> None:
    model, batch = Seeding(kind, whole), (torch.randn(3, 4), torch.randn(3, 4))
    before = torch.get_rng_state()
    with pytest.raises(CaptureError, match="torch's generator") as e:
        capture(model, nn.MSELoss(), batch)
    assert "\n" not in str(e.value)
    assert torch.equal(torch.get_rng_state(), before)
