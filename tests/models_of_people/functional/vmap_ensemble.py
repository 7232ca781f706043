"""An ensemble by stack_module_state and vmap."""

from torch import nn
from torch.func import functional_call, stack_module_state, vmap


class Ensemble(nn.Module):
    def __init__(self):
        super().__init__()
        nets = [nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)) for _ in range(3)]
        parameters, _ = stack_module_state(nets)
        self.stacked = nn.ParameterDict({k.replace(".", "_"): v.detach() for k, v in parameters.items()})
        self.base = [nets[0].to("meta")]

    def forward(self, x):
        parameters = {k.replace("_", "."): v for k, v in self.stacked.items()}
        return vmap(lambda p, x: functional_call(self.base[0], p, (x,)), in_dims=(0, None))(
            parameters, x
        ).mean(0)


EXPECT = "either"
REASON = "vmap|func"
